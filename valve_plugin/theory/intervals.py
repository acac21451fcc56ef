"""How sure a counted share is, and how rarely chance alone parts two counts so far."""

from __future__ import annotations

import math
from collections.abc import Callable


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
