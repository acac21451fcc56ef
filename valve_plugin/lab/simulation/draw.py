"""Random draws without state: each is a hash of what it may depend on, so time, order and workers change nothing."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from valve_plugin.codec import canonical

T = TypeVar("T")
Part = str | int


class Draw:
    """Draws that share a key, for example (seed, task, ordinal, role, hash of the block)."""

    def __init__(self, *key: Part) -> None:
        self._key = key

    def uniform(self, *what: Part) -> float:
        """Return a number in [0, 1) that belongs to `what`; the same `what` gives the same number."""
        raw = hashlib.sha256(canonical([*self._key, *what])).digest()
        return (int.from_bytes(raw[:8], "big") >> 11) / 2**53

    def chance(self, probability: float, *what: Part) -> bool:
        """Return True with that probability."""
        return self.uniform(*what) < probability

    def pick(self, options: Sequence[T], *what: Part) -> T:
        """Return one of the options, all equally likely."""
        return options[math.floor(self.uniform(*what) * len(options))]

    def weighted(self, weights: Mapping[T, float], *what: Part) -> T:
        """Return a key, as likely as its weight; ties and order follow the mapping.

        Raises:
            ValueError: no weight is positive.
        """
        likely = {option: weight for option, weight in weights.items() if weight > 0}
        if not likely:
            raise ValueError(f"no positive weight among {dict(weights)!r}; give at least one option a weight above 0")
        left = self.uniform(*what) * sum(likely.values())
        for option, weight in likely.items():
            left -= weight
            if left < 0:
                return option
        return option  # the sum of the weights was rounded down

    def shuffled(self, options: Sequence[T], *what: Part) -> list[T]:
        """Return the options in a drawn order."""
        return [option for _, _, option in sorted((self.uniform(*what, i), i, o) for i, o in enumerate(options))]
