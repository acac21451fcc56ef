"""The sandbox: what gets in, what gets out, and that nothing outlives it. Attempts to escape are real commands."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools import need, running, until
from valve_plugin.config import Settings
from valve_plugin.errors import SandboxError
from valve_plugin.records import Task
from valve_plugin.sandbox import bubblewrap as sandboxes
from valve_plugin.sandbox import environment
from valve_plugin.sandbox import workspace as workspaces
from valve_plugin.sandbox.bubblewrap import Sandbox, UnsafeLocal
from valve_plugin.sandbox.supervisor import MIB, ProcessLimits
from valve_plugin.sandbox.workspace import Workspace
from valve_plugin.tasks.repository import PreparedRepository


def test_runs_commands_in_the_tree_with_little_else(
    any_sandbox: Sandbox, place: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-secret")
    done = any_sandbox.run("pwd; ls; echo to-stderr >&2; python -c 'import calc.ops'; env; exit 3", place)
    text = done.output.decode()
    assert (done.returncode, done.limit) == (3, "")
    assert text.splitlines()[0] == ("/testbed" if any_sandbox.root else str(place.path))
    assert "pytest.ini" in text
    assert "to-stderr" in text
    assert "sk-secret" not in text
    assert "Traceback" not in text
    assert any_sandbox.run(["cat"], place, stdin=b"x" * 1_000_000).output == b"x" * 1_000_000
    any_sandbox.run("echo 1 > ~/kept; echo 2 > $TMPDIR/kept", place)
    assert any_sandbox.run("cat ~/kept $TMPDIR/kept", place).output == b"1\n2\n", "from command to command"
    done = any_sandbox.run("echo x >> README.md && git commit -qam work && git log --format=%s && git status -s", place)
    assert done.output == b"work\nInitial commit\n"


def test_output_is_cut_without_a_deadlock(any_sandbox: Sandbox, place: Workspace) -> None:
    done = any_sandbox.run("head -c 50000000 /dev/zero; echo end", place, limits=ProcessLimits(output_bytes=1000))
    assert (done.output, done.truncated, done.returncode) == (b"\0" * 1000, True, 0)


@pytest.mark.parametrize(
    ("command", "limits", "limit"),
    [
        pytest.param("while :; do :; done", ProcessLimits(cpu_seconds=1), "cpu", marks=pytest.mark.heavy),
        ("for i in 1 2 3 4; do (while :; do :; done) & done; wait", ProcessLimits(cpu_seconds=1), "cpu"),
        ("exec >&- 2>&-; while :; do :; done", ProcessLimits(cpu_seconds=1), "cpu"),
        ("sleep 100", ProcessLimits(wall_seconds=1), "wall"),
    ],
    ids=["one process", "all together", "without output", "sleeping"],
)
def test_time_limits(any_sandbox: Sandbox, place: Workspace, command: str, limits: ProcessLimits, limit: str) -> None:
    done = any_sandbox.run(command, place, limits=limits)
    assert (done.limit, done.timed_out) == (limit, True)


def test_one_process_cannot_take_all_memory(any_sandbox: Sandbox, place: Workspace) -> None:
    command = [sys.executable, "-c", "x = bytearray(2 * 10**9)"]
    done = any_sandbox.run(command, place, limits=ProcessLimits(memory_bytes=512 * MIB), readonly=[Path(sys.prefix)])
    assert b"MemoryError" in done.output
    need("choom")
    assert any_sandbox.run("cat /proc/self/oom_score_adj", place).output == b"1000\n", "the kernel kills it first"


def test_many_processes_cannot_take_all_memory_together(sandbox: Sandbox, place: Workspace) -> None:
    one = "python3 -c \"x = b'1' * 150_000_000; import time; time.sleep(60)\" & "
    limits = ProcessLimits(memory_bytes=400 * MIB, wall_seconds=100)
    assert sandbox.run(one * 4 + "wait -n", place, limits=limits).limit == "memory"


def test_filling_the_disk_or_shared_memory_is_stopped(sandbox: Sandbox, place: Workspace) -> None:
    command = "for i in $(seq 1000); do head -c 20M /dev/zero > ~/$i || exit; done"
    assert sandbox.run(command, place, limits=ProcessLimits(disk_bytes=100 * MIB)).limit == "disk"
    assert sandbox.run("head -c 20M /dev/zero > big", place, limits=ProcessLimits(file_bytes=1 * MIB)).returncode != 0
    assert sandbox.run("truncate -s 20M hole", place, limits=ProcessLimits(file_bytes=1 * MIB)).returncode != 0
    assert not (place.path / "hole").exists() or not (place.path / "hole").stat().st_size, "a hole has a length, too"
    done = sandbox.run("rm -f ~/*; head -c 400M /dev/zero > /dev/shm/x; stat -c %s /dev/shm/x", place)
    assert int(done.output.split()[-1]) <= 256 * MIB


@pytest.mark.parametrize("processes", [20, 60])
def test_a_fork_bomb_is_bounded(sandbox: Sandbox, place: Workspace, processes: int) -> None:
    count = "import os, time\nn = 0\ntry:\n    while n < 500:\n        if os.fork() == 0: time.sleep(60)\n"
    count += "        n += 1\nexcept OSError: pass\nprint(n)"
    done = sandbox.run(["python3", "-c", count], place, limits=ProcessLimits(processes=processes, cpu_seconds=20))
    assert 0 < int(done.output) < processes


def test_the_host_s_files_cannot_be_read_or_written(
    sandbox: Sandbox, place: Workspace, calc_task: tuple[PreparedRepository, Task]
) -> None:
    prepared, _ = calc_task
    ssh, here = Path.home() / ".ssh", Path(__file__)
    for path in (prepared.store, prepared.folder, place.root, ssh, here, "/var/lib"):
        assert sandbox.run(f"ls {path} && cat {path}", place).returncode != 0, path
    visible = sandbox.run("ls /etc /home / /root 2>&1; cat /etc/passwd /etc/shadow 2>&1", place).output.decode()
    assert "root:" not in visible.replace("/root:", "")
    inside = [f"{prepared.venv}/x", f"{prepared.venv}/bin/python"]
    for target in ("/usr/x", "/etc/x", "/x", *inside, "/testbed/../x", "/dev/x", "/home/x"):
        assert sandbox.run(f"echo x > {target}", place).returncode != 0, target
    assert not (prepared.venv / "x").exists()


def test_names_of_user_and_host_are_known(sandbox: Sandbox, place: Workspace) -> None:
    code = "import pwd, os, socket; print(pwd.getpwuid(os.getuid()).pw_name, socket.gethostbyname('localhost'))"
    code += "; s = socket.create_server(('localhost', 0)); socket.create_connection(s.getsockname())"
    assert sandbox.run(["python3", "-c", code], place).output == b"agent 127.0.0.1\n"


def test_the_person_s_umask_changes_nothing_inside(sandbox: Sandbox, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        tmp_path.chmod(0o755)
        python = environment.create(tmp_path / "venv", Path(sys.executable), [], lambda _: None)
        needed = [tmp_path / "venv", environment.base_prefix(tmp_path / "venv")]
        for umask in (0o077, 0):
            os.umask(umask)
            with workspaces.open_workspace(readonly=needed) as place:
                done = sandbox.run(f"umask; cat /etc/passwd /etc/hosts; {python} -c 'print(42)'", place)
            lines = done.output.decode().splitlines()
            assert (lines[0], lines[-1]) == ("0022", "42")
            assert len(lines) == 5
    finally:
        os.umask(before)


def test_proc_does_not_tell_of_the_host(sandbox: Sandbox, place: Workspace) -> None:
    done = sandbox.run("for f in keys key-users kcore timer_list; do head -c 100 /proc/$f; done 2>/dev/null", place)
    assert done.output == b""


def test_no_server_can_be_reached(sandbox: Sandbox, place: Workspace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 3)"
        assert sandbox.run(["python3", "-c", code], place).returncode != 0
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_the_host_s_processes_and_terminal_are_out_of_reach(sandbox: Sandbox, place: Workspace) -> None:
    seen = sandbox.run("ls /proc | grep -c '^[0-9]'; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'", place)
    lines = seen.output.decode().splitlines()
    assert int(lines[0]) < 10
    assert not [line for line in lines if line.startswith(("VALVE_", "PYTEST_"))]
    assert sandbox.run(f"kill -9 {os.getpid()}", place).returncode != 0
    code = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSTI, b'x')"
    assert sandbox.run(["python3", "-c", code], place).returncode != 0


def test_privileges_cannot_be_regained(sandbox: Sandbox, place: Workspace) -> None:
    command = "id -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status; mount -t tmpfs x /testbed; unshare -r id"
    lines = sandbox.run(command, place).output.decode().splitlines()
    assert lines[0] != "0"
    assert "CapEff:\t0000000000000000" in lines
    assert "NoNewPrivs:\t1" in lines
    assert sandbox.run("chown 0 calc && chmod 4755 calc/ops.py && stat -c %u calc", place).output != b"0\n"


def test_nothing_outlives_a_command(any_sandbox: Sandbox, place: Workspace) -> None:
    marker = f"sleep 987{os.getpid()}.25"
    done = any_sandbox.run(f"{marker} & setsid {marker} & echo started", place)
    assert done.output.strip().endswith(b"started")
    until(lambda: not running(marker))
    any_sandbox.run(f"setsid {marker} & sleep 100", place, limits=ProcessLimits(wall_seconds=2))
    until(lambda: not running(marker))


PARENT = """
from valve_plugin.config import Settings
from valve_plugin.sandbox import bubblewrap, workspace
with workspace.open_workspace() as place:
    (place.home / 'left').touch()
    print(place.home / 'left', flush=True)
    bubblewrap.choose(Settings()).run('{marker}', place)
