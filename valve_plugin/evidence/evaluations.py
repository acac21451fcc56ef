"""A ledger's measurements: checkpoints evaluated on the holdout, and the complete panels of each epoch. Pure.

The outcome of an errored rollout is unknown. A number that depends on one is an interval and not final. The panels of
rejected proposals do not count: they stop early when the outcome is bad, which would bias every estimate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from valve_plugin.bank.entries import (
    FAILED_AGAIN,
    Baseline,
    Entry,
    EpochOpened,
    Evaluated,
    Judged,
    LeftOut,
    OwnerAct,
    PanelFixed,
    Proposed,
    Remeasured,
    Taken,
    makes_version,
    sets_aside,
)
from valve_plugin.bank.replay import Replay
from valve_plugin.records import Kind, Panel, PanelOutcome, PanelTask, Verdict, is_owners

CHECKPOINT_STEPS = 10
"""Mixed tasks between two checkpoints. Source: tab:impl-config."""
PEAK = "selected on this holdout, so it is no untouched final-test estimate"


class Interval(NamedTuple):
    """The possible range of a number, given that errored rollouts are unknown. Equal ends: the number is final."""

    low: Fraction
    high: Fraction

    @property
    def final(self) -> bool:
        """True if no unknown outcome can change the number."""
        return self.low == self.high


class Checkpoint(NamedTuple):
    """The bank version after a number of evolution steps."""

    step: int
    """Mixed tasks learned from so far (all tasks, if the run learns from every task)."""
    version: int


class Reading(NamedTuple):
    """An evaluation and the ledger line that holds it."""

    line: int
    """1-based, as `valve bank log` counts."""
    entry: Evaluated


class EvaluatedCheckpoint(NamedTuple):
    """One checkpoint with its evaluation."""

    step: int
    line: int
    """Of the ledger, 1-based, that holds the evaluation."""
    entry: Evaluated


class CompletePanel(NamedTuple):
    """One bank's complete measurement on the panel."""

    passes: tuple[int, ...]
    """Resolved rollouts per task, in panel order."""
    version: int
    outcomes: tuple[PanelOutcome, ...]
    again: bool = False
    """True for an A/A measurement. Unlike an accept's, it was not selected for a high result."""


class AcceptedMove(NamedTuple):
    """An accepted move."""

    verdict: Verdict
    version: int
    """Of the bank it led to."""
    number: int
    """k: number of this accept on its panel, from 1."""
    gain: Fraction
    """Panel gain, in rate units."""
    differences: tuple[float, ...]
    """Of each task, in rate units."""


@dataclass
class Epoch:
    """An epoch and its measurements."""

    opened: EpochOpened
    panel: Panel
    horizon: int
    """T: queries declared on this panel, in this epoch and those before it."""
    complete: list[CompletePanel] = field(default_factory=list)
    """The baseline (if recorded), then each accept and each A/A measurement."""
    accepts: list[AcceptedMove] = field(default_factory=list)
    queries: int = 0


@dataclass
class Measurements:
    """A ledger's epochs (oldest first), its evaluations, and the source tasks of its proposals."""

    epochs: list[Epoch] = field(default_factory=list)
    fixed: set[str] = field(default_factory=set)
    """Task ids of every panel in the ledger, measured or not."""
    sources: set[str] = field(default_factory=set)
    """Task ids that proposals were learned from."""
    taken: int = 0
    """Number of versions accepted without a gate, all before the first epoch."""
    owned: list[int] = field(default_factory=list)
    """Versions that the bank's owner made, which no gate judged."""
    read: int = 0
    """First ledger line that measured the panel without single items, which reveals more than verdicts do; 0: none."""
    chosen: int = 0
    """First later line in which a person retires, adds or changes an item; 0 if there is none."""
    checkpoints: list[EvaluatedCheckpoint] = field(default_factory=list)
    """Checkpoints that were evaluated on the holdout."""
    sealed: tuple[bool | None, str] = (None, "no evaluation on a holdout is recorded")
    """Whether the holdout was sealed, and why; see `holdout_sealed`."""
    current: tuple[PanelOutcome, ...] | None = None
    """The current bank's outcomes, in panel order; None where a task has none."""

    def on_panel(self, panel_hash: str) -> list[Epoch]:
        """Return the epochs that used this panel."""
        return [e for e in self.epochs if e.opened.panel_hash == panel_hash]

    def complete(self, panel_hash: str) -> list[CompletePanel]:
        """Return every complete measurement on this panel, oldest first."""
        return [c for epoch in self.on_panel(panel_hash) for c in epoch.complete]


