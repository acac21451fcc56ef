"""The order in which a gate runs the panel's tasks, those most likely to decide early first, and its odds so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import erf, exp, lgamma, sqrt
from typing import NamedTuple

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


def accept_odds(wanted: int, open_rollouts: int, passed: int, failed: int) -> float:
    """Return the probability that at least `wanted` of `open_rollouts` pass, given rollouts that did and did not.

    All rollouts count as draws with one unknown rate (Jeffreys' prior), so their number is beta-binomial.

    Args:
        wanted: passes that the candidate still needs; at most 0: it has them.
        open_rollouts: rollouts of the candidate that have not ended.
        passed: rollouts that passed, of the candidate so far and of the current bank on the same panel tasks.
        failed: those that did not.

    Raises:
        ValueError: a count is negative.
    """
    if min(open_rollouts, passed, failed) < 0:
        raise ValueError(f"counts are {open_rollouts}, {passed} and {failed}, expected none below 0")
    if wanted <= 0:
        return 1.0
    a, b, n = passed + 0.5, failed + 0.5, open_rollouts
    scale = lgamma(n + 1) + lgamma(a + b) - lgamma(a) - lgamma(b) - lgamma(n + a + b)
    terms = (
        exp(scale + lgamma(k + a) + lgamma(n - k + b) - lgamma(k + 1) - lgamma(n - k + 1)) for k in range(wanted, n + 1)
    )
    return min(1.0, sum(terms))


class GateOdds(NamedTuple):
    """Chances at one moment of a measurement."""

    accept: float
    """That the margin is reached."""
    needed: tuple[float, ...]
    """Of each rollout in canonical order, that nothing before it decides."""


def gate_odds(spare: int, passing: Sequence[float]) -> GateOdds:
    """Return the odds of a measurement that ends with its failure number `spare + 1`.

    As `accept_odds`, but that each rollout has a chance of its own, and that their order tells which may not be needed.
    They count as independent, and the number of failures as normal. Guard and bet only make rejections sooner, and are
    left out.

    Args:
        spare: failures that may still happen; -1 or less: it is decided.
        passing: of each rollout in canonical order, its chance to pass; 0 or 1 where its outcome is known.
    """
    needed, mean, variance, certain = [], 0.0, 0.0, 0
    for chance in passing:
        needed.append(_at_most(spare, mean, variance, certain))
        mean, variance, certain = mean + 1 - chance, variance + chance * (1 - chance), certain + (chance < 1)
    return GateOdds(_at_most(spare, mean, variance, certain), tuple(needed))


def _at_most(spare: int, mean: float, variance: float, most: int) -> float:
    """Return the chance of at most `spare` failures."""
    if most <= spare:
        return 1.0
    if variance == 0:
        return float(mean <= spare)
    return 0.5 * (1 + erf((spare + 0.5 - mean) / sqrt(2 * variance)))
