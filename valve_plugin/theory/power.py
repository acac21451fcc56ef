"""What a gate of N tasks and r rollouts does with a proposal of known effect, by exact convolution.

A rollout passes with its task's rate, about which there is a belief. A proposal changes rollouts one by one: it
rescues a failing one or spoils a passing one with the same probability everywhere, chosen so that the mean rate
moves by exactly the effect. Counts are then mixtures of binomials, and their sums are convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from valve_plugin.theory.gate import pass_chance
from valve_plugin.theory.sums import NONE, Chances, summed


class Beta(NamedTuple):
    """A task whose solve rate is believed to be Beta(a, b) distributed."""

    a: float
    b: float

    def moment(self, passed: int, failed: int) -> float:
        """Return E[p^passed (1-p)^failed]: the chance of one given sequence of so many passes and failures."""
        up = [self.a + i for i in range(passed)] + [self.b + i for i in range(failed)]
        return math.prod(x / (self.a + self.b + i) for i, x in enumerate(up))

    def moments(self, n: int, passed: int = 0, failed: int = 0) -> Chances:
        """Return `moment(passed + k, failed + n - k)` for k = 0..n, through logarithms: none underflows on the way."""
        up, down, both = (
            np.cumsum(np.log(x + np.arange(n + passed + failed))) for x in (self.a, self.b, self.a + self.b)
        )
        up, down, both = (np.concatenate([[0.0], logs]) for logs in (up, down, both))
        k = np.arange(n + 1)
        chances: Chances = np.exp(up[passed + k] + down[failed + n - k] - both[n + passed + failed])
        return chances

    def updated(self, passed: int, failed: int) -> Beta:
        """Return the belief after seeing so many more passes and failures."""
        return Beta(self.a + passed, self.b + failed)


class Known(NamedTuple):
    """A task whose solve rate is known."""

    p: float

    def moment(self, passed: int, failed: int) -> float:
        """Return p^passed (1-p)^failed."""
        return float(self.p**passed * (1 - self.p) ** failed)

    def moments(self, n: int, passed: int = 0, failed: int = 0) -> Chances:
        """Return `moment(passed + k, failed + n - k)` for k = 0..n."""
        k = np.arange(n + 1)
        chances: Chances = self.p ** (passed + k) * (1 - self.p) ** (failed + n - k)
        return chances

    def updated(self, passed: int, failed: int) -> Known:
        """Return itself: there is nothing to learn."""
        return self


Belief: TypeAlias = Beta | Known


class Change(NamedTuple):
    """What a proposal does to every rollout."""

    rescue: float = 0.0
    """Chance that one that would fail passes."""
    spoil: float = 0.0
    """Chance that one that would pass fails."""


def change(beliefs: Sequence[Belief], effect: float) -> Change:
    """Return the change that moves the expected mean rate by `effect`, in rate units.

    Raises:
        ValueError: there is not that much left to gain (or to lose).
    """
    mean = sum(b.moment(1, 0) for b in beliefs) / len(beliefs)
    room = 1 - mean if effect > 0 else mean
    if abs(effect) > room:
        raise ValueError(f"an effect of {effect:+.3f} at a mean rate of {mean:.3f}, expected at most {room:.3f}")
    if effect == 0:
        return Change()
    return Change(rescue=effect / room) if effect > 0 else Change(spoil=-effect / room)


@lru_cache(maxsize=4096)
def pass_counts(belief: Belief, rollouts: int, how: Change = Change()) -> Chances:  # noqa: B008 (immutable)
    """Return the distribution of a task's passes in `rollouts` rollouts of the candidate."""
    base: Chances = ways(rollouts) * belief.moments(rollouts)
    return base @ effect_of(how, rollouts)


@lru_cache(maxsize=4096)
def gain_counts(belief: Belief, rollouts: int, how: Change = Change()) -> Chances:  # noqa: B008 (immutable)
    """Return the distribution of candidate minus current passes of a task, -r..r, when both are run afresh.

    The two share the task's unknown rate: P(i, j) is the chance of i and j passes in two times r exchangeable
    rollouts, before the proposal changes the second r.
    """
    r = rollouts
    joint = exchangeable(belief, r, r) @ effect_of(how, r)
    return np.array([np.trace(joint, offset=d) for d in range(-r, r + 1)])


def accept_fresh(beliefs: Sequence[Belief], rollouts: int, needed: int, how: Change) -> float:
    """Return the chance of an accept when the current bank is measured afresh too.

    Args:
        beliefs: one per panel task.
        rollouts: r.
        needed: net additional passes an accept takes, from `gate.needed_passes`.
        how: the proposal's change.
    Source: eq:gate.
    """
    gains = summed(gain_counts(b, rollouts, how) for b in beliefs)
    return gains.at_least(len(beliefs) * rollouts + needed)


