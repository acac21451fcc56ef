"""What runs on the host ends with whoever started it, however that ends: pip, venv, builds, git, plain commands.

And what is seen of a command while it runs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools import lives, need, need_module, running, until
from valve_plugin.errors import InfrastructureError, TaskError
from valve_plugin.sandbox import supervisor
from valve_plugin.sandbox.git import git
from valve_plugin.sandbox.supervisor import ProcessLimits, Sample, supervise

ROOT = Path(__file__).parents[2]
# A tree: a child in a session of its own that nobody waits for, one in a group of its own, one that is waited for.
TREE = "(setsid sleep 601 &); set -m; sleep 602 & sleep 603"
RUN_CHILD = "from valve_plugin.sandbox.supervisor import run_child; run_child(['bash', '-c', {tree!r}])"
CHILD_PROCESS = """
from valve_plugin.sandbox.supervisor import child_process
with child_process(['bash', '-c', {tree!r}], interruptible=True) as process:
    process.wait()
"""
UNSAFE = """
from pathlib import Path
from valve_plugin.sandbox.bubblewrap import UnsafeLocal
from valve_plugin.sandbox.workspace import Workspace
place = Workspace(root=Path({place!r}, "root"), uid=1)
for folder in (place.path, place.home, place.tmp):
    folder.mkdir(parents=True)
UnsafeLocal().run({tree!r}, place)
"""
FORKED = """
import time
from valve_plugin.tasks.make import candidates
def slow(*_):
    time.sleep(600)
candidates._in_file = slow
candidates.find_candidates(__import__('pathlib').Path({place!r}), lambda _: False, 0, 2)
"""
VENV = """
from pathlib import Path
from valve_plugin.sandbox import environment
environment.create(Path({place!r}, "venv"), environment.find_python(""), [], lambda _: None)
"""
PIP = """
import sys
from pathlib import Path
from valve_plugin.sandbox import environment
here = {place!r}
environment.pip(Path(sys.executable), "install", "--target", here + "/there", "slow @ file://" + here + "/slow")
"""
BUILD_SYSTEM = "[build-system]\nrequires = []\nbuild-backend = 'slow_build'\nbackend-path = ['.']\n"
SLOW_BUILD = """
import subprocess, sys, time

def tick(*_):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    while True:
        with open({place!r} + "/ticks", "a") as file:
            file.write("x")
        time.sleep(0.02)

