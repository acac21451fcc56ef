"""No agent can make its rollout count as the host's failure; the table is run in bubblewrap here."""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sandbox.mischief import LIMITS, MISCHIEF, UNNAMED
from tests.tools import missing, some
from valve_plugin.codec import canonical
from valve_plugin.config import Settings
from valve_plugin.errors import TaskError
from valve_plugin.records import Task
from valve_plugin.sandbox import bubblewrap
from valve_plugin.sandbox import workspace as workspaces
from valve_plugin.sandbox.bubblewrap import Sandbox
from valve_plugin.sandbox.cgroup import MemoryGroup, memory_group
from valve_plugin.sandbox.supervisor import MIB, ProcessLimits, Sample
from valve_plugin.sandbox.workspace import Workspace
from valve_plugin.tasks.grading.grade import Grade, grade
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.tasks.states import open_task

_QUICK = (
    *("working directory closed", "all folders closed", "working directory replaced by a link", "descriptors closed"),
    *("everybody killed", "odd names", "pipes and sockets", "NUL", "longer than an argument may be"),
)


@pytest.mark.parametrize("name", some(MISCHIEF, *_QUICK))
def test_an_agent_cannot_make_its_rollout_errored(
    sandbox: Sandbox, calc_task: tuple[PreparedRepository, Task], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspaces, "_IGNORE_CPU_SECONDS", 1)
    with open_task(*calc_task) as place:
        sandbox.run(MISCHIEF[name], place, limits=LIMITS)
        after = sandbox.run("echo still here", place)
        assert b"still here\n" in after.output or after.limit == "disk"
        try:
            patch = workspaces.diff(place)
        except TaskError as e:
            canonical(Grade(outcome="unresolved", reason=str(e)))
            return
    graded = grade(*calc_task, patch, Settings())
    canonical(graded)
    assert graded.outcome == "unresolved"


def test_a_closed_working_directory_can_be_opened_again(
    any_sandbox: Sandbox, calc_task: tuple[PreparedRepository, Task]
) -> None:
    with open_task(*calc_task) as place:
        any_sandbox.run("chmod 000 .", place)
        where = place.path if any_sandbox.root is None else any_sandbox.root
        any_sandbox.run(f"chmod 755 {where}", place)
        assert any_sandbox.run("pwd", place).output.decode().strip() == str(where)
        assert any_sandbox.run("pwd", place, cwd="no/such").output.endswith(b"\n/\n")


def test_nothing_is_written_after_a_command(sandbox: Sandbox, place: Workspace) -> None:
    """Processes that a command leaves behind have ended when the call returns."""
    writer = "for n in $(seq 40); do (setsid sh -c 'while :; do echo >> left; done' &) ; done; "
    writer += "until [ -s left ]; do sleep 0.05; done"
    for limits in (LIMITS, ProcessLimits(cpu_seconds=1)):
        sandbox.run(writer + ("; sleep 100" if limits is not LIMITS else ""), place, limits=limits)
        size = (place.path / "left").stat().st_size
        time.sleep(0.5)
        assert (place.path / "left").stat().st_size == size


LOCKS = """
import fcntl, os, resource, struct, time
most = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 20_000)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
file = os.open("locked", os.O_RDWR | os.O_CREAT)
last = fcntl.fcntl(file, fcntl.F_DUPFD, most - 1)
for n in range(3000, 0, -1):
    fcntl.fcntl(last, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 2 * n, 1, 0))
for _ in range(most - 20):
    os.dup(file)
open("ready", "w").write("x")
time.sleep(100)
"""


@pytest.mark.skipif(not hasattr(fcntl, "F_OFD_SETLK"), reason="no locks of open files")
def test_processes_that_end_slowly_are_the_agent_s_doing(
    sandbox: Sandbox, place: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel looks through all locks of a file for each descriptor that it closes."""
    monkeypatch.setattr(bubblewrap, "_END_SECONDS", 0.1)
    command = ["sh", "-c", 'python3 -c "$0" & until [ -s ready ]; do sleep 0.1; done', LOCKS]
    assert sandbox.run(command, place, limits=replace(LIMITS, cpu_seconds=60, wall_seconds=60)).limit == "wall"


@pytest.mark.parametrize("how", some(UNNAMED, "open", "mapped", "in the queue of a socket"))
def test_files_without_a_name_use_disk_space(sandbox: Sandbox, place: Workspace, how: str) -> None:
    limits = replace(LIMITS, wall_seconds=60, cpu_seconds=60)
    assert sandbox.run(UNNAMED[how], place, limits=limits).limit == "disk"


PASSING = """
import multiprocessing, os, socket, time
from multiprocessing.reduction import DupFd
def child(file):
    assert os.read(file.detach(), 3) == b"few"
if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    end, pair = time.monotonic() + 6, socket.socketpair()
    while time.monotonic() < end:
        with open("data", "rb") as file:
            socket.send_fds(pair[0], [b"x"], [file.fileno()])
        time.sleep(0.04)
        os.close(socket.recv_fds(pair[1], 1, 1)[1][0])
        time.sleep(0.04)
        for _ in range(2):
            with open("data", "rb") as file:
                process = context.Process(target=child, args=[DupFd(file.fileno())])
                process.start()
            process.join()
            assert process.exitcode == 0
    print("fine")
"""


@pytest.mark.heavy
def test_who_passes_descriptors_does_not_pay_for_a_disk_that_others_fill(
    sandbox: Sandbox, place: Workspace, tmp_path: Path
) -> None:
    (place.path / "passing.py").write_text(PASSING)
    (place.path / "data").write_text("few")
    filled = tmp_path / "others"

    def watcher(sample: Sample) -> None:
        with filled.open("ab") as file:
            file.write(b"x" * (20 * MIB))

    try:
        done = sandbox.run("python3 passing.py", place, limits=replace(LIMITS, wall_seconds=60), watcher=watcher)
        assert filled.stat().st_size > 5 * LIMITS.disk_bytes
    finally:
        filled.unlink()
    assert (done.limit, done.output) == ("", b"fine\n")


@pytest.fixture
def group() -> MemoryGroup:
    """A control group that is gone; another one can be made."""
    if os.geteuid():
        pytest.skip("a control group needs root here")
    with memory_group(MIB) as made:
        if made is None:
            missing("no control group can be made here")
    return made


UNAWAITED = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    if not os.fork():
        while time.process_time() < 0.1: pass
        os._exit(0)
    time.sleep(0.1)
"""


def test_children_that_nobody_waits_for_use_cpu_time(sandbox: Sandbox, place: Workspace, group: MemoryGroup) -> None:
    limits = ProcessLimits(cpu_seconds=1, wall_seconds=100)
    assert sandbox.run(["python3", "-c", UNAWAITED], place, limits=limits).limit == "cpu"
    assert not list(group.counter.parent.glob(f"valve-{os.getpid()}-*"))


def test_memory_of_sockets_is_limited(sandbox: Sandbox, place: Workspace, group: MemoryGroup) -> None:
    limits = ProcessLimits(memory_bytes=300 * MIB, cpu_seconds=30)
    assert sandbox.run("ulimit -n 20000; " + MISCHIEF["memory of sockets"], place, limits=limits).limit == "memory"
    assert not list(group.folder.parent.glob(f"valve-{os.getpid()}-*"))
