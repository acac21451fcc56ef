"""What a control group has used: the kernel's own sums over every process that was ever in a container."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_ROOT = Path("/sys/fs/cgroup")


class Usage(NamedTuple):
    """Totals since the group was made; 0 where this machine cannot tell."""

    cpu_seconds: float = 0.0
    killed: int = 0
    """Processes ended because the group's memory was used up."""


class Group:
    """The control group a process is in while this is made; the process may end afterwards, and be forgotten."""

    def __init__(self, pid: int) -> None:
        self._places = _places(pid)

    def usage(self) -> Usage:
        """Return what the group has used so far."""
        places = self._places
        cpu = 0.0
        if "cpuacct" in places:  # version 1
            with suppress(OSError, ValueError):
                cpu = int((places["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
        elif "" in places:
            cpu = _field(places[""] / "cpu.stat", "usage_usec") / 1e6
        if "memory" in places:
            return Usage(cpu, _field(places["memory"] / "memory.oom_control", "oom_kill"))
        return Usage(cpu, _field(places[""] / "memory.events", "oom_kill") if "" in places else 0)


def _places(pid: int) -> dict[str, Path]:
    """Return the group's directory by controller; "" is version 2, which has one for all.

    A process that has ended and was not waited for is in the root group, whose sums are the whole machine's: no answer.
    """
    found: dict[str, Path] = {}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if path != "/":
                found |= {controller: _ROOT / controllers / path.lstrip("/") for controller in controllers.split(",")}
    return found


def _field(path: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0
