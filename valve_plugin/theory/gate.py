"""The acceptance rule in integers, its exact early stopping, and the order that makes it stop early.

A gate compares N * r rollouts of the candidate bank with the N * r outcomes carried for the current one.
Everything here is a function of outcomes in *canonical order*: tasks in the order fixed when the gate
started, the r rollouts of a task in a row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from valve_plugin.errors import ConfigError
from valve_plugin.records import Decision, Outcome, PanelOutcome

_MAX_DECIMALS = 50  # "1e-999999999" is a number too, and exact arithmetic on it never ends


def needed_passes(rho: str, n_tasks: int, rollouts: int) -> int:
    """Return ceil(rho * N * r): the net additional passes an accept takes.

    Args:
        rho: margin as decimal text. Parsed exactly: through a float, 0.02 * 150 would need 4 instead of 3.
        n_tasks: N, panel tasks.
        rollouts: r, rollouts per task and condition.

    Raises:
        ConfigError: rho is not a finite decimal between 0 and 1.

    Source: eq:gate, eq:impl-acceptance, both sides multiplied by N * r.
    """
    try:
        margin = Decimal(rho)
    except InvalidOperation:
        margin = Decimal("NaN")
    sane = len(rho) <= _MAX_DECIMALS and margin.is_finite() and margin.adjusted() > -_MAX_DECIMALS
    if not (sane and 0 <= margin < 1):
        raise ConfigError(f"rho is {rho!r}, expected a decimal between 0 and 1, like 0.02")
    return math.ceil(Fraction(margin) * n_tasks * rollouts)


def passes(outcomes: Sequence[Outcome]) -> int:
    """Return how many outcomes are resolved."""
    return sum(o == "resolved" for o in outcomes)


def unknown(outcomes: Sequence[Outcome]) -> int:
    """Return how many outcomes are errored: neither a pass nor a failure."""
    return sum(o == "errored" for o in outcomes)


def gain_bounds(current: Sequence[Outcome], candidate: Sequence[Outcome]) -> tuple[int, int]:
    """Return the least and greatest net additional passes still possible, in rollouts.

    Errored outcomes of either side, and candidate outcomes not there yet, count as both values.

    Raises:
        ValueError: more candidate outcomes than current ones.
    """
    missing = len(current) - len(candidate)
    if missing < 0:
        raise ValueError(
            f"{len(candidate)} candidate outcomes, expected at most the {len(current)} of the current bank"
        )
    gain = passes(candidate) - passes(current)
    return gain - unknown(current), gain + unknown(candidate) + missing


def decide(current: Sequence[Outcome], candidate: Sequence[Outcome], needed: int) -> Decision:
    """Return what the outcomes known so far say about the proposal.

    `reject` as soon as no completion can reach the margin; `accept` when every outcome is known and it is
    reached; else `indecisive`. An accept waits for all outcomes even when it is certain, because they
    become the current ones of the next gate.

    Args:
        current: N * r outcomes of the current bank.
        candidate: the candidate's, at most as many; what is missing is not run yet.
        needed: from `needed_passes`.

    Source: eq:gate with score carry-forward (app:impl-validate).
    """
    _, high = gain_bounds(current, candidate)
    if high < needed:
        return "reject"
    complete = len(candidate) == len(current) and not unknown(current) and not unknown(candidate)
    return "accept" if complete else "indecisive"


def decisive_prefix(current: Sequence[Outcome], candidate: Sequence[Outcome], needed: int) -> int | None:
    """Return the length of the shortest prefix of `candidate` that decides, or None while none does.

    Which rollouts ran beyond it (because several workers were ahead) changes nothing in a verdict.
    """
    _, high = gain_bounds(current, ())
    for length, outcome in enumerate(candidate):
        if high < needed:
            return length
        high -= outcome == "unresolved"  # the only outcome that takes a possible pass away
    return len(candidate) if decide(current, candidate, needed) != "indecisive" else None


def fall(current: Sequence[PanelOutcome], candidate: Sequence[PanelOutcome], guard: int) -> int | None:
    """Return after how many candidate outcomes some task is certain to pass `guard` rollouts fewer than it did.

    None while none is, and always for guard 0. Errored outcomes of either side count as both values.

    Args:
        current: all outcomes of the current bank, r per task.
        candidate: the candidate's in canonical order, as far as they are known.
        guard: rollouts a task may not lose, 0 to r.
    """
    if not guard:
        return None
    runs = Counter(o.task_id for o in current)
    passed = Counter(o.task_id for o in current if o.outcome == "resolved")
    spare = {task: r + guard - passed[task] for task, r in runs.items()}  # the failure that makes the fall certain
    for length, o in enumerate(candidate, start=1):
        spare[o.task_id] -= o.outcome == "unresolved"
        if not spare[o.task_id]:
            return length
    return None


def stage(
    current: Sequence[PanelOutcome], candidate: Sequence[PanelOutcome], needed: int, guard: int = 0
) -> tuple[Decision, int | None]:
    """Return what one measurement of the candidate says, and the length of its shortest prefix that says so.

    As `decide` and `decisive_prefix`, but that a task which falls by `guard` passes is a rejection too. The
    length is None while nothing is decided.
    """
    now, then = [o.outcome for o in current], [o.outcome for o in candidate]
    by_margin, by_guard = decisive_prefix(now, then, needed), fall(current, candidate, guard)
    if by_guard is None:
        return decide(now, then, needed), by_margin
    return "reject", by_guard if by_margin is None else min(by_margin, by_guard)


def pass_chance(passed: int, rollouts: int) -> Fraction:
    """Return the posterior mean of a panel task's chance to pass, after `passed` of `rollouts` recorded rollouts.

    The prior is Beta(3/10, 3/10): most tasks nearly always pass or nearly always fail. To know the distribution that
    tasks come from would stop gates no sooner (docs/engine.md), and rationals give every machine the same order.
    """
    return Fraction(3 + 10 * passed, 6 + 10 * rollouts)


def order(tasks: Sequence[str], history: Sequence[PanelOutcome], current: Sequence[PanelOutcome]) -> tuple[str, ...]:
    """Return the panel tasks in the order most likely to decide early: those most likely to fail first.

    The current bank's passes are a known sum, whichever tasks they come from, so only the candidate's failures bring a
    rejection nearer. They come soonest where `pass_chance` over all recorded rollouts of the panel is least; ties go
    by the current outcomes, then by panel order. The order changes how soon a verdict is known, never which.

    Args:
        tasks: panel task ids in panel order.
        history: every recorded outcome on this panel, whichever bank it measured.
        current: the current bank's outcomes.
    """
    past, now = _chances(history), _chances(current)
    even = pass_chance(0, 0)
    return tuple(sorted(tasks, key=lambda task: (past.get(task, even), now.get(task, even))))


def canonical_cells(tasks: Sequence[str], rollouts: int, first: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return (task id, ordinal) in canonical order; `first` is each task's first unused ordinal."""
    return [(task, first[task] + j) for task in tasks for j in range(rollouts)]


def _chances(outcomes: Sequence[PanelOutcome]) -> dict[str, Fraction]:
    """`pass_chance` of each task over its known outcomes."""
    counts: dict[str, tuple[int, int]] = {}
    for o in outcomes:
        if o.outcome != "errored":
            passed, known = counts.get(o.task_id, (0, 0))
            counts[o.task_id] = passed + (o.outcome == "resolved"), known + 1
    return {task: pass_chance(*count) for task, count in counts.items()}
