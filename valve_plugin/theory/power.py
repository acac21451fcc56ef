"""Exact chances and rollouts of a gate of N tasks and r rollouts, for a proposal of known effect.

A rollout passes with its task's rate, which has a known distribution. A proposal makes a failing rollout pass, or a
passing one fail, with the same probability on all tasks, so that the mean rate changes by exactly the effect. Counts
are then mixtures of binomials, and their sums over tasks are convolutions.

With `confirm` the two measurements of a candidate are compared with the same current outcomes and share the tasks'
unknown rates, so sums are taken over their joint distribution, by products of Fourier transforms.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from valve_plugin.theory.estimates import RateSpread, rate_spread
from valve_plugin.theory.panel_order import pass_chance

Chances: TypeAlias = NDArray[np.float64]
"""Probabilities of 0, 1, 2, ... counts; with two axes, of pairs of counts."""

_NEGLIGIBLE = 1e-18  # mass that a sum leaves out at each end: far below what a sum of doubles can show
_LARGEST = 4096  # side of a joint distribution: its transform takes the square
_MOST_ALIKE = 100.0  # pseudo-rollouts of a population whose tasks look all the same


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
            np.concatenate([[0.0], np.cumsum(np.log(x + np.arange(n + passed + failed)))])
            for x in (self.a, self.b, self.a + self.b)
        )
        k = np.arange(n + 1)
        chances: Chances = np.exp(up[passed + k] + down[failed + n - k] - both[n + passed + failed])
        return chances

    def updated(self, passed: int, failed: int) -> Beta:
        """Return the distribution after these additional passes and failures."""
        return Beta(self.a + passed, self.b + failed)


class KnownRate(NamedTuple):
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

    def updated(self, passed: int, failed: int) -> KnownRate:
        """Return itself, since the rate is known."""
        return self


Belief: TypeAlias = Beta | KnownRate


def population(rates: RateSpread) -> Beta:
    """Return the Beta distribution with this estimated mean and noise; Beta(1, 1) for those of a uniform rate.

    Raises:
        ValueError: the mean is not in (0, 1), or the noise not above 0.
    """
    if not 0 < rates.mean < 1 or rates.mass <= 0:
        raise ValueError(f"mean rate {rates.mean} and noise {rates.mass}, expected a mean in (0, 1) and noise above 0")
    between = rates.mean * (1 - rates.mean) - rates.mass  # Var[p]; an unbiased estimate may be negative
    weight = rates.mass / between if between > rates.mass / _MOST_ALIKE else _MOST_ALIKE
    return Beta(rates.mean * weight, (1 - rates.mean) * weight)


def exact_population(rates: RateSpread) -> Belief:
    """Return the distribution of solve rates with exactly this mean and noise, as given by the user.

    Unlike `population`, it corrects nothing. If the noise is the largest that the mean allows, all tasks have one
    known rate.

    Raises:
        ValueError: no solve rates have this mean and noise, or only rates of 0 and 1.
    """
    mean, mass = rates
    if not 0 < mean < 1:
        raise ValueError(f"the mean solve rate is {mean:g}, expected one between 0 and 1: 75 % are 0.75")
    most = mean * (1 - mean)
    if not 0 < mass <= most * (1 + 1e-9):
        raise ValueError(
            f"tasks that pass {100 * mean:g} % of their rollouts have a mean p(1-p) above 0 and of at most {most:.4g}, "
            f"not {mass:g}; {most:.4g} is when all have the same rate, less the more they differ"
        )
    between = most - mass
    if between <= most * 1e-9:
        return KnownRate(mean)
    return Beta(mean * mass / between, (1 - mean) * mass / between)


def posterior(
    panels: Sequence[Sequence[int]], rollouts: int, current: Sequence[Sequence[int]] | None = None
) -> list[Beta]:
    """Return what is believed about each task's rate under the current bank.

    The noise of a rate is learned from all measurements, its level only from those of the current bank. An accepted
    measurement was chosen for being high, so it is likely to flatter its bank a little.

    Args:
        panels: for each measurement, the resolved rollouts of every task, each in 0..r.
        rollouts: r.
        current: the measurements of the current bank; None: the last one.
    """
    now = current or panels[-1:]
    prior = population(RateSpread(rate_spread(now, rollouts).mean, rate_spread(panels, rollouts).mass))
    passed = [sum(task) for task in zip(*now, strict=True)]
    return [prior.updated(p, rollouts * len(now) - p) for p in passed]


class EffectChange(NamedTuple):
    """The effect of a proposal on every rollout."""

    rescue: float = 0.0
    """Probability that a rollout passes that would fail without the proposal."""
    spoil: float = 0.0
    """Probability that a rollout fails that would pass without the proposal."""


_NO_CHANGE = EffectChange()


def effect_change(beliefs: Sequence[Belief], effect: float) -> EffectChange:
    """Return the change that moves the expected mean rate by `effect`, in rate units.

    Raises:
        ValueError: the rates cannot rise (or fall) by that much.
    """
    mean = sum(b.moment(1, 0) for b in beliefs) / len(beliefs)
    room = 1 - mean if effect > 0 else mean
    if abs(effect) > room:
        raise ValueError(f"an effect of {effect:+.3f} at a mean rate of {mean:.3f}, expected at most {room:.3f}")
    if effect == 0:
        return _NO_CHANGE
    return EffectChange(rescue=effect / room) if effect > 0 else EffectChange(spoil=-effect / room)


class Gate(NamedTuple):
    """A gate's rule."""

    rollouts: int
    """r."""
    needed: int
    """Net additional passes, from `acceptance.needed_passes`."""
    confirm: bool = False
    """An apparent accept has to repeat on fresh rollouts."""
    guard: int = 0
    """A task that loses this many passes causes a reject; 0: no guard."""


