"""The order in which a gate runs the panel's tasks: those most likely to decide early come first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from valve_plugin.records import PanelOutcome


def pass_chance(passed: int, rollouts: int) -> Fraction:
    """Return the posterior mean of a panel task's chance to pass, after `passed` of `rollouts` recorded rollouts.

    The prior is Beta(3/10, 3/10): most tasks nearly always pass or nearly always fail. To know the distribution that
    tasks come from would stop gates no sooner, and rationals give every machine the same order.
    """
    return Fraction(3 + 10 * passed, 6 + 10 * rollouts)


def task_order(
    tasks: Sequence[str], recorded: Mapping[str, tuple[int, int]], current: Sequence[PanelOutcome]
) -> tuple[str, ...]:
    """Return the panel tasks in the order most likely to decide early: those most likely to fail first.

    The current bank's passes are a known sum, whichever tasks they come from, so only the candidate's failures bring a
    rejection nearer. They come soonest where `pass_chance` over all recorded rollouts of the panel is least; ties go
    by the current outcomes, then by panel order. The order changes how soon a verdict is known, never which.

    Args:
        tasks: panel task ids in panel order.
        recorded: `add_counts` of every recorded outcome on this panel, whichever bank it measured.
        current: the current bank's outcomes.
    """
    past, now = _chances(recorded), _chances(add_counts({}, current))
    even = pass_chance(0, 0)
    return tuple(sorted(tasks, key=lambda task: (past.get(task, even), now.get(task, even))))


def canonical_cells(tasks: Sequence[str], rollouts: int, first: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return (task id, ordinal) in canonical order; `first` is each task's first unused ordinal."""
    return [(task, first[task] + j) for task in tasks for j in range(rollouts)]


def add_counts(counts: dict[str, tuple[int, int]], outcomes: Iterable[PanelOutcome]) -> dict[str, tuple[int, int]]:
    """Add known outcomes to the counts of each task, (passes, rollouts), in place; return them."""
    for o in outcomes:
        if o.outcome != "errored":
            passed, known = counts.get(o.task_id, (0, 0))
            counts[o.task_id] = passed + (o.outcome == "resolved"), known + 1
    return counts


def _chances(counts: Mapping[str, tuple[int, int]]) -> dict[str, Fraction]:
    return {task: pass_chance(*count) for task, count in counts.items()}
