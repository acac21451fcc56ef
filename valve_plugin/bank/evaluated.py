"""What a ledger's evaluations say: checkpoints over the run, each paired with every other. Pure.

Errored rollouts are unknown. A number that depends on them is an interval, and is not final.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

from valve_plugin.bank.entries import AttemptNote, Baseline, Entry, Evaluated, Judged, LeftOut, Proposed, Taken
from valve_plugin.records import Kind, PanelOutcome, PanelTask

EVERY = 10
"""Mixed tasks between two checkpoints.

Source: tab:impl-config.
"""


class Interval(NamedTuple):
    """All that a number can be, once what errored is known; equal ends: final."""

    low: Fraction
    high: Fraction

    @property
    def final(self) -> bool:
        """Whether nothing unknown can change it."""
        return self.low == self.high


class Checkpoint(NamedTuple):
    """The bank as it was after so many evolution steps."""

    step: int
    """Mixed tasks learned from until then (raw tasks, where every task is learned from)."""
    version: int


class Reading(NamedTuple):
    """An evaluation and the ledger line that holds it."""

    line: int
    """1-based, as `valve bank log` counts."""
    entry: Evaluated


class Point(NamedTuple):
    """One checkpoint with its evaluation."""

    step: int
    reading: Reading

    @property
    def entry(self) -> Evaluated:
        """The evaluation."""
        return self.reading.entry


def path(entries: Iterable[Entry]) -> list[Checkpoint]:
    """Return the bank after each evolution step, and after what was accepted between them."""
    found = [Checkpoint(0, 0)]
    seen: set[str] = set()
    for entry in entries:
        step, version = found[-1]
        if isinstance(entry, Proposed) and (new := counted(entry.attempts) - seen):
            found.append(Checkpoint(step + len(new), version))
            seen |= new
        elif _moves(entry):
            moved = Checkpoint(step, version + 1)
            found = [*found, moved] if step == 0 else [*found[:-1], moved]  # the verdict ends the step
    return found


def checkpoints(entries: Iterable[Entry], every: int = EVERY) -> list[Checkpoint]:
    """Return step 0, every `every` steps, and the last one; each with the version that was current after it.

    Source: app:impl-evaluation.
    """
    steps = path(entries)
    found = steps[:1]
    for point in steps:
        if point.step // every > found[-1].step // every:
            found.append(point)
    return found if found[-1] == steps[-1] else [*found, steps[-1]]


def readings(entries: Iterable[Entry]) -> list[Reading]:
    """Return all evaluations, in the order they were made."""
    return [Reading(n, entry) for n, entry in enumerate(entries, start=1) if isinstance(entry, Evaluated)]


def latest(found: Sequence[Reading], only: tuple[Kind, str] | None = None) -> dict[int, Reading]:
    """Return the newest reading of each version among those that may be compared with the newest of all.

    Comparable means the same tasks, the same number of rollouts, and the same solver.
    """
    whole = [r for r in found if r.entry.only == only]
    return {r.entry.version: r for r in whole if comparable(r.entry, whole[-1].entry)}


def apart(found: Sequence[Reading]) -> list[Reading]:
    """Return the readings that are compared with none of the newest's kind: of other tasks, rollouts or solver."""
    return [r for r in found if not comparable(r.entry, found[-1].entry)]


def comparable(one: Evaluated, other: Evaluated) -> bool:
    """Whether two evaluations differ in the bank alone."""
    return terms(one) == terms(other)


def terms(entry: Evaluated) -> tuple[tuple[PanelTask, ...], int, str]:
    """Return holdout, rollouts and solver: what has to be equal for two evaluations to be compared."""
    return entry.holdout, entry.rollouts, entry.solver


def points(entries: Sequence[Entry], every: int = EVERY) -> list[Point]:
    """Return the checkpoints that were evaluated, in order; and other versions that were, where each came in."""
    by_version = latest(readings(entries))
    wanted = checkpoints(entries, every)
    others = by_version.keys() - {c.version for c in wanted}
    came_in = {c.version: c for c in reversed(path(entries)) if c.version in others}
    return [
        Point(c.step, by_version[c.version]) for c in sorted({*wanted, *came_in.values()}) if c.version in by_version
    ]


def rate(entry: Evaluated) -> Interval:
    """Return avg@r over all rollouts, in rate units.

    Source: eq:impl-avg3.
    """
    total = len(entry.outcomes)
    passed = sum(o.outcome == "resolved" for o in entry.outcomes)
    unknown = sum(o.outcome == "errored" for o in entry.outcomes)
    return Interval(Fraction(passed, total), Fraction(passed + unknown, total))


def differences(before: Evaluated, after: Evaluated) -> dict[str, Interval]:
    """Return by how much each task's rate changed.

    Where both were given the same block, the rollouts are the same ones: no difference, even if some errored.

    Raises:
        ValueError: the two are not comparable.
    """
    if not comparable(before, after):
        raise ValueError(f"versions {before.version} and {after.version} were not evaluated alike: task set, solver")
    return {
        task: _difference(first, second, before.rollouts)
        for (task, first), second in zip(_tasks(before).items(), _tasks(after).values(), strict=True)
    }