def fresh_accept_chance(beliefs: Sequence[Belief], gate: Gate, how: EffectChange) -> float:
    """Return the chance of an accept after a fresh baseline of the current bank.

    Args:
        beliefs: one per panel task.
        gate: the rule; with `confirm`, both measurements of the candidate have to reach it.
        how: the proposal's change.
    Raises:
        ValueError: with `confirm`, the panel is too large.
    Source: eq:gate.
    """
    gains = [(_gains(b, gate, how), tasks) for b, tasks in Counter(beliefs).items()]
    return _reach_chance(gains, len(beliefs) * gate.rollouts + gate.needed)


def carried_accept_chance(beliefs: Sequence[Belief], gate: Gate, now: Sequence[int], how: EffectChange) -> float:
    """Return the chance of an accept against outcomes that are carried forward.

    Args:
        beliefs: one per panel task, the carried outcomes already counted in.
        now: each task's carried passes, 0 to r.
    Raises:
        ValueError: with `confirm`, the panel is too large.
    Source: eq:gate with score carry-forward (app:impl-validate).
    """
    r = gate.rollouts
    alike = Counter(zip(beliefs, now, strict=True))
    passes = [
        (_apply_guard(_joint(b, r, r * gate.confirm, how), gate, passed), tasks) for (b, passed), tasks in alike.items()
    ]
    return _reach_chance(passes, sum(now) + gate.needed)


def carried_rollouts(beliefs: Sequence[Belief], gate: Gate, now: Sequence[int], how: EffectChange) -> float:
    """Return the expected rollouts until the verdict, one after the other, tasks in the order given.

    A rejection is certain with the first failure beyond the N * r - current - needed that an accept can afford; an
    accept runs everything. So it is the sum over n < N * r of the chance that n rollouts left the verdict open, and
    the same for the second measurement. The guard may stop sooner; it is left out, so this is an upper bound then.
    """
    r = gate.rollouts
    spare = len(beliefs) * r - sum(now) - gate.needed
    if spare < 0:
        return 0.0
    expected, failures = 0.0, _ZERO
    for belief in beliefs:
        expected += float(_waits(belief, 0, r, how)[0] @ failures.at_most(spare - np.arange(r)))
        failures = failures.plus(pass_counts(belief, r, how)[::-1])
        if failures.low > spare:
            break
    return expected + _repeat_rollouts(beliefs, r, spare, how) if gate.confirm else expected


def fresh_rollouts(
    beliefs: Sequence[Belief],
    gate: Gate,
    how: EffectChange,
    uniform: Callable[[], float],
    *,
    recorded: Sequence[tuple[int, int]] = (),
    baselines: int = 64,
    progress: Callable[[], None] = lambda: None,
) -> float:
    """Return the expected rollouts of a gate after a fresh baseline: exact for each of a few drawn baselines.

    Args:
        uniform: gives numbers in [0, 1); the only randomness.
        recorded: for each task (passes, rollouts) recorded so far; the order is as in `panel_order.task_order`.
        baselines: how many are drawn.
        progress: called after each of them.
    """
    r, total = gate.rollouts, 0.0
    earlier = recorded or [(0, 0)] * len(beliefs)
    for _ in range(baselines):
        now = [_draw(pass_counts(b, r), uniform()) for b in beliefs]
        keys = [(pass_chance(p + c, of + r), c) for (p, of), c in zip(earlier, now, strict=True)]
        order = sorted(range(len(beliefs)), key=keys.__getitem__)
        after = [beliefs[i].updated(now[i], r - now[i]) for i in order]
        total += carried_rollouts(after, gate, [now[i] for i in order], how)
        progress()
    return total / baselines


