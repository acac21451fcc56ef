"""The interval of a mean paired difference that stays valid however often one looks, and what follows from it.

In `valve try` each pair is one rollout with a text and one without, at a task drawn with replacement from a finite
set. The differences (+1 better, 0 same, -1 worse) are then independent and have the same mean, the effect on *these
tasks*, whatever the tasks' rates and however alike the rollouts of one task are. Without replacement this does not
hold: the mean of the next difference depends on the tasks that are left. In a certificate the differences are those of
tasks, a random sample.

Source: Waudby-Smith and Ramdas, Estimating means of bounded random variables by betting, JRSS B 86 (2024): the hedged
capital process with a grid of bets (hgKelly), and Ville's inequality. Differs: each side is compared with 2/error
alone, so both are monotone in the mean and the interval's ends are exact; and with three possible values the capital
depends only on their counts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

Answer = Literal["helps", "harms", "no_difference", "unclear"]

BETS = tuple((k + 1) / 11 for k in range(10))
"""Shares of the capital that are put on each difference."""
_MOST = 1 << 20
"""Pairs beyond which nobody waits for an answer."""
POWER = 0.8
_BY_CHANCE = 0.25
"""Share of pairs that are taken to differ by chance, without any effect."""
_QUANTILE_90 = 1.2816
"""Of the normal distribution: 80 % lie within it on both sides."""


class PairCounts(NamedTuple):
    """How the pairs of rollouts came out; fractions where they are expected, not counted."""

    better: float = 0
    """Pairs of which only the rollout with the text resolved its task."""
    worse: float = 0
    same: float = 0

    @property
    def total(self) -> float:
        """All pairs."""
        return self.better + self.worse + self.same

    @property
    def difference(self) -> float:
        """The mean difference, in rate units; 0 without pairs."""
        return (self.better - self.worse) / self.total if self.total else 0.0

    def plus(self, difference: int) -> PairCounts:
        """Return the counts with one more pair, whose difference is -1, 0 or +1."""
        return PairCounts(self.better + (difference > 0), self.worse + (difference < 0), self.same + (difference == 0))


class Interval(NamedTuple):
    """Both ends of an interval of a difference, in rate units."""

    low: float
    high: float


def interval(pairs: PairCounts, error: float = 0.05) -> Interval:
    """Return the interval that holds the mean difference, at all times together, with probability 1 - error or more.

    Args:
        pairs: so far; the times at which one looks may depend on them.
        error: in (0, 1).
    Raises:
        ValueError: the error is out of range, or a count below 0.
    Source: see the module.
    """
    if not 0 < error < 1 or min(pairs) < 0:
        raise ValueError(f"error {error} and {pairs}, expected an error in (0, 1) and counts of at least 0")
    mirrored = PairCounts(pairs.worse, pairs.better, pairs.same)
    log_term = math.log(2 / error)
    return Interval(_floor(_counts(pairs), log_term), -_floor(_counts(mirrored), log_term))


@lru_cache(maxsize=1 << 17)
def answer(pairs: PairCounts, negligible: float, error: float = 0.05) -> Answer:
    """Return what the pairs say.

    Args:
        pairs: so far.
        negligible: differences up to this, in rate units, do not matter.
        error: the probability that the answer is ever wrong, at most.
    """
    if _exceeds(pairs, 0.0, error):
        return "helps"
    mirrored = PairCounts(pairs.worse, pairs.better, pairs.same)
    if _exceeds(mirrored, 0.0, error):
        return "harms"
    bounded = _exceeds(pairs, -negligible, error) and _exceeds(mirrored, -negligible, error)
    return "no_difference" if bounded else "unclear"


def pairs_needed(pairs: PairCounts, negligible: float, error: float = 0.05) -> int | None:
    """Return the number of pairs, those so far included, at which an answer is likely if the shares stay as they are.

    Returns:
        The number; None where no pair was seen, or no reasonable number would do.
    """
    if not pairs.total:
        return None

    def answered(total: int) -> bool:
        scale = total / pairs.total
        return answer(PairCounts(*(count * scale for count in pairs)), negligible, error) != "unclear"

    return _fewest(answered, math.ceil(pairs.total))


def pairs_for_no_difference(negligible: float, differing: float = _BY_CHANCE, error: float = 0.05) -> int | None:
    """Return the number of pairs after which a text without any effect is called that, 4 times in 5 or more.

    Args:
        negligible: differences up to this, in rate units, do not matter.
        differing: share of pairs that differ by chance.
        error: as of the interval.

    Returns:
        The number; None where no reasonable number would do.
    Source: the answer at the 10 % quantile of the mean difference, by its normal approximation.
    """

    def answered(total: int) -> bool:
        differ, off = differing * total, _QUANTILE_90 * math.sqrt(differing * total)
        worst = PairCounts((differ + off) / 2, (differ - off) / 2, total - differ)
        return off <= differ and answer(worst, negligible, error) == "no_difference"

    return _fewest(answered, 1)


def _fewest(enough: Callable[[int], bool], high: int) -> int | None:
    """Return the fewest pairs, `high` or more to begin with, that are enough; None: more than anybody waits for."""
    while not enough(high):
        high *= 2
        if high > _MOST:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def chance_of_helps(pairs: int, better: float, worse: float, error: float = 0.05) -> float:
    """Return the exact chance that one of the first `pairs` looks, one after each pair, says that the text helps.

    Args:
        pairs: planned.
        better: chance that a pair is better.
        worse: chance that a pair is worse.
        error: as of the interval.
    Source: dynamic programming over the pairs that differ; the others change no capital at a mean of 0.
    """
    differs = better + worse
    if not differs:
        return 0.0
    open_, said, chance = [1.0], 0.0, 0.0
    for differing in range(pairs + 1):
        if differing:
            up, down = better / differs, worse / differs
            open_ = [a * up + b * down for a, b in zip([0.0, *open_], [*open_, 0.0], strict=True)]
            while open_ and _exceeds(PairCounts(len(open_) - 1, differing - len(open_) + 1), 0.0, error):
                said += open_.pop()
        chance += said * _binomial(pairs, differing, differs)
    return chance


def detectable(pairs: int, error: float = 0.05) -> float | None:
    """Return the smallest difference that so many pairs tell from none 4 times in 5, in rate units; None: none.

    Args:
        pairs: planned; a quarter of them would differ by chance, without any effect.
        error: as of the interval.
    """

    def power(percent: int) -> float:
        worse = _BY_CHANCE / 2 * (1 - percent / 100)  # what rescues failing rollouts spoils fewer
        return chance_of_helps(pairs, worse + percent / 100, worse, error)

    least = bisect_left(range(101), POWER, lo=1, key=power)
    return least / 100 if least <= 100 else None


@lru_cache(maxsize=1 << 17)
def _exceeds(pairs: PairCounts, mean: float, error: float) -> bool:
    """Whether the mean difference is surely greater than `mean`."""
    return log_capital(_counts(pairs), mean) >= math.log(2 / error)


def _counts(pairs: PairCounts) -> list[tuple[float, float]]:
    return [(1.0, pairs.better), (0.0, pairs.same), (-1.0, pairs.worse)]


def mean_floor(differences: Iterable[float], log_term: float) -> float:
    """Return the greatest mean that the true one exceeds, wrongly with probability e^-L at most; -1: nothing is known.

    Args:
        differences: independent, in [-1, 1], and of the same mean; how much they vary need not be known.
        log_term: L, nats.
    Source: see the module, at one look; the grid of bets stands for the variance that Bennett's bound has to be told.
    """
    return _floor(sorted(Counter(differences).items()), log_term)


def _floor(counts: Sequence[tuple[float, float]], log_term: float) -> float:
    """Return `mean_floor` of counted differences. The capital falls as the mean rises."""
    number = sum(count for _, count in counts)
    low, high = -1.0, sum(value * count for value, count in counts) / number if number else -1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if log_capital(counts, middle) >= log_term else (low, middle)
    return low


def log_capital(counts: Iterable[tuple[float, float]], mean: float) -> float:
    """Return the logarithm of the capital of bets, a grid of them, that the mean difference is greater than `mean`.

    If it is not, the capital is a nonnegative supermartingale that starts at 1: it ever reaches 2/error with
    probability error/2 at most.

    Args:
        counts: (difference, how often it was seen).
    """
    if mean <= -1:
        return math.inf
    gains = [((1 + difference) / (1 + mean) - 1, count) for difference, count in counts]
    logs = [math.fsum(count * math.log1p(bet * gain) for gain, count in gains) for bet in BETS]
    most = max(logs)
    return most + math.log(math.fsum(math.exp(x - most) for x in logs) / len(logs))


def _binomial(trials: int, count: int, chance: float) -> float:
    """Return the chance of `count` successes in `trials`."""
    if chance >= 1:
        return float(count == trials)
    ways = math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
    return math.exp(ways + count * math.log(chance) + (trials - count) * math.log1p(-chance))
