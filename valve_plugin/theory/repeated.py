"""What a gate does whose apparent accepts have to repeat, and whose panel tasks may not fall: exact, as `power`.

Of a plain gate it says what `power` does.

The two measurements of a candidate are compared with the same current outcomes and share the tasks' unknown rates, so
they are far from independent. Everything is a sum over the tasks' joint distributions: products of their transforms.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from valve_plugin.theory import power
from valve_plugin.theory.power import Belief, Change, effect_of, exchangeable, ways
from valve_plugin.theory.sums import LOST, Chances, fast, growing, summed

Joint = NDArray[np.float64]
Transform = NDArray[np.complex128]
_LARGEST = 4096  # side of the joint distributions: their transforms take its square


class Gate(NamedTuple):
    """A gate's rule."""

    rollouts: int
    """r."""
    needed: int
    """Net additional passes, from `gate.needed_passes`."""
    confirm: bool = False
    """An apparent accept has to repeat."""
    guard: int = 0
    """Passes that no task may lose; 0: no guard."""


def accept_fresh(beliefs: Sequence[Belief], gate: Gate, how: Change) -> float:
    """Return the chance of an accept when the current bank is measured afresh too.

    Source: eq:gate, for both measurements of the candidate.
    """
    if not (gate.confirm or gate.guard):
        return power.accept_fresh(beliefs, gate.rollouts, gate.needed, how)
    grids = [(_gains(b, gate, how), tasks) for b, tasks in Counter(beliefs).items()]
    return _reached(grids, len(beliefs) * gate.rollouts + gate.needed, gate)


def accept_carried(beliefs: Sequence[Belief], gate: Gate, now: Sequence[int], how: Change) -> float:
    """Return the chance of an accept against outcomes that are carried forward.

    Args:
        beliefs: one per panel task, the carried outcomes already counted in.
        now: each task's carried passes, 0 to r.
    """
    if not (gate.confirm or gate.guard):
        return power.accept_carried(beliefs, gate.rollouts, gate.needed, sum(now), how)
    alike = Counter(zip(beliefs, now, strict=True))
    grids = [(_passes(b, gate, at, how), tasks) for (b, at), tasks in alike.items()]
    return _reached(grids, sum(now) + gate.needed, gate)


def used_carried(beliefs: Sequence[Belief], gate: Gate, now: Sequence[int], how: Change) -> float:
    """Return the expected rollouts until the verdict, one after the other, tasks in the order given.

    As `power.used_carried`, plus the second measurement of what looks like an accept. The guard may stop sooner; it is
    left out, so this is an upper bound where there is one.
    """
    r, current = gate.rollouts, sum(now)
    spare = len(beliefs) * r - current - gate.needed
    if spare < 0:
        return 0.0
    first = power.used_carried(beliefs, r, gate.needed, current, how)
    return first + _repeated(beliefs, r, spare, how) if gate.confirm else first


