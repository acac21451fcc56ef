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


def usage(pid: int) -> Usage:
    """Return what the control group of a process has used."""
    places = _places(pid)
    cpu = 0.0
    if "cpuacct" in places:  # version 1
        with suppress(OSError, ValueError):
            cpu = int((places["cpuacct"] / "cpuacct.usage").read_text()) / 1e9
    elif "" in places:
        cpu = _field(places[""] / "cpu.stat", "usage_usec") / 1e6
    memory = places.get("memory")
    killed = memory / "memory.oom_control" if memory else places.get("", _ROOT) / "memory.events"
    return Usage(cpu, _field(killed, "oom_kill"))


def _places(pid: int) -> dict[str, Path]:
    """Return the group's directory by controller; "" is version 2, which has one for all."""
    found = {}
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                found[controller] = _ROOT / controllers / path.lstrip("/")
    return found


def _field(path: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{name} "):
                return int(line.split()[1])
    return 0
