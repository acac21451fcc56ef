"""Sums of independent counts, held only where their mass is: exact but for 1e-18 cut off at each end of each sum.

A thousand tasks of thirty rollouts have 30,001 possible sums, and all but a few hundred of them never happen.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Chances: TypeAlias = NDArray[np.float64]
"""Probabilities of 0, 1, 2, ... counts."""

LOST = 1e-18
"""Mass that may be left out at an end: far below what a sum of doubles can show."""


class Counts(NamedTuple):
    """The distribution of a count."""

    low: int
    """The least count that is held."""
    chances: Chances
    """Of `low`, `low + 1`, ..."""

    def plus(self, more: Chances) -> Counts:
        """Return the distribution of the sum with an independent count of 0, 1, 2, ..."""
        chances = np.convolve(self.chances, more)
        start = int(np.searchsorted(np.cumsum(chances), LOST))
        end = len(chances) - int(np.searchsorted(np.cumsum(chances[::-1]), LOST))
        if start >= end:  # less mass than that in all
            return Counts(self.low, np.zeros(1))
        return Counts(self.low + start, chances[start:end])

    def at_least(self, count: int) -> float:
        """Return the chance of so many or more."""
        return min(1.0, float(self.chances[max(count - self.low, 0) :].sum()))

    def at_most(self, counts: NDArray[np.int_]) -> Chances:
        """Return, for each of the counts, the chance of so many or fewer."""
        sums = np.concatenate([[0.0], np.cumsum(self.chances)])
        reached: Chances = sums[np.clip(counts - self.low + 1, 0, len(self.chances))]
        return reached


NONE = Counts(0, np.ones(1))
"""The sum of nothing."""


def summed(parts: Iterable[Chances]) -> Counts:
    """Return the distribution of the sum of independent counts."""
    return list(growing(parts))[-1]


def growing(parts: Iterable[Chances]) -> Iterable[Counts]:
    """Yield the distribution of the sum of none, the first, the first two, ... of independent counts."""
    return accumulate(parts, Counts.plus, initial=NONE)


def fast(size: int) -> int:
    """Return the least length of at least `size` whose Fourier transform is fast."""
    return min(odd << i for odd in (1, 3, 5) for i in range(size.bit_length() + 1) if odd << i >= size)
