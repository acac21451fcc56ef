"""The odds of a gate that still runs: informational, and for guesses about what comes next. No verdict uses them."""

from __future__ import annotations

from collections.abc import Sequence
from math import erf, exp, lgamma, sqrt
from typing import NamedTuple


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
