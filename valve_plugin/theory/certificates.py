"""What a measured number says about the population: gain, drawdown, separation, loss of an accepted move.

Rates and radii are in rate units (0.05 is five points). Each function names the assumptions it rests on
through its source; whether they were met is for the caller to say.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from valve_plugin.theory.bennett import effective_range_holds, radius

_EXACT = 1000  # queries up to which moves are counted; beyond, their logarithm has an error below 1e-8


class Bound(NamedTuple):
    """A one-sided certificate."""

    value: float
    """The certified number."""
    radius: float
    """The deviation radius that was subtracted or added."""
    upper: float
    """The range M the radius was computed with."""
    vacuous: bool
    """True when the bound says nothing that was not known without data."""


def gain(measured: float, n: int, delta: float, variance: float) -> Bound:
    """Return the floor under a population gain between two banks fixed before the holdout was read.

    The range M = 1 needs a floor that is not negative; below that the floor is recomputed with M = 2.

    Args:
        measured: mean paired difference on the holdout, in [-1, 1].
        n: holdout tasks.
        delta: failure probability, in (0, 1).
        variance: bound on the per-task difference's variance.
    Source: eq:gaincert; rem:range.
    """
    return _floor(measured, n, math.log(1 / probability(delta)), variance)


def separation(measured: float, n: int, delta: float, variance: float, repositories: int = 1) -> Bound:
    """Return the floor under the gated-minus-ungated difference, averaged over G repositories of n tasks each.

    Source: eq:sepcert and, for G > 1 disjoint holdouts, cor:sep-agg.
    """
    return _floor(measured, n * repositories, math.log(1 / probability(delta)), variance)


def drawdown(measured: float, n: int, delta: float, variance: float, banks: int) -> Bound:
    """Return the ceiling over the population peak-to-final drawdown of `banks` distinct checkpointed banks.

    Args:
        measured: largest paired checkpoint-minus-final difference on the holdout, at least 0.
        banks: A, distinct banks among the checkpoints (at most accepts + 1).
    Source: eq:ddcert.
    """
    if not 0 <= measured <= 1 or banks < 1:
        raise ValueError(f"measured is {measured} and banks {banks}, expected a rate in [0, 1] and at least 1")
    log_term = math.log(banks / probability(delta))
    upper = 1.0
    slack = radius(n, log_term, variance, upper)
    if not effective_range_holds(slack, 0.0):
        upper = 2.0
        slack = radius(n, log_term, variance, upper)
    return Bound(measured + slack, slack, upper, vacuous=measured + slack >= 1.0)


def move_count(horizon: int, accept: int) -> int:
    """Return N_k, the bank-move pairs that may produce the k-th accept among T queries: binom(T, k).

    Source: eq:Nk; the sum of binom(t-1, k-1) over t <= T, by the hockey-stick identity.
    """
    _possible(horizon, accept)
    return math.comb(horizon, accept)


def move_log_term(horizon: int, accept: int, delta: float) -> float:
    """Return L_k = ln(N_k / delta_k) with delta_k = delta / (k(k+1)), in nats.

    Source: thm:reuse-main.
    """
    _possible(horizon, accept)
    spent = math.log(accept * (accept + 1) / probability(delta))
    if horizon <= _EXACT:
        return math.log(move_count(horizon, accept)) + spent
    chosen, left = math.lgamma(accept + 1), math.lgamma(horizon - accept + 1)  # the count has thousands of digits
    return math.lgamma(horizon + 1) - chosen - left + spent


class MoveCertificate(NamedTuple):
    """What the reused panel says about one accepted move."""

    loss: float
    """Certified population loss gamma; 0 when a gain is certified."""
    floor: float
    """Certified population gain: gain minus b_1 when not negative, else -loss."""
    log_term: float
    """L_k, nats."""
    vacuous: bool
    """True when no loss below 1 can be excluded."""


def accepted_move(measured: float, n: int, horizon: int, accept: int, delta: float, variance: float) -> MoveCertificate:
    """Return the smallest loss that the k-th accept is certified not to exceed.

    It is the smallest gamma > 0 with b_{1+gamma}(n, L_k, s^2) <= measured + gamma, or no loss at all where
    measured - b_1 is not negative. The statement holds for all accepts of the epoch at once.

    Args:
        measured: panel gain of the accepted move, in [-1, 1].
        n: panel tasks.
        horizon: T, gate queries declared before the first one.
        accept: k, 1 for the first accept of the epoch.
        delta: failure probability of the epoch.
        variance: bound on the per-task paired difference's variance.
    Source: eq:reusecert.
    """
    _difference(measured)
    log_term = move_log_term(horizon, accept, delta)
    floor = measured - radius(n, log_term, variance, 1.0)
    if floor >= 0:
        return MoveCertificate(0.0, floor, log_term, vacuous=False)
    if not _covered(1.0, measured, n, log_term, variance):
        return MoveCertificate(1.0, -1.0, log_term, vacuous=True)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _covered(middle, measured, n, log_term, variance):
            high = middle
        else:
            low = middle
    return MoveCertificate(high, -high, log_term, vacuous=False)


def epoch_delta(delta: float, epoch: int) -> float:
    """Return delta_e = delta / (e(e+1)), so that all epochs together fail with probability at most delta."""
    if epoch < 1:
        raise ValueError(f"epoch is {epoch}, expected 1 or more")
    return probability(delta) / (epoch * (epoch + 1))


def _covered(gamma: float, measured: float, n: int, log_term: float, variance: float) -> bool:
    # gamma - radius(1 + gamma) grows with gamma wherever 3n > 2L, so bisection finds the smallest gamma;
    # elsewhere any gamma it finds is still a valid certificate, only not the smallest.
    return radius(n, log_term, variance, 1 + gamma) <= measured + gamma


def _floor(measured: float, n: int, log_term: float, variance: float) -> Bound:
    _difference(measured)
    for upper in (1.0, 2.0):
        slack = radius(n, log_term, variance, upper)
        floor = measured - slack
        if upper == 2.0 or (floor >= 0 and effective_range_holds(slack, floor)):
            break
    return Bound(max(floor, -1.0), slack, upper, vacuous=floor <= -1.0)


def probability(delta: float) -> float:
    """Return delta, a chance of being wrong.

    Raises:
        ValueError: it is not in (0, 1).
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}, expected a probability between 0 and 1")
    return delta


def _possible(horizon: int, accept: int) -> None:
    if not 1 <= accept <= horizon:
        raise ValueError(f"accept is {accept}, expected 1 to the horizon {horizon}")


def _difference(measured: float) -> None:
    if not -1 <= measured <= 1:
        raise ValueError(f"measured is {measured}, expected a difference of rates in [-1, 1]")
