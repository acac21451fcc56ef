"""What a gate accepts, exactly, and what a run of many gates comes to, by drawing runs.

The model. A panel task passes a rollout with its rate, and rates have known Beta distributions. A proposal reaches each
task with the same chance, and changes those that it reaches. Spread evenly, it makes a failing rollout pass, or a
passing one fail, with the same chance on all of them. Whole, it makes a task always pass, or always fail, with that
chance, and leaves the others alone. A task that is not reached keeps its outcomes on both sides of the comparison.

Passes of one task are then mixtures of binomials, and their sum over tasks a product of Fourier transforms.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from valve_plugin.theory.confidence_sequence import BETS
from valve_plugin.theory.estimates import RateSpread, rate_spread

Chances: TypeAlias = NDArray[np.float64]

_MOST_ALIKE = 100.0  # pseudo-rollouts of a population whose tasks look all the same
_ALIKE = 1e9  # pseudo-rollouts of tasks that all have one rate


class Beta(NamedTuple):
    """A task whose solve rate is believed to be Beta(a, b) distributed."""

    a: float
    b: float

    @property
    def mean(self) -> float:
        """E[p]."""
        return self.a / (self.a + self.b)

    @property
    def noise(self) -> float:
        """E[p(1-p)]."""
        return self.mean * self.b / (self.a + self.b + 1)

    def moments(self, n: int) -> Chances:
        """Return E[p^k (1-p)^(n-k)] for k = 0..n, through logarithms: none underflows on the way."""
        up, down, both = (
            np.concatenate([[0.0], np.cumsum(np.log(x + np.arange(n)))]) for x in (self.a, self.b, self.a + self.b)
        )
        chances: Chances = np.exp(up + down[::-1] - both[n])
        return chances


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


def exact_population(rates: RateSpread) -> Beta:
    """Return the distribution of solve rates with exactly this mean and noise, as given by the user.

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
    weight = min(mass / max(most - mass, 1e-300), _ALIKE)
    return Beta(mean * weight, (1 - mean) * weight)


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
    return [Beta(prior.a + p, prior.b + rollouts * len(now) - p) for p in passed]


class Change(NamedTuple):
    """What a proposal does to the tasks that it reaches."""

    chance: float = 0.0
    """Of a failing rollout (or task) to pass; below 0: of a passing one to fail."""
    reach: float = 1.0
    """Chance that a task gets it at all."""
    whole: bool = False
    """Whole tasks change, not single rollouts."""


def change_of(beliefs: Sequence[Beta], effect: float, reach: float = 1.0) -> Change:
    """Return the change, spread evenly, that moves the expected mean rate by `effect`, in rate units.

    Raises:
        ValueError: the rates of the tasks that it reaches cannot rise (or fall) by that much.
    """
    room = most_gain(beliefs, reach) if effect > 0 else reach - most_gain(beliefs, reach)
    if abs(effect) > room:
        raise ValueError(f"an effect of {effect:+.3f}, expected at most {room:.3f} in size on tasks of these rates")
    return Change(effect / room if effect else 0.0, reach)


def most_gain(beliefs: Sequence[Beta], reach: float = 1.0) -> float:
    """Return the most that a proposal can add to the mean rate: what the tasks that it reaches fail."""
    return reach * (1 - sum(b.mean for b in beliefs) / len(beliefs))


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
    fresh: int = 0
    """Queries that outcomes serve in; an accept's are measured anew. 0: an accept's outcomes carry forward."""
    bet: int = 0
    """What an accept's bet has to multiply its stake by, as `acceptance.bet_reaches`; 0: no such bet."""


def accept_chance(beliefs: Sequence[Beta], gate: Gate, how: Change, now: Sequence[int] | None = None) -> float:
    """Return the chance of an accept: exact, but with `confirm` or a bet the share of drawn queries.

    Args:
        beliefs: one per panel task; with `now`, those outcomes already counted in.
        now: each task's current passes; None: after a fresh baseline.
    Source: eq:gate.
    """
    if gate.confirm or gate.bet:
        return simulate(beliefs, gate, [(1.0, how)], 1, runs=draws(beliefs, gate.rollouts, 4000), now=now).first[0]
    gains = _sum_of_gains(beliefs, gate, how, now)
    return min(1.0, max(0.0, float(gains[len(beliefs) * gate.rollouts + gate.needed :].sum())))


def margin_for(beliefs: Sequence[Beta], rollouts: int, false_accept: float, reach: float = 1.0) -> int:
    """Return the smallest margin in net passes, at least 1, that keeps the rate of false accepts below the limit."""
    gains = _sum_of_gains(beliefs, Gate(rollouts, 0), Change(reach=reach), None)
    tails = np.cumsum(gains[::-1])[::-1][len(beliefs) * rollouts + 1 :]
    return 1 + int((tails > false_accept).sum())