def _repeated(beliefs: Sequence[Belief], r: int, spare: int, how: Change) -> float:
    """Expected rollouts of the second measurement; none where the first is no apparent accept.

    A sum over its rollouts: the chance that the first measurement, all of it, leaves no more than the spare failures
    and the second has not used them up yet. Each is a sum over the pairs of failure counts, taken over their
    frequencies (Parseval), where the tasks' contributions are products.
    """
    sums = list(growing(_failures(b, r, r, how).sum(axis=1) for b in beliefs))
    size = _side(max(len(s.chances) for s in sums) + r)
    steps = {b: np.fft.rfft2(_failures(b, r, r, how), (size, size)) for b in set(beliefs)}
    heard = _heard(steps, beliefs)
    steps = {b: t[heard] for b, t in steps.items()}
    turns = np.exp(-2j * np.pi / size * np.outer(np.arange(size), np.arange(r + 1)))  # a transform of few frequencies
    waits = {b: turns[heard] @ _waits(b, r, how) @ turns[: size // 2 + 1, :r].T for b in steps}
    enough = np.fft.fft(_at_most(spare, sums[-1].low, size))[heard].conj()
    to_come = [enough]  # the first measurement's rollouts on the tasks that are still to come in the second
    for belief in reversed(beliefs[1:]):
        to_come.append(to_come[-1] * steps[belief][:, 0])
    twice = np.full(size // 2 + 1, 2.0)  # a real sum's other half of the frequencies mirrors this one
    twice[[0, -1][: 2 - size % 2]] = 1.0
    total, before = 0.0, np.ones_like(next(iter(steps.values())))
    for belief, rest, done in zip(beliefs, reversed(to_come), sums, strict=False):
        open_ = twice * np.fft.rfft(_at_most(spare, done.low, size)).conj()
        total += float((rest @ (before * waits[belief]) @ open_).real)
        before *= steps[belief]
    return total / size**2


def _heard(steps: Mapping[Belief, Transform], beliefs: Sequence[Belief]) -> NDArray[np.bool_]:
    """Which frequencies of the first measurement matter at all: the others vanish in the product over the tasks.

    One task is left out, the one that would weaken a frequency most: it enters in another form.
    """
    loudness = {b: np.log(np.maximum(np.abs(t).max(axis=1), 1e-300)) for b, t in steps.items()}
    together = sum(tasks * loudness[b] for b, tasks in Counter(beliefs).items())
    mask: NDArray[np.bool_] = together - np.min(list(loudness.values()), axis=0) > math.log(LOST)
    return mask


def _at_most(count: int, low: int, size: int) -> Chances:
    """Which remainders modulo `size` stand for a count of at most `count`, when counts begin at `low`."""
    counts = np.arange(low, low + size)
    marks = np.zeros(size)
    marks[counts % size] = counts <= count
    return marks


@lru_cache(maxsize=4096)
def _waits(belief: Belief, r: int, how: Change) -> Joint:
    """As `power._waits` for the second measurement, jointly with the failures of the whole first one."""
    waits = np.zeros((r + 1, r))
    for done in range(r):
        waits[:, : done + 1] += _failures(belief, r, done, how)
    return waits


@lru_cache(maxsize=4096)
def _failures(belief: Belief, one: int, other: int, how: Change) -> Joint:
    """Joint distribution of a task's failures in `one` and `other` rollouts of the candidate."""
    base = exchangeable(belief, one, other)
    passes: Joint = effect_of(how, one).T @ base @ effect_of(how, other)
    return passes[::-1, ::-1]


@lru_cache(maxsize=4096)
def _gains(belief: Belief, gate: Gate, how: Change) -> Joint:
    """Joint distribution of a task's gains, -r..r, in both measurements against one fresh measurement of the bank."""
    r = gate.rollouts
    change = effect_of(how, r)
    grid = np.zeros((2 * r + 1, 2 * r + 1))
    for now in range(r + 1):
        base = exchangeable(belief, r, r, now, r - now)
        then = ways(r)[now] * (change.T @ base @ change)
        grid[r - now : 2 * r + 1 - now, r - now : 2 * r + 1 - now] += _guarded(then, gate, now)
    return grid


def _passes(belief: Belief, gate: Gate, now: int, how: Change) -> Joint:
    return _guarded(_failures(belief, gate.rollouts, gate.rollouts, how)[::-1, ::-1], gate, now)


def _guarded(chances: Joint, gate: Gate, now: int) -> Joint:
    """Take out what the guard rejects: the mass that is left is that of panels on which no task fell."""
    if not gate.guard or now < gate.guard:
        return chances
    kept: Joint = chances.copy()
    kept[: now - gate.guard + 1, :] = 0
    if gate.confirm:
        kept[:, : now - gate.guard + 1] = 0
    return kept


def _reached(grids: Sequence[tuple[Joint, int]], start: int, gate: Gate) -> float:
    """The chance that a sum of independent pairs reaches `start`: in the first place, or with confirm in both.

    Args:
        grids: the distribution of a task's pair, and how many tasks have it; both places are distributed alike.
    """
    once = summed(grid.sum(axis=1) for grid, tasks in grids for _ in range(tasks))
    if not gate.confirm:
        return once.at_least(start)
    # Counts are taken modulo a size that holds all but the mass which `once` leaves out.
    size = _side(max(len(once.chances), *(len(grid) for grid, _ in grids)))
    transform = np.ones((size, size // 2 + 1), dtype=complex)
    for grid, tasks in grids:
        transform *= np.fft.rfft2(grid, (size, size)) ** tasks
    places = np.arange(max(start, once.low), once.low + size) % size
    chances = np.fft.irfft2(transform, (size, size))
    return min(1.0, max(0.0, float(chances[np.ix_(places, places)].sum())))


def _side(size: int) -> int:
    if size > _LARGEST:
        raise ValueError(f"{size} counts are possible, expected at most {_LARGEST} with confirm: take a smaller panel")
    return fast(size)