def version_path(entries: Iterable[Entry]) -> list[Checkpoint]:
    """Return a checkpoint for each evolution step; an accept changes the version of the last one."""
    found = [Checkpoint(0, 0)]
    seen: set[str] = set()
    for entry in entries:
        step, version = found[-1]
        if isinstance(entry, Proposed) and (new := step_tasks(entry) - seen):
            found.append(Checkpoint(step + len(new), version))
            seen |= new
        elif makes_version(entry):
            found[-1 if step else len(found) :] = [Checkpoint(step, version + 1)]  # the verdict ends the step
    return found


def checkpoints(entries: Iterable[Entry], every: int = CHECKPOINT_STEPS) -> list[Checkpoint]:
    """Return the checkpoints at step 0, every `every` steps and the last step.

    Source: app:impl-evaluation.
    """
    steps = version_path(entries)
    found = steps[:1]
    for point in steps:
        if point.step // every > found[-1].step // every:
            found.append(point)
    return found if found[-1] == steps[-1] else [*found, steps[-1]]


def step_tasks(entry: Proposed) -> set[str]:
    """Return the ids of a proposal's tasks that count as evolution steps: the mixed ones, or all if none is mixed.

    None of a failed screen: nothing was learned from its attempts.
    """
    outcomes: dict[str, set[str]] = {}
    for note in () if sets_aside(entry, FAILED_AGAIN) else entry.attempts:
        outcomes.setdefault(note.task_id, set()).add(note.outcome)
    mixed = {task for task, found in outcomes.items() if {"resolved", "unresolved"} <= found}
    return mixed or set(outcomes)


def readings(entries: Iterable[Entry]) -> list[Reading]:
    """Return all evaluations in ledger order."""
    return [Reading(n, entry) for n, entry in enumerate(entries, start=1) if isinstance(entry, Evaluated)]


def latest_readings(found: Sequence[Reading], only: tuple[Kind, str] | None = None) -> dict[int, Reading]:
    """Return, by version, the newest reading that is comparable with the newest reading of all.

    Args:
        only: kind and name of the single item that was measured alone; None for whole versions.
    """
    alike = [r for r in found if r.entry.only == only]
    return {r.entry.version: r for r in alike if comparable(r.entry, alike[-1].entry)}


def incomparable_readings(found: Sequence[Reading]) -> list[Reading]:
    """Return the readings that cannot be compared with the newest one: other tasks, rollouts or solver settings."""
    return [r for r in found if not comparable(r.entry, found[-1].entry)]


def comparable(one: Evaluated, other: Evaluated) -> bool:
    """Return True if two evaluations differ only in the bank."""
    return comparison_terms(one) == comparison_terms(other)


def comparison_terms(entry: Evaluated) -> tuple[tuple[PanelTask, ...], int, str]:
    """Return holdout tasks, rollouts and solver hash, which must be equal in comparable evaluations."""
    return entry.holdout, entry.rollouts, entry.solver


def evaluated_checkpoints(entries: Sequence[Entry], every: int = CHECKPOINT_STEPS) -> list[EvaluatedCheckpoint]:
    """Return the evaluated checkpoints in order, and other evaluated versions at the step of their accept."""
    by_version = latest_readings(readings(entries))
    wanted = checkpoints(entries, every)
    others = by_version.keys() - {c.version for c in wanted}
    came_in = {c.version: c for c in reversed(version_path(entries)) if c.version in others}
    return [
        EvaluatedCheckpoint(step, *by_version[version])
        for step, version in sorted({*wanted, *came_in.values()})
        if version in by_version
    ]


def solve_rate(entry: Evaluated) -> Interval:
    """Return avg@r over all rollouts, in rate units.

    Source: eq:impl-avg3.
    """
    passed, possible = _passes(entry.outcomes)
    return Interval(Fraction(passed, len(entry.outcomes)), Fraction(possible, len(entry.outcomes)))


def passes_by_task(entry: Evaluated) -> tuple[int, ...]:
    """Return the number of resolved rollouts of each holdout task."""
    return tuple(_passes(outcomes)[0] for outcomes in _tasks(entry).values())


def differences(before: Evaluated, after: Evaluated) -> dict[str, Interval]:
    """Return, by task, the change of the resolved rate, in rate units.

    With the same block in both evaluations the rollouts are the same ones, so the change is 0, even if some errored.

    Raises:
        ValueError: the evaluations are not comparable.
    """
    if not comparable(before, after):
        raise ValueError(
            f"versions {before.version} and {after.version} were evaluated on other tasks or with another solver; "
            "evaluate both in the same way with `valve eval`"
        )
    return {
        task: _difference(first, second, before.rollouts)
        for (task, first), second in zip(_tasks(before).items(), _tasks(after).values(), strict=True)
    }