def margin_for(beliefs: Sequence[Belief], rollouts: int, false_accept: float) -> int:
    """Return the smallest margin in net passes, at least 1, that keeps the rate of false accepts below the limit."""
    gains = list(_partial_sums(_gains(b, Gate(rollouts, 0), _NO_CHANGE)[:, 0] for b in beliefs))[-1]
    middle = len(beliefs) * rollouts
    return next(m for m in range(1, middle + 2) if gains.at_least(middle + m) <= false_accept)


def pass_counts(belief: Belief, rollouts: int, how: EffectChange = _NO_CHANGE) -> Chances:
    """Return the distribution of a task's passes in `rollouts` rollouts of the candidate."""
    counts: Chances = _joint(belief, rollouts, 0, how)[:, 0]
    return counts


@lru_cache(maxsize=4096)
def _joint(belief: Belief, one: int, other: int, how: EffectChange, passed: int = 0, failed: int = 0) -> Chances:
    """Joint distribution of a task's passes in `one` and `other` rollouts of the candidate.

    Multiplied by the chance of one sequence of `passed` and `failed` rollouts of the current bank before them.
    """
    moments = belief.moments(one + other, passed, failed)[np.add.outer(np.arange(one + 1), np.arange(other + 1))]
    base = np.outer(_binomial_coefficients(one), _binomial_coefficients(other)) * moments
    joint: Chances = _effect(how, one).T @ base @ _effect(how, other)
    return joint


@lru_cache(maxsize=4096)
def _gains(belief: Belief, gate: Gate, how: EffectChange) -> Chances:
    """Distribution of a task's gains, -r..r, over one fresh measurement of the bank; with confirm, of both gains."""
    r = gate.rollouts
    second = r * gate.confirm
    grid = np.zeros((2 * r + 1, 2 * second + 1))
    for now in range(r + 1):
        then = _binomial_coefficients(r)[now] * _apply_guard(_joint(belief, r, second, how, now, r - now), gate, now)
        start = min(second, r - now)
        grid[r - now : 2 * r + 1 - now, start : start + second + 1] += then
    return grid


def _apply_guard(chances: Chances, gate: Gate, now: int) -> Chances:
    """Take out what the guard rejects: the mass that is left is that of panels on which no task fell."""
    if not gate.guard or now < gate.guard:
        return chances
    kept: Chances = chances.copy()
    kept[: now - gate.guard + 1, :] = 0
    if gate.confirm:
        kept[:, : now - gate.guard + 1] = 0
    return kept


@lru_cache(maxsize=4096)
def _waits(belief: Belief, first: int, rollouts: int, how: EffectChange) -> Chances:
    """How many of a task's rollouts begin after exactly 0, 1, 2, ... of its failures, expected (columns).

    Jointly with its failures in `first` rollouts of an earlier measurement (rows).
    """
    waits = np.zeros((first + 1, rollouts))
    for done in range(rollouts):
        waits[:, : done + 1] += _joint(belief, first, done, how)[::-1, ::-1]
    return waits


@lru_cache(maxsize=1024)
def _effect(how: EffectChange, rollouts: int) -> Chances:
    """Return the matrix from passes without the proposal (rows) to passes with it."""
    rows = [np.convolve(_binomial(k, 1 - how.spoil), _binomial(rollouts - k, how.rescue)) for k in range(rollouts + 1)]
    return np.array(rows)


def _binomial(n: int, p: float) -> Chances:
    k = np.arange(n + 1)
    chances: Chances = _binomial_coefficients(n) * p**k * (1 - p) ** (n - k)
    return chances


@lru_cache(maxsize=1024)
def _binomial_coefficients(n: int) -> Chances:
    """Return the binomial coefficients of n."""
    return np.array([float(math.comb(n, k)) for k in range(n + 1)])


def _draw(chances: Chances, u: float) -> int:
    return min(int(np.searchsorted(np.cumsum(chances), u, side="right")), len(chances) - 1)


class _Counts(NamedTuple):
    """The distribution of a sum of counts, held only where its mass is.

    A thousand tasks of thirty rollouts have 30,001 possible sums, and all but a few hundred never happen.
    """

    low: int
    """The least count that is held."""
    chances: Chances
    """Of `low`, `low + 1`, ..."""

    def plus(self, more: Chances) -> _Counts:
        """Return the distribution of the sum with an independent count of 0, 1, 2, ..."""
        chances = np.convolve(self.chances, more)
        start = int(np.searchsorted(np.cumsum(chances), _NEGLIGIBLE))
        end = len(chances) - int(np.searchsorted(np.cumsum(chances[::-1]), _NEGLIGIBLE))
        if start >= end:  # less mass than that in all
            return _Counts(self.low, np.zeros(1))
        return _Counts(self.low + start, chances[start:end])

    def at_least(self, count: int) -> float:
        """Return the chance of so many or more."""
        return min(1.0, float(self.chances[max(count - self.low, 0) :].sum()))

    def at_most(self, counts: NDArray[np.int_]) -> Chances:
        """Return, for each of the counts, the chance of so many or fewer."""
        sums = np.concatenate([[0.0], np.cumsum(self.chances)])
        reached: Chances = sums[np.clip(counts - self.low + 1, 0, len(self.chances))]
        return reached