"""


def test_nothing_outlives_a_killed_parent(sandbox: Sandbox) -> None:
    marker = f"sleep 988{os.getpid()}.25"
    code = PARENT.format(marker=marker)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        left = Path(parent.stdout.readline().strip())
        until(lambda: running(marker))
        parent.send_signal(signal.SIGKILL)
    until(lambda: not running(marker))
    assert left.exists()  # nobody was there to remove it
    with workspaces.open_workspace():
        assert not left.exists()


def test_a_command_cannot_pass_for_a_broken_sandbox_nor_the_other_way(sandbox: Sandbox, place: Workspace) -> None:
    done = sandbox.run("echo 'bwrap: Creating new namespace failed' >&2; exit 1", place)
    assert done.returncode == 1
    with pytest.raises(SandboxError, match="bubblewrap failed: bwrap: "):
        sandbox.run("true", place, readonly=[Path("/no/such/place")])


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Path]:
    """A folder for PATH; what is known of bubblewrap is asked anew."""
    sandboxes.bubblewrap_problem.cache_clear()
    yield tmp_path
    sandboxes.bubblewrap_problem.cache_clear()


def test_without_bubblewrap_it_refuses_or_runs_plainly(monkeypatch: pytest.MonkeyPatch, tools: Path) -> None:
    monkeypatch.setenv("PATH", str(tools))
    with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
        sandboxes.choose(Settings())
    assert isinstance(sandboxes.choose(Settings(unsafe_local=True)), UnsafeLocal)


def test_a_bubblewrap_that_does_not_work_here_says_so(monkeypatch: pytest.MonkeyPatch, tools: Path) -> None:
    (tools / "bwrap").write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    (tools / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    with pytest.raises(SandboxError, match="No permissions to create new namespace"):
        sandboxes.choose(Settings())
