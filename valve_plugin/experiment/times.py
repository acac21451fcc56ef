"""What a run's learning took, evaluation excluded: noted line by line, so that a hard stop loses nothing that ended."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pluggy

from valve_plugin.bank.files import append_shared, make_dir, read_limited
from valve_plugin.codec import canonical, decode
from valve_plugin.errors import BankNotFoundError, RecordError
from valve_plugin.hookspecs import hookimpl

FILE = "times.jsonl"
OLD = "times.json"
"""Written at the end of a process by versions before: read, and added to."""
_MAX_BYTES = 1 << 30


class Noted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line: a rollout that was seen, or only that a process was at work until then."""

    process: str
    """Made up anew by each start."""
    wall: float
    """Seconds since that start."""
    rollout: str = ""
    """All that tells it from the run's others; it counts once, also where it comes out of the journal again."""
    seconds: float = 0.0


class Taken(NamedTuple):
    """What learning took so far."""

    rollouts: dict[str, float]
    """Seconds of every rollout seen, those shared with other runs included."""
    wall_seconds: float
    """Of all starts together. What a killed one did after its last rollout is not in it."""


class Times(AbstractContextManager["Times"]):
    """Notes every rollout of evolution and gate as it ends."""

    def __init__(self, manager: pluggy.PluginManager, folder: Path) -> None:
        self._manager, self._file = manager, folder / FILE
        self._known = set(read(folder).rollouts)

    def __enter__(self) -> Times:
        make_dir(self._file.parent)
        self._process, self._started = os.urandom(8).hex(), time.monotonic()
        self._manager.register(self)
        return self

    def __exit__(self, *about: object) -> None:
        self._manager.unregister(self)
        self._note()

    @hookimpl
    def valve_event(self, name: str, data: Mapping[str, Any]) -> None:
        """Note one rollout, unless it was seen before."""
        if name not in ("attempt_finished", "rollout_finished") or data["source"] == "eval":
            return
        rollout = f"{data['source']} {data['task_id']} {data['ordinal']} {data['context_hash'][:16]}"
        if data["outcome"] == "errored":  # it is tried again under the same name, and took its time too
            rollout += f" errored {data['seconds']}"
        if rollout not in self._known:
            self._known.add(rollout)
            self._note(rollout, data["seconds"])

    def _note(self, rollout: str = "", seconds: float = 0.0) -> None:
        wall = round(time.monotonic() - self._started, 3)
        append_shared(self._file, canonical(Noted(process=self._process, wall=wall, rollout=rollout, seconds=seconds)))


def read(folder: Path) -> Taken:
    """Return what a run's learning took so far. A line torn by a kill is passed over."""
    rollouts, walls = _old(folder / OLD)
    try:
        lines = read_limited(folder / FILE, _MAX_BYTES, "times").splitlines()
    except BankNotFoundError:
        lines = []
    for number, line in enumerate(lines, start=1):
        try:
            noted = decode(line, Noted, where=f"{FILE}: line {number}") if line else None
        except RecordError:
            continue
        if noted:
            walls[noted.process] = max(noted.wall, walls.get(noted.process, 0.0))
            if noted.rollout:
                rollouts[noted.rollout] = noted.seconds
    return Taken(rollouts, sum(walls.values()))


def _old(file: Path) -> tuple[dict[str, float], dict[str, float]]:
    try:
        found = decode(read_limited(file, _MAX_BYTES, "times"), dict[str, Any], where=str(file))
    except BankNotFoundError:
        return {}, {}
    return dict(found.get("rollouts", {})), {OLD: float(found.get("wall_seconds", 0.0))}