def gain(before: Evaluated, after: Evaluated) -> Interval:
    """Return the mean paired difference over the holdout tasks, in rate units.

    Source: eq:gaincert (the empirical gain).
    """
    each = differences(before, after).values()
    n = len(each)
    return Interval(sum((d.low for d in each), Fraction()) / n, sum((d.high for d in each), Fraction()) / n)


def over_empty(found: Sequence[Point], point: Point) -> Interval | None:
    """Return a checkpoint's gain over version 0; None: version 0 was not evaluated, so nothing is known.

    Args:
        found: all checkpoints that were evaluated, in order.
        point: one of them.
    """
    return gain(found[0].entry, point.entry) if found[0].entry.version == 0 else None


def peak(found: Sequence[Point]) -> Point:
    """Return the checkpoint with the highest observed rate, the earliest of equals: selected on this holdout.

    Source: app:impl-evaluation ("uses this panel for checkpoint selection").
    """
    return max(found, key=lambda p: rate(p.entry).low)


def _difference(first: Sequence[PanelOutcome], second: Sequence[PanelOutcome], rollouts: int) -> Interval:
    if first[0].context_hash == second[0].context_hash and all(map(_agree, first, second)):
        return Interval(Fraction(0), Fraction(0))
    (low, high), (lower, higher) = _passes(first), _passes(second)
    return Interval(Fraction(lower - high, rollouts), Fraction(higher - low, rollouts))


def _agree(one: PanelOutcome, other: PanelOutcome) -> bool:
    """Whether two notes can be of the same rollout; a lost journal makes a model answer anew."""
    return one.outcome == other.outcome or "errored" in (one.outcome, other.outcome)


def _passes(outcomes: Sequence[PanelOutcome]) -> tuple[int, int]:
    passed = sum(o.outcome == "resolved" for o in outcomes)
    return passed, passed + sum(o.outcome == "errored" for o in outcomes)


def _tasks(entry: Evaluated) -> dict[str, Sequence[PanelOutcome]]:
    r = entry.rollouts
    return {task.instance_id: entry.outcomes[i * r : (i + 1) * r] for i, task in enumerate(entry.holdout)}


def counted(notes: Sequence[AttemptNote]) -> set[str]:
    """Return the tasks behind a proposal that count as evolution steps: the mixed ones, or all where none is mixed."""
    outcomes: dict[str, set[str]] = {}
    for note in notes:
        outcomes.setdefault(note.task_id, set()).add(note.outcome)
    mixed = {task for task, found in outcomes.items() if {"resolved", "unresolved"} <= found}
    return mixed or set(outcomes)


def sealed(entries: Sequence[Entry]) -> tuple[bool | None, str]:
    """Return whether the last evaluated version was fixed without anyone knowing a holdout result, and why.

    True: by then the holdout had not been read. None: it had, but only evolution itself went on. False: a person
    chose something in between, and may have chosen by what the holdout said.
    """
    found = readings(entries)
    if not found:
        return None, "no evaluation on a holdout is recorded, so gain and drawdown are unknown"
    version = found[-1].entry.version
    alike = [r for r in found if {t.content_hash for t in r.entry.holdout} & _contents(found[-1])]
    read, fixed = alike[0].line, _made(entries, version)
    where = f"the holdout was first read in line {read}; version {version} stands since line {fixed}"
    if fixed < read:
        return True, f"{where}, so nothing was chosen by it; the last version is certified, never the peak"
    between = list(enumerate(entries, start=1))[read:fixed]
    chosen = [(n, e) for n, e in between if _a_choice(e)]
    if chosen:
        line, entry = chosen[0]
        return (
            False,
            f"{where}: in between, line {line} ({type(entry).__name__}) was a choice, so this is no certificate",
        )
    return None, f"{where}: fine if nobody stopped or steered the run by what the holdout said"


def retires(entry: Entry) -> bool:
    """Whether a person asked the gate to take an item out."""
    return isinstance(entry, Proposed) and bool(entry.proposal.removed) and not entry.attempts


def _a_choice(entry: Entry) -> bool:
    """Whether a person decided it; evolution alone proposes, judges and measures."""
    if isinstance(entry, Proposed):
        return retires(entry)
    return not isinstance(entry, Judged | Taken | Baseline | Evaluated | LeftOut)


def _contents(reading: Reading) -> set[str]:
    return {task.content_hash for task in reading.entry.holdout}


def _made(entries: Sequence[Entry], version: int) -> int:
    """Return the line that made a version."""
    made = [n for n, e in enumerate(entries, start=1) if _moves(e)]
    return made[version - 1] if version else 1


def _moves(entry: Entry) -> bool:
    return isinstance(entry, Taken) or (isinstance(entry, Judged) and entry.verdict.decision == "accept")
