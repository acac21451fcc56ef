"""What a ledger measured completely, epoch by epoch: all that certificates and plans rest on.

Rejected proposals are left out on purpose: their panels were cut short where the outcome was already bad, so
they would flatter every estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from valve_plugin.bank.entries import (
    Baseline,
    Entry,
    EpochOpened,
    Judged,
    LeftOut,
    PanelFixed,
    Proposed,
    Remeasured,
    Taken,
)
from valve_plugin.bank.evaluated import Point, points, retires, sealed
from valve_plugin.bank.replay import Replay
from valve_plugin.errors import BankError
from valve_plugin.records import Panel, PanelOutcome, Verdict


class Complete(NamedTuple):
    """One bank's complete measurement on the panel."""

    what: str
    passes: tuple[int, ...]
    """Resolved rollouts per task, in panel order."""
    version: int
    outcomes: tuple[PanelOutcome, ...]
    again: bool = False
    """Measured for its own sake (A/A): unlike an accept, not chosen for being high."""


class Accepted(NamedTuple):
    """An accepted move."""

    verdict: Verdict
    version: int
    """Of the bank it led to."""
    number: int
    """k: which accept it is among all on this panel, from 1."""
    gain: Fraction
    """Panel gain, in rate units."""


@dataclass
class Epoch:
    """An epoch and what was measured in it."""

    opened: EpochOpened
    panel: Panel
    horizon: int
    """T: queries declared on this panel, in this epoch and those before it."""
    complete: list[Complete] = field(default_factory=list)
    """The baseline, if there is one yet, then each accept and each A/A measurement."""
    accepts: list[Accepted] = field(default_factory=list)
    queries: int = 0


@dataclass
class Measured:
    """A ledger's epochs, oldest first, and where its proposals came from."""

    epochs: list[Epoch] = field(default_factory=list)
    fixed: set[str] = field(default_factory=set)
    """Task ids of every panel that was fixed, whether anything was measured on it or not."""
    sources: set[str] = field(default_factory=set)
    """Task ids that proposals were learned from."""
    taken: int = 0
    """Moves made without a gate, all before the first epoch: versions 1 to this one."""

    read: int = 0
    """Line since which more of the panel is known than verdicts tell: items were left out one by one. 0: none."""
    chosen: int = 0
    """First line after it that is a person's choice of an item to retire; 0: there is none."""
    points: list[Point] = field(default_factory=list)
    """Checkpoints that were evaluated on the holdout."""
    sealed: tuple[bool | None, str] = (None, "no evaluation on a holdout is recorded, so gain and drawdown are unknown")
    """Whether the holdout was, and why."""

    def on_panel(self, panel_hash: str) -> list[Epoch]:
        """Return the epochs that used this panel."""
        return [e for e in self.epochs if e.opened.panel_hash == panel_hash]

    def complete(self, panel_hash: str) -> list[Complete]:
        """Return every complete measurement on this panel, oldest first."""
        return [c for epoch in self.on_panel(panel_hash) for c in epoch.complete]


def measured(entries: Iterable[Entry]) -> Measured:
    """Fold a ledger's entries.

    Raises:
        ValveError: an entry may not come where it is.
    """
    entries = list(entries)
    found, state = Measured(points=points(entries), sealed=sealed(entries)), Replay()
    for line, entry in enumerate(entries, 1):
        _read(found, line, entry)
        before = state.outcomes or ()
        state.feed(entry)
        if isinstance(entry, EpochOpened):
            found.epochs.append(_opened(found, state, entry))
        elif isinstance(entry, Proposed):
            found.sources |= {entry.proposal.task_id} | {note.task_id for note in entry.attempts}
        elif isinstance(entry, Taken):
            found.taken += 1
        elif isinstance(entry, Baseline):
            found.epochs[-1].complete.append(_complete(f"baseline of epoch {entry.epoch}", state))
        elif isinstance(entry, Remeasured):
            what = f"A/A of version {state.bank.version}"
            found.epochs[-1].complete.append(_counted(what, state, entry.result.outcomes, again=True))
        elif isinstance(entry, Judged):
            _judged(found, state, entry.verdict, before)
    return found


def _read(found: Measured, line: int, entry: Entry) -> None:
    if isinstance(entry, PanelFixed):
        found.read = found.chosen = 0
        found.fixed |= {task.instance_id for task in entry.panel.tasks}
    elif isinstance(entry, LeftOut):
        found.read = found.read or line
    elif found.read and not found.chosen and retires(entry):
        found.chosen = line


def _opened(found: Measured, state: Replay, entry: EpochOpened) -> Epoch:
    assert state.panel is not None  # replay refuses an epoch without one
    earlier = sum(e.opened.horizon for e in found.on_panel(entry.panel_hash))
    return Epoch(opened=entry, panel=state.panel, horizon=earlier + entry.horizon)


def _judged(found: Measured, state: Replay, verdict: Verdict, before: tuple[PanelOutcome, ...]) -> None:
    epoch = found.epochs[-1]
    epoch.queries = state.queries
    if verdict.decision != "accept":
        return
    after = _complete(f"accept at query {verdict.query} of epoch {verdict.epoch}", state)
    gained = sum(after.passes) - sum(o.outcome == "resolved" for o in before)
    number = sum(len(e.accepts) for e in found.on_panel(verdict.panel_hash)) + 1
    gain = Fraction(gained, verdict.n_tasks * verdict.rollouts)
    epoch.complete.append(after)
    epoch.accepts.append(Accepted(verdict, state.bank.version, number, gain))


def _complete(what: str, state: Replay) -> Complete:
    if state.panel is None or state.outcomes is None:
        raise BankError(f"{what}: no complete outcomes; check the ledger with `valve bank verify`")
    return _counted(what, state, state.outcomes)


def _counted(what: str, state: Replay, outcomes: tuple[PanelOutcome, ...], *, again: bool = False) -> Complete:
    assert state.panel is not None  # replay refuses a measurement without one
    passed = Counter(o.task_id for o in outcomes if o.outcome == "resolved")
    passes = tuple(passed[task.instance_id] for task in state.panel.tasks)
    return Complete(what, passes, state.bank.version, outcomes, again)