prepare_metadata_for_build_wheel = build_wheel = tick
"""


HEARS = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # also where the tests were begun under nohup


def start(code: str, place: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": f"{place}/tmp", "VALVE_DATA": f"{place}/data"}
    (place / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen([sys.executable, "-c", HEARS + code], env=env, cwd=place)


def tree_of(process: subprocess.Popen[bytes], *words: str, size: int = 1) -> list[psutil.Process]:
    """Wait until all of these words are in some command of its tree, and return the tree."""
    tree: list[psutil.Process] = []

    def complete() -> bool:
        assert process.poll() is None, "it ended before"
        tree[:] = psutil.Process(process.pid).children(recursive=True)
        return len(tree) >= size and {word for one in tree for word in command(one)}.issuperset(words)

    until(complete)
    return tree


def command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def assert_gone(tree: list[psutil.Process]) -> None:
    until(lambda: not any(map(lives, tree)))


@pytest.mark.parametrize(
    ("code", "how"),
    [
        *[(code, signal.SIGKILL) for code in (RUN_CHILD, CHILD_PROCESS, UNSAFE)],
        *[(CHILD_PROCESS, how) for how in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)],
    ],
    ids=["run child", "child process", "unsafe-local", "ended", "hung up", "interrupted"],
)
def test_a_tree_ends_with_whoever_started_it(tmp_path: Path, code: str, how: signal.Signals) -> None:
    with start(code.format(tree=TREE, place=str(tmp_path)), tmp_path) as process:
        tree = tree_of(process, "601", "602", "603")
        process.send_signal(how)
        if (how, code) == (signal.SIGINT, CHILD_PROCESS):  # as a terminal does: it is the command's as well
            next(p for p in tree if command(p)[-1:] == [TREE] and p.name() == "bash").send_signal(how)
    assert_gone(tree)


def test_processes_forked_to_look_for_candidates(tmp_path: Path) -> None:
    need_module("swesmith")
    (tmp_path / "a.py").write_text("")
    with start(FORKED.format(place=str(tmp_path)), tmp_path) as process:
        tree = tree_of(process, size=2)
        process.kill()
    assert_gone(tree)


def test_git_that_waits_for_a_pipe(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".git/HEAD").unlink()
    os.mkfifo(tmp_path / ".git/HEAD")
    code = "from pathlib import Path; from valve_plugin.sandbox.git import find_git_dir; find_git_dir(Path({place!r}))"
    with start(code.format(place=str(tmp_path)), tmp_path) as process:
        tree = tree_of(process, "--absolute-git-dir")
        process.kill()
    assert_gone(tree)
    with pytest.raises(InfrastructureError, match="git rev-parse did not end within 1 s"):
        git("rev-parse", "--absolute-git-dir", cwd=tmp_path, seconds=1)


@pytest.mark.parametrize(
    ("code", "word"), [(VENV, "ensurepip"), (PIP, "import time; time.sleep(600)")], ids=["venv", "build"]
)
def test_an_environment_that_is_being_made(tmp_path: Path, code: str, word: str) -> None:
    package = tmp_path / "slow"
    package.mkdir()
    (package / "pyproject.toml").write_text(BUILD_SYSTEM)
    (package / "slow_build.py").write_text(SLOW_BUILD.format(place=str(tmp_path)))
    with start(code.format(place=str(tmp_path)), tmp_path) as process:
        tree = tree_of(process, word)
        process.kill()
    assert_gone(tree)
    assert list((tmp_path / "tmp").iterdir()) == []  # and the next run removes what is in a slot of user data
    before = written(tmp_path)
    time.sleep(0.3)
    assert written(tmp_path) == before


def written(place: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_size) for path in place.rglob("*") if not path.is_dir())


def test_what_it_came_to() -> None:
    done = supervisor.run_child(["sh", "-c", "cat; echo no >&2; exit 3"], data=b"yes")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"yes", b"no\n")
    assert supervisor.run_child(["sh", "-c", "kill -9 $$"]).returncode == 128 + 9
    missing = supervisor.run_child(["/no/such/command"])
    assert (missing.returncode, missing.stderr[:16]) == (127, b"/no/such/command")


def test_a_time_limit_and_the_end_leave_nothing(tmp_path: Path) -> None:
    own = psutil.Process()
    with pytest.raises(subprocess.TimeoutExpired):
        supervisor.run_child(["bash", "-c", TREE], seconds=0.5)
    leaving = f"(setsid sh -c 'echo $$ > {tmp_path}/pid; sleep 604' &); while [ ! -s {tmp_path}/pid ]; do :; done"
    supervisor.run_child(["sh", "-c", leaving])
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
    assert not [p for p in own.children(recursive=True) if {"601", "602", "603", "604"} & set(command(p))]


def test_a_sleeper_wants_nothing_and_its_last_line_is_read(tmp_path: Path) -> None:
    output = tmp_path / "output"
    code = "import time; print('one\\n' * 9999 + 'two\\n\\n', flush=True); time.sleep(60)"
    with output.open("wb") as file, subprocess.Popen([sys.executable, "-c", code], stdout=file) as process:
        try:
            until(lambda: supervisor.read_last_line(process.pid) == "two")
            until(lambda: not supervisor.wants_cpu(process.pid))
        finally:
            process.kill()
    assert supervisor.read_last_line(process.pid) == ""
    assert not supervisor.wants_cpu(process.pid)


def test_threads_of_children_are_seen_and_pipes_are_left_alone() -> None:
    need("bash")
    busy = "import threading; t = threading.Thread(target=lambda: [0 for _ in iter(int, 1)]); t.start(); t.join()"
    command = ["bash", "-c", f'"{sys.executable}" -c "{busy}"; true']
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            until(lambda: supervisor.wants_cpu(process.pid))
            assert supervisor.read_last_line(process.pid) == ""
        finally:
            os.killpg(process.pid, 9)


def test_a_watcher_sees_the_run_and_ends_it(tmp_path: Path) -> None:
    samples: list[Sample] = []

    def watcher(sample: Sample) -> None:
        samples.append(sample)
        if b"two" in b"".join(sample.output for sample in samples):
            raise TaskError("enough")

    sleeper = f"sleep 605.{os.getpid()}"
    code = "import os, sys, time\nprint('one', flush=True)\nwhile time.process_time() < 0.3: pass\n"
    command = [sys.executable, "-c", f"{code}print('two', flush=True)\nos.execvp('sleep', {sleeper.split()})"]
    with pytest.raises(TaskError, match="enough"):
        supervise(command, tmp_path, ProcessLimits(), env=os.environ, watcher=watcher)
    assert b"".join(sample.output for sample in samples) == b"one\ntwo\n"
    assert samples[-1].cpu_seconds > 0
    assert [s.wall_seconds for s in samples] == sorted(s.wall_seconds for s in samples)
    assert not running(sleeper)


def test_memory_is_counted_after_the_first_thread_has_ended(tmp_path: Path) -> None:
    code = "import ctypes, os, threading, time\ndef hold():\n x = bytearray(b'x') * 300_000_000\n time.sleep(60)\n"
    code += "threading.Thread(target=hold).start()\n"
    code += "ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)"
    limits = ProcessLimits(memory_bytes=200_000_000)
    assert supervise([sys.executable, "-c", code], tmp_path, limits, env=os.environ).limit == "memory"


@given(st.floats(0, 1), st.floats(0, 1))
def test_idle_is_who_neither_uses_nor_wants_cpu_time(share: float, ready: float) -> None:
    idle, random, seconds = supervisor._Idle(0.0), Random(7), 0.0
    for look in range(1, 400):
        seconds = idle.update(look / 4, share * look / 4, lambda: random.random() < ready)
    if share == ready == 0:
        assert seconds == 399 / 4
    if share > 0.1 or ready > 0.5:
        assert seconds < 30