def draws(beliefs: Sequence[Beta], rollouts: int, most: int) -> int:
    """Return how many runs to draw: fewer for large panels, which differ less."""
    return max(20, most * 150 // max(150, len(beliefs) * rollouts))


def _sum_of_gains(beliefs: Sequence[Beta], gate: Gate, how: Change, now: Sequence[int] | None) -> Chances:
    """Distribution of the panel's gain, from -N * r on."""
    size = 2 * len(beliefs) * gate.rollouts + 1
    transform: Any = 1.0
    known: Sequence[int | None] = now or [None] * len(beliefs)
    for (belief, passed), tasks in Counter(zip(beliefs, known, strict=True)).items():
        transform = transform * np.fft.rfft(_gains(belief, gate, how, passed), size) ** tasks
    gains: Chances = np.fft.irfft(transform, size)
    return gains


@lru_cache(maxsize=4096)
def _gains(belief: Beta, gate: Gate, how: Change, passed: int | None) -> Chances:
    """Distribution of a task's gain, -r..r. The mass that a guard rejects is left out."""
    r = gate.rollouts
    found = np.zeros(2 * r + 1)
    moments = belief.moments((2 if passed is None else 1) * r)
    for now in range(r + 1) if passed is None else [passed]:
        weight, start = (1.0, 0) if passed is not None else (float(math.comb(r, now)), now)
        then = weight * _choose(r) * moments[start : start + r + 1]
        if how.whole:
            changed = np.zeros_like(then)
            changed[-1 if how.chance > 0 else 0] = then.sum()
            then = (1 - abs(how.chance)) * then + abs(how.chance) * changed
        else:
            then = then @ _effect(how.chance, r)
        then, kept = how.reach * then, (1 - how.reach) * then.sum()
        if gate.guard and now >= gate.guard:
            then[: now - gate.guard + 1] = 0
        found[r - now : 2 * r + 1 - now] += then
        found[r] += kept
    return found


@lru_cache(maxsize=1024)
def _effect(chance: float, rollouts: int) -> Chances:
    """Return the matrix from passes without the proposal (rows) to passes with it."""
    spoil, rescue = max(-chance, 0.0), max(chance, 0.0)
    rows = [np.convolve(_binomial(k, 1 - spoil), _binomial(rollouts - k, rescue)) for k in range(rollouts + 1)]
    return np.array(rows)


def _binomial(n: int, p: float) -> Chances:
    k = np.arange(n + 1)
    chances: Chances = _choose(n) * p**k * (1 - p) ** (n - k)
    return chances


@lru_cache(maxsize=1024)
def _choose(n: int) -> Chances:
    return np.array([float(math.comb(n, k)) for k in range(n + 1)])


# ---- runs


class RunFigures(NamedTuple):
    """What drawn runs came to."""

    accepted: tuple[float, ...]
    """Mean accepts of each kind of proposal."""
    first: tuple[float, ...]
    """Share of each kind that the first query accepted."""
    gain: float
    """Mean change of the rate of as many tasks that no gate saw, in rate units."""
    low: float
    high: float
    """90 % of the runs gained between these."""
    rollouts: float
    """Mean, baselines included."""
    baselines: float


def simulate(
    beliefs: Sequence[Beta],
    gate: Gate,
    kinds: Sequence[tuple[float, Change]],
    queries: int,
    *,
    seed: int = 0,
    runs: int = 1000,
    now: Sequence[int] | None = None,
    screen: int = 0,
) -> RunFigures:
    """Draw runs of the gate and return their means.

    Each proposal is of a kind drawn by its share. What is accepted stays. Tasks run by their current
    passes, the fewest first, and a query ends with the first rollout that makes a rejection certain.

    Args:
        kinds: share and change of each kind of proposal; the shares add up to 1.
        queries: proposals. Those that fail their screen are none in the end.
        now: current passes of each task at the start; None: the first query measures them.
        screen: attempts that a proposal must pass first, at a task that it reaches. This is one that no gate sees,
            drawn with weight p (1 - p), as a task is whose attempts were mixed.
    """
    draw, n, r = np.random.default_rng(seed), len(beliefs), gate.rollouts
    a, b = np.array(beliefs).T
    rates = draw.beta(np.tile(a, 2), np.tile(b, 2), (runs, 2 * n))  # the panel's tasks, then those that nobody sees
    begin = rates[:, n:].mean(1)
    passes = np.tile(-1 if now is None else np.array(now), (runs, 1 if now is not None else n))
    served = np.zeros_like(passes)
    ends, chances, reaches, wholes = (
        np.array(x) for x in zip(*((share, *change) for share, change in kinds), strict=True)
    )
    accepted, first = np.zeros(len(kinds)), np.zeros(len(kinds))
    baselines = ran = 0
    for query in range(queries):
        kind = np.searchsorted(np.cumsum(ends)[:-1], draw.random(runs), side="right")
        asked, tried = _screened(draw, rates[:, n:], chances[kind], wholes[kind], screen)
        ran += tried
        lacking = (passes < 0) & asked[:, None]
        passes[lacking] = draw.binomial(r, rates[:, :n][lacking])
        baselines += r * int(lacking.sum())
        reached = (draw.random((runs, 2 * n)) < reaches[kind, None]) & asked[:, None]
        after = np.where(reached, _changed(draw, rates, chances[kind, None], wholes[kind, None]), rates)
        yes, then, used = _measure(draw, gate, passes, after[:, :n], reached[:, :n])
        if gate.confirm:
            again, repeated, more = _measure(draw, gate, passes, after[:, :n], reached[:, :n])
            then, used, yes = np.where(yes[:, None], repeated, then), used + more * yes, yes & again
        ran += int(used.sum())
        counts = np.bincount(kind[yes], minlength=len(kinds))
        accepted += counts
        if query == 0:
            first = counts / np.maximum(np.bincount(kind, minlength=len(kinds)), 1)
        rates = np.where(yes[:, None], after, rates)
        ours = reached[:, :n] & yes[:, None]
        if gate.fresh:
            served += reached[:, :n]
            old = ours | (served >= gate.fresh)
            passes, served = np.where(old, -1, passes), np.where(old, 0, served)
        else:
            passes = np.where(ours, then, passes)
    gains = rates[:, n:].mean(1) - begin
    low, high = np.quantile(gains, (0.05, 0.95))
    return RunFigures(
        tuple(map(float, accepted / runs)),
        tuple(map(float, first)),
        float(gains.mean()),
        float(low),
        float(high),
        (ran + baselines) / runs,
        baselines / runs,
    )


def _screened(
    draw: np.random.Generator, rates: Chances, chance: Chances, whole: NDArray[np.bool_], screen: int
) -> tuple[NDArray[np.bool_], int]:
    """Draw each run's screen: (passes, rollouts of all until their first failures)."""
    if not screen:
        return np.ones(len(rates), dtype=bool), 0
    weights = np.cumsum(rates * (1 - rates), axis=1)
    source = (weights < draw.random((len(rates), 1)) * weights[:, -1:]).sum(1)[:, None]
    rate = _changed(draw, np.take_along_axis(rates, source, 1), chance[:, None], whole[:, None])
    passed = draw.random((len(rates), screen)) < rate
    passes = passed.sum(axis=1) == screen
    return passes, int((1 + np.cumprod(passed, axis=1)[:, :-1].sum(1)).sum())


def _changed(draw: np.random.Generator, rates: Chances, chance: Chances, whole: NDArray[np.bool_]) -> Chances:
    """Return the rates with a proposal, everywhere."""
    evenly = np.where(chance > 0, rates + (1 - rates) * chance, rates * (1 + chance))
    struck = np.where(draw.random(rates.shape) < np.abs(chance), (chance > 0).astype(float), rates)
    changed: Chances = np.where(whole, struck, evenly)
    return changed


def _measure(
    draw: np.random.Generator,
    gate: Gate,
    passes: NDArray[np.int_],
    rates: Chances,
    reached: NDArray[np.bool_],
) -> tuple[NDArray[np.bool_], NDArray[np.int_], NDArray[np.int_]]:
    """Draw one measurement of each run's candidate: (accepts, passes of each task, rollouts until the verdict)."""
    runs, n = passes.shape
    order = np.argsort(passes, axis=1, kind="stable")
    shape = runs, n, gate.rollouts
    passed = draw.random(shape) < np.take_along_axis(rates, order, 1)[:, :, None]
    before = np.arange(gate.rollouts) < np.take_along_axis(passes, order, 1)[:, :, None]
    live = np.broadcast_to(np.take_along_axis(reached, order, 1)[:, :, None], shape)
    then = np.empty_like(passes)
    np.put_along_axis(then, order, passed.sum(2), 1)

    def seen(cells: NDArray[np.bool_]) -> NDArray[np.int_]:
        """Return how many such cells there were after each."""
        return np.cumsum((live & cells).reshape(runs, -1), axis=1)

    total, failed_before = live.sum((1, 2)), (live & ~before).sum((1, 2))[:, None]
    could_gain = failed_before - seen(~passed)
    open_, never = could_gain >= gate.needed, failed_before[:, 0] < gate.needed
    if gate.bet:
        capital = capitals(n * gate.rollouts)
        never |= capital[failed_before[:, 0], 0] < math.log(gate.bet)
        open_ &= capital[failed_before - seen(~before & ~passed), seen(before & ~passed)] >= math.log(gate.bet)
    yes = open_[:, -1] & (total > 0)
    if gate.guard:
        yes &= ~((passes - then >= gate.guard) & reached).any(axis=1)
    used = np.where(open_.all(axis=1), total, np.take_along_axis(seen(live), open_.argmin(1)[:, None], 1)[:, 0])
    return yes, then, np.where(never, 0, used)


@lru_cache(maxsize=4)
def capitals(pairs: int) -> Chances:
    """Return the logarithm of the capital by pairs that are better (rows) and worse, as `log_capital`."""
    bets, count = np.array(BETS), np.arange(pairs + 1)
    logs = np.add.outer(count, 0 * count)[..., None] * np.log1p(bets) + count[None, :, None] * np.log1p(-bets)
    found: Chances = np.logaddexp.reduce(logs, axis=2) - math.log(len(bets))
    return found
