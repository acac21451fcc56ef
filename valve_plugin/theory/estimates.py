"""What complete panels show: spread of solve rates, variance for the certificates, caps on accepts, and intervals.

Every estimate of rates counts one more task of unknown (uniformly distributed) rate, so that a small panel on which
nothing varied does not claim that nothing can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple


class RateSpread(NamedTuple):
    """How the solve rates p of a panel's tasks are spread."""

    mean: float
    """E[p]."""
    mass: float
    """E[p(1-p)], the rollout noise of one task."""


def rate_spread(panels: Sequence[Sequence[int]], rollouts: int) -> RateSpread:
    """Return mean and noise of the solve rates, from one or more complete measurements of the same panel.

    Args:
        panels: for each measurement, the resolved rollouts of every task, each in 0..r.
        rollouts: r. With r = 1 nothing shows a task's own noise: the most that the mean allows is taken.
    Raises:
        ValueError: no measurement, no task, or a count out of range.
    Source: eq:vmass, averaged over the measurements. Differs: one task of unknown rate is added.
    """
    if not panels or not panels[0]:
        raise ValueError(f"{len(panels)} measurements, expected at least one of at least one task")
    n = len(panels[0])
    mean = (sum(map(sum, panels)) / (len(panels) * rollouts) + 1 / 2) / (n + 1)
    if rollouts == 1:
        return RateSpread(mean, mean * (1 - mean))
    mass = sum(vmass(passes, rollouts) for passes in panels) / len(panels)
    return RateSpread(mean, (n * mass + 1 / 6) / (n + 1))


def vmass(passes: Sequence[int], rollouts: int) -> float:
    """Return the unbiased plug-in of E[p(1-p)] from r baseline rollouts per task.

    Raises:
        ValueError: no tasks, fewer than two rollouts (the correction r/(r-1) needs two), counts out of range.
    Source: eq:vmass.
    """
    if rollouts < 2 or not passes or not all(0 <= p <= rollouts for p in passes):
        raise ValueError(
            f"expected at least one task, r >= 2 and pass counts in 0..r; got {len(passes)} tasks, r = {rollouts}"
        )
    total = sum(Fraction(p * (rollouts - p), rollouts * (rollouts - 1)) for p in passes)
    return float(total / len(passes))


def variance_bound(mass: float, rollouts: int) -> float:
    """Return (1 + 2/r) vmass, the variance of a fresh paired difference under ass:local with eps_var = 0.

    Source: app:preflight-proof, law of total variance.
    """
    if mass < 0 or rollouts < 1:
        raise ValueError(f"mass {mass} must not be negative, and rollouts {rollouts} be at least 1")
    return (1 + 2 / rollouts) * mass


def paired_variance(before: Sequence[int], after: Sequence[int], rollouts: int) -> float:
    """Return the sample variance of the per-task differences of two measurements, in squared rate units."""
    differences = [(b - a) / rollouts for a, b in zip(before, after, strict=True)]
    if len(differences) < 2:
        return 0.0
    mean = math.fsum(differences) / len(differences)
    return math.fsum((d - mean) ** 2 for d in differences) / (len(differences) - 1)


def variance(panels: Sequence[Sequence[int]], rollouts: int, planned: int | None = None) -> float:
    """Return a plug-in for the variance of a paired difference; an estimate, not a bound.

    The larger of (1 + 2/r) E[p(1-p)] and of what consecutive measurements differed by; at most 1.

    Args:
        rollouts: r of the measurements.
        planned: r of the differences to come, where it is another one; then only the first term is known.
    Source: app:preflight-proof (law of total variance) with eps_var = 0.
    """
    r = planned or rollouts
    seen = [paired_variance(a, b, rollouts) for a, b in pairwise(panels)] if r == rollouts else []
    return min(1.0, max(variance_bound(rate_spread(panels, rollouts).mass, r), *seen, 0.0))


def accept_cap(rho: str, start: Fraction = Fraction(0)) -> int:
    """Return the most moves that can be accepted: floor((1 - F0)/rho); floor(1/rho) for F0 = 0.

    Args:
        rho: the margin as decimal text, so that 0.02 is one fiftieth exactly.
        start: the recorded panel score of the first bank, exact, in [0, 1].
    Raises:
        ValueError: rho is not in (0, 1] or start not in [0, 1].
    Source: eq:count.
    """
    if not 0 <= start <= 1:
        raise ValueError(f"start is {start}, expected a rate between 0 and 1")
    margin = Fraction(rho)
    if not 0 < margin <= 1:
        raise ValueError(f"rho is {rho}, expected a margin between 0 and 1")
    return math.floor((1 - start) / margin)


def clopper_pearson(count: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Return the exact interval for the chance behind `count` successes in `trials` independent trials.

    It holds the true chance with probability at least `level`, also for few trials; (0, 1) for none.

    Raises:
        ValueError: the count is not within the trials, or the level not in (0, 1).
    Source: Clopper and Pearson, Biometrika 26 (1934); the two tails are found by bisection.
    """
    if not 0 <= count <= trials or not 0 < level < 1:
        raise ValueError(
            f"{count} of {trials} at level {level}, expected a count within the trials and a level in 0..1"
        )
    tail = (1 - level) / 2
    low = 0.0 if count == 0 else _root(lambda p: _at_least(count, trials, p) < tail)
    high = 1.0 if count == trials else _root(lambda p: 1 - _at_least(count + 1, trials, p) > tail)
    return low, high


def sign_test(better: int, worse: int) -> float:
    """Return the two-sided p of the exact sign test: how often a fair coin parts `better + worse` as far or further.

    Ties count on neither side. 1 where nothing differs.

    Raises:
        ValueError: a count is negative.
    Source: Dixon and Mood, JASA 41 (1946); no equation of the paper, and no certificate.
    """
    if better < 0 or worse < 0:
        raise ValueError(f"{better} better and {worse} worse, expected counts of at least 0")
    trials = better + worse
    tail = sum(math.comb(trials, k) for k in range(max(better, worse), trials + 1))
    return min(1.0, 2 * tail / (1 << trials))


def _at_least(count: int, trials: int, p: float) -> float:
    return math.fsum(math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(count, trials + 1))


def _root(below: Callable[[float], bool]) -> float:
    """Return where `below` turns from true to false on [0, 1]."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2
