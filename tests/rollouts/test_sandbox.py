"""The sandbox: what gets in, what gets out, and that nothing outlives it. Attempts to escape are real commands."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.tools import need
from valve_plugin.config import Settings
from valve_plugin.errors import SandboxError
from valve_plugin.records import Task
from valve_plugin.rollouts import sandbox as sandboxes
from valve_plugin.rollouts import workspace as workspaces
from valve_plugin.rollouts.limits import MIB, Limits
from valve_plugin.rollouts.sandbox import Bubblewrap, Sandbox, UnsafeLocal
from valve_plugin.rollouts.workspace import Workspace
from valve_plugin.tasks.repository import Prepared

QUICK = Limits(cpu_seconds=10, wall_seconds=60)


@pytest.fixture(params=["bubblewrap", "unsafe-local"])
def any_sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """Either way of running commands."""
    if request.param == "unsafe-local":
        need("prlimit")
        return UnsafeLocal()
    need("bwrap")
    return Bubblewrap()


@pytest.fixture
def sandbox() -> Sandbox:
    """Bubblewrap."""
    need("bwrap")
    return sandboxes.choose(Settings())


@pytest.fixture
def place(calc_task: tuple[Prepared, Task]) -> Iterator[Workspace]:
    """An open workspace."""
    with workspaces.open(*calc_task) as workspace:
        yield workspace


def test_runs_commands_in_the_tree_with_little_else(any_sandbox: Sandbox, place: Workspace) -> None:
    os.environ["SOME_API_KEY"] = "sk-secret"
    try:
        done = any_sandbox.run("pwd; ls; echo to-stderr >&2; python -c 'import calc.ops'; env; exit 3", place)
    finally:
        del os.environ["SOME_API_KEY"]
    text = done.output.decode()
    assert done.returncode == 3
    assert done.limit == ""
    assert text.splitlines()[0] == ("/testbed" if any_sandbox.root else str(place.path))
    assert "pytest.ini" in text
    assert "to-stderr" in text
    assert "sk-secret" not in text
    assert "Traceback" not in text


def test_a_list_is_run_as_it_is_with_input(any_sandbox: Sandbox, place: Workspace) -> None:
    assert any_sandbox.run(["cat"], place, stdin=b"x" * 1_000_000).output == b"x" * 1_000_000


def test_home_and_tmp_last_from_command_to_command(any_sandbox: Sandbox, place: Workspace) -> None:
    any_sandbox.run("echo 1 > ~/kept; echo 2 > $TMPDIR/kept", place)
    assert any_sandbox.run("cat ~/kept $TMPDIR/kept", place).output == b"1\n2\n"


def test_git_works_as_the_agent_expects(any_sandbox: Sandbox, place: Workspace) -> None:
    done = any_sandbox.run("echo x >> README.md && git commit -qam work && git log --format=%s && git status -s", place)
    assert done.output == b"work\nInitial commit\n"


def test_output_is_cut_without_a_deadlock(any_sandbox: Sandbox, place: Workspace) -> None:
    done = any_sandbox.run("head -c 50000000 /dev/zero; echo end", place, limits=Limits(output_bytes=1000))
    assert done.output == b"\0" * 1000
    assert done.truncated
    assert done.returncode == 0


def test_computing_too_long_is_a_cpu_limit(any_sandbox: Sandbox, place: Workspace) -> None:
    started = time.monotonic()
    done = any_sandbox.run("while :; do :; done", place, limits=Limits(cpu_seconds=1))
    assert (done.limit, done.timed_out) == ("cpu", True)
    assert time.monotonic() - started < 30


def test_children_count_together(any_sandbox: Sandbox, place: Workspace) -> None:
    command = "for i in 1 2 3 4; do (while :; do :; done) & done; wait"
    assert any_sandbox.run(command, place, limits=Limits(cpu_seconds=1)).limit == "cpu"


def test_sleeping_too_long_is_a_wall_limit(any_sandbox: Sandbox, place: Workspace) -> None:
    done = any_sandbox.run("sleep 100", place, limits=Limits(wall_seconds=1))
    assert (done.limit, done.timed_out) == ("wall", True)


def test_one_process_cannot_take_all_memory(any_sandbox: Sandbox, place: Workspace) -> None:
    command = [sys.executable, "-c", "x = bytearray(2 * 10**9)"]
    done = any_sandbox.run(command, place, limits=Limits(memory_bytes=512 * MIB), readonly=[Path(sys.prefix)])
    assert b"MemoryError" in done.output


def test_many_processes_cannot_take_all_memory_together(sandbox: Sandbox, place: Workspace) -> None:
    one = "python3 -c \"x = b'1' * 150_000_000; import time; time.sleep(30)\" & "
    assert (
        sandbox.run(one * 4 + "wait", place, limits=Limits(memory_bytes=400 * MIB, wall_seconds=25)).limit == "memory"
    )


def test_what_runs_inside_is_the_first_to_go_where_the_machine_has_no_memory_left(
    any_sandbox: Sandbox, place: Workspace
) -> None:
    need("choom")
    assert any_sandbox.run("cat /proc/self/oom_score_adj", place).output == b"1000\n"


def test_filling_the_disk_is_stopped(sandbox: Sandbox, place: Workspace) -> None:
    command = "for i in $(seq 1000); do head -c 20M /dev/zero > ~/$i || exit; done"
    done = sandbox.run(command, place, limits=Limits(disk_bytes=100 * MIB))
    assert done.limit == "disk"
    assert sandbox.run("head -c 20M /dev/zero > big", place, limits=Limits(file_bytes=1 * MIB)).returncode != 0
    assert sandbox.run("truncate -s 20M hole", place, limits=Limits(file_bytes=1 * MIB)).returncode != 0
    assert not (place.path / "hole").exists() or not (place.path / "hole").stat().st_size, "a hole has a length, too"


def test_shared_memory_is_bounded_too(sandbox: Sandbox, place: Workspace) -> None:
    done = sandbox.run("head -c 400M /dev/zero > /dev/shm/x; stat -c %s /dev/shm/x", place)
    assert int(done.output.split()[-1]) <= 256 * MIB


@pytest.mark.parametrize("processes", [20, 60])
def test_a_fork_bomb_is_bounded(sandbox: Sandbox, place: Workspace, processes: int) -> None:
    count = "import os, time\nn = 0\ntry:\n    while n < 500:\n        if os.fork() == 0: time.sleep(60)\n"
    count += "        n += 1\nexcept OSError: pass\nprint(n)"
    done = sandbox.run(["python3", "-c", count], place, limits=Limits(processes=processes, cpu_seconds=20))
    assert 0 < int(done.output) < processes


def test_the_hosts_files_are_not_there(sandbox: Sandbox, place: Workspace, calc_task: tuple[Prepared, Task]) -> None:
    prepared, _ = calc_task
    secrets = [
        prepared.store,
        Path(prepared.folder),
        place.root,
        Path.home() / ".ssh",
        Path(__file__),
        Path("/var/lib"),
    ]
    for path in secrets:
        done = sandbox.run(f"ls {path} && cat {path}", place)
        assert done.returncode != 0, path
    visible = sandbox.run("ls /etc /home / /root 2>&1; cat /etc/passwd /etc/shadow 2>&1", place).output.decode()
    assert "root:" not in visible.replace("/root:", "")


def test_names_of_user_and_host_are_known(sandbox: Sandbox, place: Workspace) -> None:
    code = "import pwd, os, socket; print(pwd.getpwuid(os.getuid()).pw_name, socket.gethostbyname('localhost'))"
    code += "; s = socket.create_server(('localhost', 0)); socket.create_connection(s.getsockname())"
    assert sandbox.run(["python3", "-c", code], place).output == b"agent 127.0.0.1\n"


def test_writing_outside_is_refused(sandbox: Sandbox, place: Workspace, calc_task: tuple[Prepared, Task]) -> None:
    prepared, _ = calc_task
    for target in (
        "/usr/x",
        "/etc/x",
        "/x",
        f"{prepared.venv}/x",
        f"{prepared.venv}/bin/python",
        "/testbed/../x",
        "/dev/x",
        "/home/x",
    ):
        done = sandbox.run(f"echo x > {target}", place)
        assert done.returncode != 0, target
    assert not (prepared.venv / "x").exists()


def test_no_server_can_be_reached(sandbox: Sandbox, place: Workspace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}), 3)"
        assert sandbox.run(["python3", "-c", code], place).returncode != 0
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_the_hosts_processes_are_not_visible(sandbox: Sandbox, place: Workspace) -> None:
    seen = sandbox.run("ls /proc | grep -c '^[0-9]'; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'", place)
    lines = seen.output.decode().splitlines()
    assert int(lines[0]) < 10
    assert not [line for line in lines if line.startswith(("VALVE_", "PYTEST_"))]
    assert sandbox.run(f"kill -9 {os.getpid()}", place).returncode != 0


def test_privileges_cannot_be_regained(sandbox: Sandbox, place: Workspace) -> None:
    done = sandbox.run(
        "id -u; grep -E 'CapEff|NoNewPrivs' /proc/self/status; mount -t tmpfs x /testbed; unshare -r id", place
    )
    lines = done.output.decode().splitlines()
    assert lines[0] != "0"
    assert "CapEff:\t0000000000000000" in lines
    assert "NoNewPrivs:\t1" in lines
    assert sandbox.run("chown 0 calc && chmod 4755 calc/ops.py && stat -c %u calc", place).output != b"0\n"


def test_the_users_terminal_cannot_be_typed_into(sandbox: Sandbox, place: Workspace) -> None:
    code = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSTI, b'x')"
    assert sandbox.run(["python3", "-c", code], place).returncode != 0


def test_nothing_outlives_a_command(any_sandbox: Sandbox, place: Workspace) -> None:
    marker = f"sleep {987_000 + os.getpid() % 1000}.25"
    done = any_sandbox.run(f"{marker} & setsid {marker} & echo started", place)
    assert done.output.strip().endswith(b"started")
    most = 1 if any_sandbox.name == "unsafe-local" else 0  # setsid hides from a process group, not from a namespace
    deadline = time.monotonic() + 5
    while len(_running(marker)) > most and time.monotonic() < deadline:
        time.sleep(0.05)
    left = _running(marker)
    for process in left:
        process.kill()
    assert len(left) <= most


def test_nothing_outlives_a_killed_parent(place: Workspace, sandbox: Sandbox, tmp_path: Path) -> None:
    marker = f"sleep {988_000 + os.getpid() % 1000}.25"
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys\n"
        "from tests.rollouts import calc\n"
        "from pathlib import Path\n"
        "from valve_plugin.config import Settings\n"
        "from valve_plugin.rollouts import sandbox, workspace\n"
        "with workspace.empty() as place:\n"
        "    (place.home / 'left').touch()\n"
        "    print(place.home / 'left', flush=True)\n"
        f"    sandbox.choose(Settings()).run('{marker}', place)\n"
    )
    root = str(Path(__file__).parents[2])
    env = {**os.environ, "PYTHONPATH": root}
    with subprocess.Popen([sys.executable, str(script)], env=env, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        left = Path(parent.stdout.readline().strip())
        while not _running(marker):
            time.sleep(0.05)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while _running(marker) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _running(marker)
    assert left.exists()  # nobody was there to remove it
    with workspaces.empty():
        assert not left.exists()


def test_a_command_cannot_pass_for_a_broken_sandbox(sandbox: Sandbox, place: Workspace) -> None:
    done = sandbox.run("echo 'bwrap: Creating new namespace failed' >&2; exit 1", place)
    assert done.returncode == 1


def test_a_sandbox_that_cannot_be_set_up_is_the_hosts_fault(sandbox: Sandbox, place: Workspace) -> None:
    with pytest.raises(SandboxError, match="bubblewrap failed: bwrap: "):
        sandbox.run("true", place, readonly=[Path("/no/such/place")])


def test_works_from_threads_at_once(sandbox: Sandbox, calc_task: tuple[Prepared, Task]) -> None:
    outputs: list[bytes] = []

    def one(number: int) -> None:
        with workspaces.open(*calc_task) as workspace:
            outputs.append(sandbox.run(f"echo {number} > mine; sleep 0.2; cat mine", workspace).output)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outputs) == [b"0\n", b"1\n", b"2\n", b"3\n"]


def test_without_bubblewrap_it_refuses_or_runs_plainly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sandboxes.bubblewrap_fails.cache_clear()
    try:
        with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
            sandboxes.choose(Settings())
        assert isinstance(sandboxes.choose(Settings(unsafe_local=True)), UnsafeLocal)
    finally:
        sandboxes.bubblewrap_fails.cache_clear()


def test_a_bubblewrap_that_does_not_work_here_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    sandboxes.bubblewrap_fails.cache_clear()
    try:
        with pytest.raises(SandboxError, match="No permissions to create new namespace"):
            sandboxes.choose(Settings())
    finally:
        sandboxes.bubblewrap_fails.cache_clear()


def _running(command: str) -> list[psutil.Process]:
    wanted = command.split()
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == wanted]