def accept_carried(beliefs: Sequence[Belief], rollouts: int, needed: int, current: int, how: Change) -> float:
    """Return the chance of an accept against `current` passes that are carried forward.

    Source: eq:gate with score carry-forward (app:impl-validate).
    """
    return summed(pass_counts(b, rollouts, how) for b in beliefs).at_least(current + needed)


def used_carried(beliefs: Sequence[Belief], rollouts: int, needed: int, current: int, how: Change) -> float:
    """Return the expected rollouts until the verdict, one task after the other in the order given.

    A rejection is certain with the first failure beyond the N * r - current - needed that an accept can
    afford; an accept runs everything. So it is the sum over n < N * r of the chance that n rollouts left the
    verdict open.
    """
    spare = len(beliefs) * rollouts - current - needed
    if spare < 0:
        return 0.0
    expected, failures = 0.0, NONE
    for belief in beliefs:
        expected += float(_waits(belief, rollouts, how) @ failures.at_most(spare - np.arange(rollouts)))
        failures = failures.plus(_failures(belief, rollouts, how))
        if failures.low > spare:
            break
    return expected


def used_fresh(
    beliefs: Sequence[Belief],
    rollouts: int,
    needed: int,
    how: Change,
    uniform: Callable[[], float],
    *,
    recorded: Sequence[tuple[int, int]] = (),
    baselines: int = 64,
    used: Callable[[Sequence[Belief], Sequence[int]], float] | None = None,
) -> float:
    """Return the expected rollouts of a gate after a fresh baseline: exact for each of a few drawn baselines.

    Args:
        uniform: gives numbers in [0, 1); the only randomness.
        recorded: for each task (passes, rollouts) recorded so far; the order is as in `gate.order`.
        baselines: how many are drawn.
        used: expected rollouts against given passes per task; None: those of `used_carried`.
    """
    total = 0.0
    earlier = recorded or [(0, 0)] * len(beliefs)
    for _ in range(baselines):
        now = [_draw(pass_counts(b, rollouts), uniform()) for b in beliefs]
        keys = [(pass_chance(p + c, of + rollouts), c) for (p, of), c in zip(earlier, now, strict=True)]
        order = sorted(range(len(beliefs)), key=keys.__getitem__)
        after = [beliefs[i].updated(now[i], rollouts - now[i]) for i in order]
        passed = [now[i] for i in order]
        total += used(after, passed) if used else used_carried(after, rollouts, needed, sum(now), how)
    return total / baselines


def margin_for(beliefs: Sequence[Belief], rollouts: int, false_accept: float) -> int:
    """Return the fewest net passes to ask for, at least 1, so that a do-nothing proposal is accepted that rarely."""
    gains = summed(gain_counts(b, rollouts) for b in beliefs)
    middle = len(beliefs) * rollouts
    return next(m for m in range(1, middle + 2) if gains.at_least(middle + m) <= false_accept)


@lru_cache(maxsize=1024)
def ways(n: int) -> Chances:
    """Return the binomial coefficients of n."""
    return np.array([float(math.comb(n, k)) for k in range(n + 1)])


def exchangeable(belief: Belief, one: int, other: int, passed: int = 0, failed: int = 0) -> Chances:
    """Return the chances of i passes in `one` and j in `other` rollouts of the current bank, a matrix.

    Args:
        passed, failed: the chance of one sequence of so many before them is multiplied in.
    """
    moments = belief.moments(one + other, passed, failed)
    joint: Chances = np.outer(ways(one), ways(other)) * moments[np.add.outer(np.arange(one + 1), np.arange(other + 1))]
    return joint


@lru_cache(maxsize=1024)
def effect_of(how: Change, rollouts: int) -> Chances:
    """Return the matrix from passes without the proposal (rows) to passes with it."""
    rows = [np.convolve(_binomial(k, 1 - how.spoil), _binomial(rollouts - k, how.rescue)) for k in range(rollouts + 1)]
    return np.array(rows)


def _binomial(n: int, p: float) -> Chances:
    k = np.arange(n + 1)
    chances: Chances = ways(n) * p**k * (1 - p) ** (n - k)
    return chances


def _failures(belief: Belief, rollouts: int, how: Change) -> Chances:
    return pass_counts(belief, rollouts, how)[::-1]


@lru_cache(maxsize=4096)
def _waits(belief: Belief, rollouts: int, how: Change) -> Chances:
    """How many of a task's rollouts begin after exactly 0, 1, 2, ... of its failures, expected."""
    waits = np.zeros(rollouts)
    for done in range(rollouts):
        waits[: done + 1] += _failures(belief, done, how)
    return waits


def _draw(chances: Chances, u: float) -> int:
    return min(int(np.searchsorted(np.cumsum(chances), u, side="right")), len(chances) - 1)