def mean_gain(before: Evaluated, after: Evaluated) -> Interval:
    """Return the mean paired difference over the holdout tasks, in rate units.

    Source: eq:gaincert (the empirical gain).
    """
    return mean_interval(list(differences(before, after).values()))


def mean_interval(each: Sequence[Interval]) -> Interval:
    """Return the mean of numbers that may be intervals."""
    n = len(each)
    return Interval(sum((d.low for d in each), Fraction()) / n, sum((d.high for d in each), Fraction()) / n)


def gain_over_empty(found: Sequence[EvaluatedCheckpoint], point: EvaluatedCheckpoint) -> Interval | None:
    """Return a checkpoint's gain over version 0, or None if version 0 was not evaluated."""
    return mean_gain(found[0].entry, point.entry) if found[0].entry.version == 0 else None


def peak_checkpoint(found: Sequence[EvaluatedCheckpoint]) -> EvaluatedCheckpoint:
    """Return the checkpoint with the highest observed rate, the earliest of equals. It is selected on this holdout.

    Source: app:impl-evaluation ("uses this panel for checkpoint selection").
    """
    return max(found, key=lambda p: solve_rate(p.entry).low)


def evaluation_facts(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return every evaluated checkpoint as plain data, with per-task differences to version 0 where that was read."""

    def ends(interval: Interval) -> tuple[float, float]:
        return float(interval.low), float(interval.high)

    found = evaluated_checkpoints(entries)
    if not found:
        return {"checkpoints": []}
    first, last = found[0].entry, found[-1].entry
    shown: list[dict[str, Any]] = []
    for point in found:
        gain = gain_over_empty(found, point)
        changed = differences(first, point.entry) if first.version == 0 else None
        shown.append(
            {
                "step": point.step,
                "version": point.entry.version,
                "line": point.line,
                "avg": ends(solve_rate(point.entry)),
                "gain": ends(gain) if gain else None,
                "final": point.entry.complete,
                "per_task": None if changed is None else {task: ends(change) for task, change in changed.items()},
            }
        )
    best = shown[found.index(peak_checkpoint(found))]
    drop = mean_gain(last, peak_checkpoint(found).entry) if len(found) > 1 else None  # paired by task
    return {
        "holdout": [t.instance_id for t in last.holdout],
        "rollouts": last.rollouts,
        "not_shown": [r.line for r in incomparable_readings(readings(entries))],
        "checkpoints": shown,
        "peak": {**{name: value for name, value in best.items() if name != "per_task"}, "note": PEAK},
        "drawdown": ends(drop) if drop else None,
    }


def holdout_sealed(entries: Sequence[Entry]) -> tuple[bool | None, str]:
    """Return whether the last evaluated version was fixed before anyone saw a holdout result, and the reason.

    True: the holdout had not been read by then. None: it had been read, but only evolution continued. False: a person
    made a choice in between, possibly because of the holdout's result.
    """
    found = readings(entries)
    if not found:
        return Measurements.sealed
    version, holdout = found[-1].entry.version, {task.content_hash for task in found[-1].entry.holdout}
    read = next(r.line for r in found if any(task.content_hash in holdout for task in r.entry.holdout))
    made = [n for n, entry in enumerate(entries, start=1) if makes_version(entry)]
    fixed = made[version - 1] if version else 1
    where = f"the holdout was first read in line {read}; version {version} is from line {fixed}"
    if fixed < read:
        return True, where
    for line, entry in enumerate(entries[read:fixed], start=read + 1):
        # Evolution itself only proposes, judges and measures.
        own = isinstance(entry, Proposed | Judged | Taken | Baseline | Evaluated | LeftOut)
        if is_persons(entry) or not own:
            return False, f"{where}, after a person's choice in line {line}, so this is no certificate"
    return None, f"{where}: valid if nobody steered the run by a holdout result"


def is_persons(entry: Entry) -> bool:
    """Return True for a proposal that a person made: to remove an item, or the owner's own notes."""
    if not isinstance(entry, Proposed) or entry.attempts:
        return False
    return bool(entry.proposal.removed) or (is_owners(entry.proposal.task_id) and not entry.proposal.empty)


def read_measurements(entries: Iterable[Entry], *, trusting: bool = True) -> Measurements:
    """Return the complete measurements of a ledger.

    Args:
        trusting: take the hash of each version from the ledger; `verify` computes it.

    Raises:
        ValveError: an entry is not allowed at its place.
    """
    entries = list(entries)
    found = Measurements(checkpoints=evaluated_checkpoints(entries), sealed=holdout_sealed(entries))
    state = Replay(trusting=True)
    for line, entry in enumerate(entries, 1):
        before = state.outcomes or ()
        state.feed(entry)
        _add(found, line, entry, state, before)
    if not trusting and (wrong := state.wrong_version()):
        raise wrong[1]
    found.current = state.outcomes
    return found


def _add(found: Measurements, line: int, entry: Entry, state: Replay, before: tuple[PanelOutcome, ...]) -> None:
    """Add an entry; `state` is the state after it, `before` the current outcomes before it."""
    if isinstance(entry, PanelFixed):
        found.read = found.chosen = 0
        found.fixed |= {task.instance_id for task in entry.panel.tasks}
    elif isinstance(entry, LeftOut):
        found.read = found.read or line
    elif isinstance(entry, EpochOpened):
        assert state.panel is not None  # replay refuses an epoch without one
        earlier = sum(e.opened.horizon for e in found.on_panel(entry.panel_hash))
        found.epochs.append(Epoch(opened=entry, panel=state.panel, horizon=earlier + entry.horizon))
    elif isinstance(entry, Proposed | OwnerAct):
        items = entry.items if isinstance(entry, OwnerAct) else entry.proposal.items
        found.sources |= {task for item in items for task in item.source_tasks}
        if isinstance(entry, OwnerAct):
            found.owned.append(state.bank.version)
        else:
            found.sources |= {entry.proposal.task_id} | {note.task_id for note in entry.attempts}
        if found.read and not found.chosen and (isinstance(entry, OwnerAct) or is_persons(entry)):
            found.chosen = line
    elif isinstance(entry, Taken):
        found.taken += 1
    elif isinstance(entry, Baseline):
        found.epochs[-1].complete.append(_panel_of(state, state.known))
    elif isinstance(entry, Remeasured):
        found.epochs[-1].complete.append(_panel_of(state, entry.result.outcomes, again=True))
    elif isinstance(entry, Judged):
        found.epochs[-1].queries = state.queries
        if entry.verdict.decision == "accept":
            after = _panel_of(state, state.in_panel_order(entry.verdict.measured))
            number = sum(len(e.accepts) for e in found.on_panel(entry.verdict.panel_hash)) + 1
            then = _panel_of(state, before).passes
            gain = Fraction(sum(after.passes) - sum(then), entry.verdict.n_tasks * entry.verdict.rollouts)
            differences = tuple((b - a) / entry.verdict.rollouts for a, b in zip(then, after.passes, strict=True))
            found.epochs[-1].complete.append(after)
            found.epochs[-1].accepts.append(AcceptedMove(entry.verdict, state.bank.version, number, gain, differences))


def _panel_of(state: Replay, outcomes: tuple[PanelOutcome, ...], *, again: bool = False) -> CompletePanel:
    """Return complete outcomes of the current bank as a measurement."""
    assert state.panel is not None  # replay refuses outcomes without one
    passed = Counter(o.task_id for o in outcomes if o.outcome == "resolved")
    passes = tuple(passed[task.instance_id] for task in state.panel.tasks)
    return CompletePanel(passes, state.bank.version, outcomes, again)


def _difference(first: Sequence[PanelOutcome], second: Sequence[PanelOutcome], rollouts: int) -> Interval:
    # If the journal is lost, rollouts run again: two outcomes under one block may then differ.
    same = all(
        a.outcome == b.outcome or "errored" in (a.outcome, b.outcome) for a, b in zip(first, second, strict=True)
    )
    if first[0].context_hash == second[0].context_hash and same:
        return Interval(Fraction(0), Fraction(0))
    (low, high), (lower, higher) = _passes(first), _passes(second)
    return Interval(Fraction(lower - high, rollouts), Fraction(higher - low, rollouts))


def _passes(outcomes: Sequence[PanelOutcome]) -> tuple[int, int]:
    """Return the number of resolved rollouts, and the same with all errored ones counted as resolved."""
    passed = sum(o.outcome == "resolved" for o in outcomes)
    return passed, passed + sum(o.outcome == "errored" for o in outcomes)


def _tasks(entry: Evaluated) -> dict[str, Sequence[PanelOutcome]]:
    r = entry.rollouts
    return {task.instance_id: entry.outcomes[i * r : (i + 1) * r] for i, task in enumerate(entry.holdout)}
