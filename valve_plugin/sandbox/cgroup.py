"""Control groups: what the processes of a command use together, and a limit on their memory of every kind."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/sys/fs/cgroup")
_LIMITS = ("memory.max", "memory.limit_in_bytes")  # version 2, version 1
_NO_SWAP = ("memory.swap.max", "0"), ("memory.memsw.limit_in_bytes", "{}")
_SECONDS = 10.0  # for the kernel to let go of a group whose processes have ended


class Usage(NamedTuple):
    """Totals of a control group; 0 if this machine does not report them."""

    cpu_seconds: float = 0.0
    killed: int = 0
    """Processes killed because the group's memory limit was reached."""


class ControlGroup:
    """The control group of a process, with the kernel's totals over all processes that were ever in it.

    The process may end after this object is made.
    """

    def __init__(self, pid: int, *, root: bool = False) -> None:
        # By controller; "" is version 2, which has one group for all. The root group is ignored: a zombie process is
        # in it, and its totals are those of the whole machine.
        self.folders: dict[str, Path] = {}
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
                _, controllers, path = line.split(":", 2)
                if root or path != "/":
                    for controller in controllers.split(","):
                        self.folders[controller] = Path(_ROOT, controllers, path.lstrip("/"))

    def processes(self) -> list[int]:
        """Return the processes that are in the group now."""
        for folder in dict.fromkeys(self.folders.values()):
            with suppress(OSError):
                return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
        return []

    def usage(self) -> Usage:
        """Return what the group has used so far."""
        folders, unified = self.folders, self.folders.get("")
        counter = folders.get("cpuacct") or unified
        cpu = _cpu_seconds(counter) if counter else 0.0
        if "memory" in folders:
            return Usage(cpu, _field(folders["memory"] / "memory.oom_control", "oom_kill"))
        return Usage(cpu, _field(unified / "memory.events", "oom_kill") if unified else 0)


def _cpu_seconds(folder: Path) -> float:
    with suppress(OSError, ValueError):  # version 1
        return int((folder / "cpuacct.usage").read_text()) / 1e9
    return _field(folder / "cpu.stat", "usage_usec") / 1e6


def _field(path: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0


class MemoryGroup(NamedTuple):
    """A control group that limits memory."""

    folder: Path
    counter: Path
    """The group that counts CPU time; another one in version 1."""

    def enter(self, command: list[str]) -> list[str]:
        """Return a command line that runs `command` and all its processes in this group."""
        groups = [str(folder / "cgroup.procs") for folder in self]
        return ["/bin/sh", "-c", 'echo 0 >"$0" && echo 0 >"$1" && shift && exec "$@"', *groups, *command]

    def cpu_seconds(self) -> float:
        """Return the CPU time of all processes that were ever in it, also of those that nobody waited for."""
        return _cpu_seconds(self.counter)

    def killed(self) -> int:
        """Return how many processes the kernel has killed because the limit was reached."""
        events = self.folder / "memory.events"
        return _field(events if events.exists() else self.folder / "memory.oom_control", "oom_kill")


@contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup | None]:
    """Yield a new group for one command, or None where this process cannot make one. Without processes it is removed.

    It counts what limits of single processes and their resident memory do not: buffers of sockets and pipes, files in
    memory, the kernel's own memory for them.

    Args:
        limit: bytes of memory, swap included.
    """
    group = next((group for parent in _parents() if (group := _make_group(parent, limit))), None)
    try:
        yield group
    finally:
        end = time.monotonic() + _SECONDS
        while group and [folder for folder in group if not _removed(folder)] and time.monotonic() < end:
            time.sleep(0.005)


def _make_group(parent: Path, limit: int) -> MemoryGroup | None:
    folder = counter = parent / f"valve-{os.getpid()}-{secrets.token_hex(4)}"
    with suppress(OSError):
        _make(folder)
        for name in _LIMITS:
            with suppress(OSError):  # the other version of control groups
                _write(folder / name, str(limit))
                for other, value in _NO_SWAP:
                    with suppress(OSError):  # a kernel that does not count swap
                        _write(folder / other, value.format(limit))
                if "cpuacct" in (own := ControlGroup(os.getpid(), root=True).folders):
                    counter = own["cpuacct"] / folder.name
                    _make(counter)
                return MemoryGroup(folder, counter)
        _removed(folder)
    return None


def _make(folder: Path) -> None:
    for left in folder.parent.glob("valve-*-*"):  # of a killed process
        if not Path("/proc", left.name.split("-")[1]).exists():
            _removed(left)
    folder.mkdir()


def _write(path: Path, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _parents() -> list[Path]:
    """Return groups in which this process may make another: its own and, as version 2 wants it, the one above."""
    own = ControlGroup(os.getpid(), root=True).folders
    folder = own.get("memory") or own.get("")
    if folder is None:
        return []
    above = [folder.parent] if "memory" not in own and folder != _ROOT else []
    return [place for place in (*above, folder) if os.access(place, os.W_OK)]


def _removed(folder: Path) -> bool:
    with suppress(OSError):
        folder.rmdir()
    return not folder.exists()
