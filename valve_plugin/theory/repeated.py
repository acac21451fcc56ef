"""What a gate does whose apparent accepts have to repeat, and whose panel tasks may not fall: exact, as `power`.

The two measurements of a candidate are compared with the same current outcomes and share the tasks' unknown rates, so
they are far from independent. Everything is a sum over the tasks' joint distributions: products of their transforms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from valve_plugin.theory.power import Belief, Change, effect_of
from valve_plugin.theory.power import used_carried as used_once

Joint = NDArray[np.float64]
_LARGEST = 3001  # side of the joint distributions: their transforms take its square


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
    r, n = gate.rollouts, len(beliefs)
    size = 2 * n * r + 1
    if size > _LARGEST:
        raise ValueError(f"{n} tasks x {r} rollouts, expected at most {_LARGEST // 2} rollouts with confirm or guard")
    grids = {b: _gains(b, gate, how) for b in set(beliefs)}
    chances = _summed([grids[b] for b in beliefs], size)
    start = n * r + gate.needed
    return _clipped(chances[start:, start:].sum() if gate.confirm else chances[start:].sum())


def accept_carried(beliefs: Sequence[Belief], gate: Gate, now: Sequence[int], how: Change) -> float:
    """Return the chance of an accept against outcomes that are carried forward.

    Args:
        beliefs: one per panel task, the carried outcomes already counted in.
        now: each task's carried passes, 0 to r.
    """
    size = len(beliefs) * gate.rollouts + 1
    chances = _summed([_passes(b, gate, at, how) for b, at in zip(beliefs, now, strict=True)], size)
    start = max(0, sum(now) + gate.needed)
    return _clipped(chances[start:, start:].sum() if gate.confirm else chances[start:].sum())


def used_carried(beliefs: Sequence[Belief], gate: Gate, now: Sequence[int], how: Change) -> float:
    """Return the expected rollouts until the verdict, one after the other, tasks in the order given.

    As `power.used_carried`, plus the second measurement of what looks like an accept. The guard may stop sooner; it is
    left out, so this is an upper bound where there is one.
    """
    r, current = gate.rollouts, sum(now)
    spare = len(beliefs) * r - current - gate.needed
    if spare < 0:
        return 0.0
    first = used_once(beliefs, r, gate.needed, current, how)
    return first + _repeated(beliefs, r, spare, how) if gate.confirm else first


def _repeated(beliefs: Sequence[Belief], r: int, spare: int, how: Change) -> float:
    """Expected rollouts of the second measurement; none where the first is no apparent accept.

    A sum over its rollouts: the chance that the first measurement, all of it, leaves no more than the spare failures
    and the second has not used them up yet.
    """
    after = [np.ones(1)]  # failures of the first measurement on the tasks that are still to come in the second
    for belief in reversed(beliefs[1:]):
        after.append(np.convolve(after[-1], _failures(belief, r, 0, how)[:, 0])[: spare + 1])
    total, before = 0.0, np.ones((1, 1))
    for belief, rest in zip(beliefs, reversed(after), strict=True):
        for done in range(r):
            both = _convolved(before, _failures(belief, r, done, how), spare)
            total += float(np.convolve(both.sum(axis=1), rest)[: spare + 1].sum())
        before = _convolved(before, _failures(belief, r, r, how), spare)
    return total


def _convolved(before: Joint, step: Joint, spare: int) -> Joint:
    """The sum of two pairs of failure counts; what exceeds the spare ones is over and drops out."""
    rows, columns = (min(a + b - 1, spare + 1) for a, b in zip(before.shape, step.shape, strict=True))
    total = np.zeros((rows, columns))
    for i, j in product(*map(range, step.shape)):
        part = before[: max(rows - i, 0), : max(columns - j, 0)]
        total[i : i + part.shape[0], j : j + part.shape[1]] += step[i, j] * part
    return total


@lru_cache(maxsize=4096)
def _failures(belief: Belief, one: int, other: int, how: Change) -> Joint:
    """Joint distribution of a task's failures in `one` and `other` rollouts of the candidate."""
    base = [
        [math.comb(one, i) * math.comb(other, j) * belief.moment(i + j, one + other - i - j) for j in range(other + 1)]
        for i in range(one + 1)
    ]
    passes: Joint = effect_of(how, one).T @ np.array(base) @ effect_of(how, other)
    return passes[::-1, ::-1]


@lru_cache(maxsize=4096)
def _gains(belief: Belief, gate: Gate, how: Change) -> Joint:
    """Joint distribution of a task's gains, -r..r, in both measurements against one fresh measurement of the bank."""
    r = gate.rollouts
    change = effect_of(how, r)
    grid = np.zeros((2 * r + 1, 2 * r + 1))
    for now in range(r + 1):
        base = np.array([
            [math.comb(r, i) * math.comb(r, j) * belief.moment(now + i + j, 3 * r - now - i - j) for j in range(r + 1)]
            for i in range(r + 1)
        ])  # fmt: skip
        then = math.comb(r, now) * (change.T @ base @ change)
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


def _summed(grids: Sequence[Joint], size: int) -> Joint:
    """The distribution of the sum of independent pairs, by the product of their transforms."""
    counted: dict[bytes, tuple[Joint, int]] = {}
    for grid in grids:
        key = grid.tobytes()
        counted[key] = (grid, counted[key][1] + 1 if key in counted else 1)
    shape = (size, size)
    transform = np.ones((size, size // 2 + 1), dtype=complex)
    for grid, count in counted.values():
        transform *= np.fft.rfft2(grid, shape) ** count
    chances: Joint = np.maximum(np.fft.irfft2(transform, shape), 0.0)
    return chances


def _clipped(chance: float) -> float:
    return min(1.0, max(0.0, float(chance)))