_ZERO = _Counts(0, np.ones(1))


def _partial_sums(parts: Iterable[Chances]) -> Iterable[_Counts]:
    """Yield the distribution of the sum of none, the first, the first two, ... of independent counts."""
    return accumulate(parts, _Counts.plus, initial=_ZERO)


def _reach_chance(grids: Sequence[tuple[Chances, int]], start: int) -> float:
    """The chance that a sum of independent pairs reaches `start` in both places, or in its only one.

    Args:
        grids: the distribution of a task's pair (one column: of a single count), and how many tasks have it; both
            places are distributed alike.
    """
    once = list(_partial_sums(grid.sum(axis=1) for grid, tasks in grids for _ in range(tasks)))[-1]
    if grids[0][0].shape[1] == 1:
        return once.at_least(start)
    # Counts are taken modulo a size that holds all but the mass which `once` leaves out.
    size = _transform_size(max(len(once.chances), *(len(grid) for grid, _ in grids)))
    transform = np.ones((size, size // 2 + 1), dtype=complex)
    for grid, tasks in grids:
        transform *= np.fft.rfft2(grid, (size, size)) ** tasks
    places = np.arange(max(start, once.low), once.low + size) % size
    chances = np.fft.irfft2(transform, (size, size))
    return min(1.0, max(0.0, float(chances[np.ix_(places, places)].sum())))


def _repeat_rollouts(beliefs: Sequence[Belief], r: int, spare: int, how: EffectChange) -> float:
    """Expected rollouts of the second measurement; none where the first is no apparent accept.

    A sum over its rollouts: the chance that the first measurement, all of it, leaves no more than the spare failures
    and the second has not used them up yet. Each is a sum over the pairs of failure counts, taken over their
    frequencies (Parseval), where the tasks' contributions are products.
    """
    failures = {b: _joint(b, r, r, how)[::-1, ::-1] for b in set(beliefs)}
    sums = list(_partial_sums(failures[b].sum(axis=1) for b in beliefs))
    size = _transform_size(max(len(s.chances) for s in sums) + r)
    steps = {b: np.fft.rfft2(pairs, (size, size)) for b, pairs in failures.items()}
    # Frequencies of the first measurement that matter: the others vanish in the product over the tasks. One task is
    # left out of it, the one that would weaken a frequency most, since it enters in another form.
    loud = {b: np.log(np.maximum(np.abs(t).max(axis=1), 1e-300)) for b, t in steps.items()}
    product = sum(tasks * loud[b] for b, tasks in Counter(beliefs).items())
    heard = product - np.min(list(loud.values()), axis=0) > math.log(_NEGLIGIBLE)
    steps = {b: t[heard] for b, t in steps.items()}
    turns = np.exp(-2j * np.pi / size * np.outer(np.arange(size), np.arange(r + 1)))  # a transform of few frequencies
    waits = {b: turns[heard] @ _waits(b, r, r, how) @ turns[: size // 2 + 1, :r].T for b in steps}
    # The first measurement's rollouts on the tasks that are still to come in the second.
    to_come = [np.fft.fft(_at_most_mask(spare, sums[-1].low, size))[heard].conj()]
    for belief in reversed(beliefs[1:]):
        to_come.append(to_come[-1] * steps[belief][:, 0])
    twice = np.full(size // 2 + 1, 2.0)  # a real sum's other half of the frequencies mirrors this one
    twice[[0, -1][: 2 - size % 2]] = 1.0
    total, before = 0.0, np.ones_like(next(iter(steps.values())))
    for belief, rest, done in zip(beliefs, reversed(to_come), sums, strict=False):
        open_ = twice * np.fft.rfft(_at_most_mask(spare, done.low, size)).conj()
        total += float((rest @ (before * waits[belief]) @ open_).real)
        before *= steps[belief]
    return total / size**2


def _at_most_mask(count: int, low: int, size: int) -> Chances:
    """Which remainders modulo `size` stand for a count of at most `count`, when counts begin at `low`."""
    counts = np.arange(low, low + size)
    marks = np.zeros(size)
    marks[counts % size] = counts <= count
    return marks


def _transform_size(size: int) -> int:
    """Return the least length of at least `size` whose Fourier transform is fast."""
    if size > _LARGEST:
        raise ValueError(f"{size} counts are possible, expected at most {_LARGEST} with confirm: take a smaller panel")
    return min(odd << i for odd in (1, 3, 5) for i in range(size.bit_length() + 1) if odd << i >= size)
