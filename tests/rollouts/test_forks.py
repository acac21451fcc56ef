"""The fork server: lent to another process, replaced when it dies, gone with its owner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from tests.rollouts.runner_support import SUBMIT, saying
from tests.tools import need
from valve_plugin.rollouts import forks, workspace
from valve_plugin.rollouts.processes import python
from valve_plugin.rollouts.runner import RolloutSpec, run

ROLLOUT = """
from tests.rollouts.runner_support import SUBMIT, saying
from valve_plugin.rollouts import forks, workspace
from valve_plugin.rollouts.runner import RolloutSpec, run

def rollout():
    with workspace.empty() as place:
        spec = RolloutSpec(
            task_id="t", ordinal=0, issue="i", block="", workspace=place, settings=saying(SUBMIT, unsafe_local=True)
        )
        return run(spec)
"""


def rollout():
    with workspace.empty() as place:
        spec = RolloutSpec(
            task_id="t", ordinal=0, issue="i", block="", workspace=place, settings=saying(SUBMIT, unsafe_local=True)
        )
        return run(spec)


def servers(owner: int) -> list[psutil.Process]:
    alive = [p for p in psutil.Process(owner).children() if p.status() != psutil.STATUS_ZOMBIE]
    return [p for p in alive if "fork_server" in " ".join(p.cmdline())]


def script(tmp_path: Path, body: str, *arguments: str) -> subprocess.Popen[str]:
    path = tmp_path / "script.py"
    path.write_text(ROLLOUT + textwrap.dedent(body))
    environ = os.environ | {"PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, str(path), *arguments]
    return subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def until(true, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)
    return true()


def test_a_borrower_starts_no_server_of_its_own(tmp_path):
    need("bwrap")
    address = forks.lend()
    body = """
    import sys, psutil
    forks.borrow(sys.argv[1])
    print(rollout().ended, len(psutil.Process().children()))
    """
    borrower = script(tmp_path, body, address)
    assert borrower.communicate(timeout=600)[0].split() == ["submitted", "0"]
    assert len(servers(os.getpid())) == 1
    assert rollout().ended == "submitted"
    assert len(servers(os.getpid())) == 1, "lent and used here, it is the same one"


@pytest.mark.heavy
def test_a_server_that_died_is_replaced_also_a_borrowed_one(tmp_path):
    need("bwrap")
    body = """
    import os, psutil, signal, sys
    def server():
        return [p for p in psutil.Process().children() if "fork_server" in " ".join(p.cmdline())]
    forks.warm()
    (first,) = server()
    first.kill()
    first.wait()
    forks.borrow(sys.argv[1])
    print(rollout().ended, flush=True)
    (second,) = [p for p in server() if p != first]
    print(second.pid, forks.lend(), flush=True)
    sys.stdin.read()
    """
    owner = script(tmp_path, body, str(tmp_path / "nobody listens"))
    assert owner.stdout is not None
    assert owner.stdout.readline() == "submitted\n"
    pid, address = owner.stdout.readline().split()
    assert Path(address).is_socket()
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert until(lambda: not psutil.pid_exists(int(pid))), "a server does not outlive its owner"
    assert until(lambda: not Path(address).parent.exists()), "and leaves nothing"


def test_a_server_that_still_loads_ends_with_its_owner_too(tmp_path):
    body = """
    import psutil, sys
    forks.warm()
    print(*(p.pid for p in psutil.Process().children()), forks.lend(), flush=True)
    sys.stdin.read()
    """
    owner = script(tmp_path, body)
    pid, address = owner.stdout.readline().split()
    loading = psutil.Process(int(pid))
    until(lambda: any("litellm" in file.path for file in loading.memory_maps()) or loading.cpu_times().user > 0.5)
    before = loading.cpu_times().user
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert until(lambda: not loading.is_running() or loading.status() == psutil.STATUS_ZOMBIE, 10)
    assert until(lambda: not Path(address).parent.exists(), 1), "and leaves nothing"
    assert before < 3, "it was still loading"


def test_the_working_directory_is_not_on_the_import_path(tmp_path):
    """It may be a repository of Pygments, and what is installed must win."""
    (tmp_path / "pygments.py").write_text("raise SystemExit('the repository of the agent was imported')")
    code = "import pygments, sys, json; print(json.dumps([pygments.__version__, sys.argv[1:]]))"
    done = subprocess.run(python(code, "a", "b c"), cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)[1] == ["a", "b c"]


@pytest.mark.heavy
def test_the_rehearsal_imports_what_a_first_call_would_and_leaves_no_thread():
    code = """
    import sys, threading
    from valve_plugin.rollouts import preload
    before = {"httpcore", "litellm.llms.openai.openai"} <= set(sys.modules)
    preload.rehearse()
    print(before, {"httpcore", "litellm.llms.openai.openai"} <= set(sys.modules), threading.active_count())
    """
    done = subprocess.run(python(textwrap.dedent("\n" + code)), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "1"]


def test_what_a_killed_process_left_goes_with_the_next_one() -> None:
    with tempfile.TemporaryDirectory() as short:  # a socket's path has to be short
        environ = os.environ | {"TMPDIR": short}
        lend = "from valve_plugin.rollouts import forks; print(forks.lend(), flush=True); input()"

        def lending() -> tuple[subprocess.Popen[str], Path]:
            process = subprocess.Popen(
                [sys.executable, "-c", lend], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            assert process.stdout is not None
            return process, Path(process.stdout.readline().strip()).parent

        alive, kept = lending()
        killed, left = lending()
        killed.kill()
        killed.communicate()
        assert left.is_dir()
        for path in (kept, left):
            os.utime(path, (0, 0))  # long ago
        next_, _ = lending()
        assert not left.exists()
        assert kept.is_dir()
        for process in (alive, next_):
            process.communicate("\n")
        assert list(Path(short).iterdir()) == []
