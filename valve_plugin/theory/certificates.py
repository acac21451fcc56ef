"""What a measured number says about all tasks like these: gain, drawdown, loss of an accepted move.

Everything rests on one deviation radius, the one-sided Bennett bound. Rates and radii are in rate units (0.05 is five
points). Each function names the assumptions it rests on through its source; whether they were met is for the caller
to say.
"""

from __future__ import annotations

import math
from typing import NamedTuple

_SERIES_BELOW = 1e-2
_EXACT = 1000  # queries up to which moves are counted; beyond, their logarithm has an error below 1e-8


class Certificate(NamedTuple):
    """A one-sided certificate: a floor under a gain, or a ceiling over a drawdown."""

    value: float
    """The certified number. A floor of -gamma says that at most gamma was lost."""
    radius: float
    """The deviation radius that was subtracted or added."""
    range: float
    """The range M the radius was computed with."""
    vacuous: bool
    """True when the bound says nothing that was not known without data."""


def gain(measured: float, n: int, delta: float, variance: float) -> Certificate:
    """Return the floor under a population gain between two banks fixed before the holdout was read.

    Args:
        measured: mean paired difference on the holdout, in [-1, 1].
        n: holdout tasks.
        delta: failure probability, in (0, 1).
        variance: bound on the per-task difference's variance.
    Source: eq:gaincert; rem:range. The floor under a gated-minus-ungated difference, averaged over G repositories of n
    tasks each, is the same with G * n tasks (eq:sepcert, cor:sep-agg).
    """
    return _floor(measured, n, math.log(1 / _probability(delta)), variance)


def _floor(measured: float, n: int, log_term: float, variance: float) -> Certificate:
    """Return the floor under a gain: the measured one minus b_1 where that is not negative.

    Else it is minus the smallest gamma > 0 with b_{1+gamma}(n, L, s^2) <= measured + gamma. The paper has M = 2 for a
    gain that may be a loss; this is tighter.
    """
    if not -1 <= measured <= 1:
        raise ValueError(f"measured is {measured}, expected a difference of rates in [-1, 1]")
    slack = radius(n, log_term, variance)
    if measured >= slack:
        return Certificate(measured - slack, slack, 1.0, vacuous=False)

    def covered(gamma: float) -> bool:
        # gamma - radius(1 + gamma) grows with gamma wherever 3n > 2L, so bisection finds the smallest gamma;
        # elsewhere any gamma it finds is still a valid certificate, only not the smallest.
        return radius(n, log_term, variance, 1 + gamma) <= measured + gamma

    if not covered(1.0):
        return Certificate(-1.0, radius(n, log_term, variance, 2.0), 2.0, vacuous=True)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if covered(middle) else (middle, high)
    return Certificate(-high, measured + high, 1 + high, vacuous=False)


def drawdown(measured: float, n: int, delta: float, variance: float, banks: int) -> Certificate:
    """Return the ceiling over the population peak-to-final drawdown of `banks` distinct checkpointed banks.

    Args:
        measured: largest paired checkpoint-minus-final difference on the holdout, at least 0.
        banks: A, distinct banks among the checkpoints (at most accepts + 1).
    Source: eq:ddcert.
    """
    if not 0 <= measured <= 1 or banks < 1:
        raise ValueError(f"measured is {measured} and banks {banks}, expected a rate in [0, 1] and at least 1")
    log_term = math.log(banks / _probability(delta))
    upper = 1.0
    slack = radius(n, log_term, variance, upper)
    if not effective_range_holds(slack, 0.0):
        upper = 2.0
        slack = radius(n, log_term, variance, upper)
    return Certificate(measured + slack, slack, upper, vacuous=measured + slack >= 1.0)


def accepted_move(measured: float, n: int, horizon: int, accept: int, delta: float, variance: float) -> Certificate:
    """Return the floor under the gain of the k-th accept. It holds for all accepts of the epoch at once.

    Args:
        measured: panel gain of the accepted move, in [-1, 1].
        n: panel tasks.
        horizon: T, gate queries declared before the first one.
        accept: k, 1 for the first accept of the epoch.
        delta: failure probability of the epoch.
        variance: bound on the per-task paired difference's variance.
    Source: eq:reusecert.
    """
    return _floor(measured, n, move_log_term(horizon, accept, delta), variance)


def move_log_term(horizon: int, accept: int, delta: float) -> float:
    """Return L_k = ln(N_k / delta_k), in nats, with delta_k = delta / (k(k+1)).

    N_k = binom(T, k) counts the bank-move pairs that may produce the k-th accept among T queries: the sum of
    binom(t-1, k-1) over t <= T, by the hockey-stick identity.

    Raises:
        ValueError: the accept is not within the horizon, or delta not in (0, 1).
    Source: eq:Nk, thm:reuse-main.
    """
    if not 1 <= accept <= horizon:
        raise ValueError(f"accept is {accept}, expected 1 to the horizon {horizon}")
    spent = math.log(accept * (accept + 1) / _probability(delta))
    if horizon <= _EXACT:
        return math.log(math.comb(horizon, accept)) + spent
    chosen, left = math.lgamma(accept + 1), math.lgamma(horizon - accept + 1)  # the count has thousands of digits
    return math.lgamma(horizon + 1) - chosen - left + spent


def epoch_delta(delta: float, epoch: int) -> float:
    """Return delta_e = delta / (e(e+1)), so that all epochs together fail with probability at most delta."""
    if epoch < 1:
        raise ValueError(f"epoch is {epoch}, expected 1 or more")
    return _probability(delta) / (epoch * (epoch + 1))


def holdout_size(tolerance: float, banks: int, delta: float, variance: float) -> int:
    """Return the holdout tasks with which population drawdown exceeds the measured one by at most `tolerance`.

    Args:
        tolerance: gamma, rate units.
        banks: A, distinct banks among the checkpoints.
    Source: cor:sizing with L = ln(A/delta), M = 1; tab:sizing, left.
    """
    if banks < 1:
        raise ValueError(f"banks is {banks}, expected at least 1")
    return smallest_n(tolerance, math.log(banks / _probability(delta)), variance, 1.0)


def panel_size(tolerance: float, accepts: int, horizon: int, delta: float, variance: float, anchor: float) -> int:
    """Return the panel tasks with which no accept of a run with at most `accepts` loses more than `tolerance`.

    Args:
        tolerance: gamma, rate units.
        accepts: K. The largest L_k among k <= K counts (L_k falls again beyond half the horizon).
        horizon: T, gate queries declared in advance.
        anchor: the measured panel gain of an accept (at least rho), rate units.
    Source: cor:sizing with L = L_K, M = 1 + gamma and gamma replaced by anchor + gamma; tab:sizing, right.
    """
    if not 0 <= anchor <= 1:
        raise ValueError(f"anchor is {anchor}, expected a measured gain between 0 and 1")
    log_term = max(move_log_term(horizon, k, delta) for k in range(1, accepts + 1))
    return smallest_n(anchor + tolerance, log_term, variance, 1 + tolerance)


def radius(n: int, log_term: float, variance: float, upper: float = 1.0) -> float:
    """Return b_M(N, L, s^2): exceeded by an average of N i.i.d. summands with probability at most e^-L.

    Args:
        n: number of summands N, tasks.
        log_term: L, nats.
        variance: s^2, an upper bound on the summands' variance, in squared rate units.
        upper: M, an upper bound on summand minus mean, in rate units.
    Returns: the radius in rate units (0.05 is five points); 0 for zero variance.
    Raises:
        ValueError: an argument is out of range.
    Source: eq:radius, lem:bennett.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n is {n!r}, expected a whole number of at least 1")
    _check_terms(log_term, variance, upper)
    if variance == 0 or log_term == 0:
        return 0.0
    return variance / upper * h_inverse(upper * upper * log_term / (n * variance))


def smallest_n(tolerance: float, log_term: float, variance: float, upper: float = 1.0) -> int:
    """Return the smallest N with b_M(N, L, s^2) <= tolerance, by exact inversion of the radius.

    Raises:
        ValueError: an argument is out of range; the tolerance must be positive.
    Source: app:sizing-proof ("all reported sizes invert the exact radius").
    """
    _check_range(tolerance, "tolerance", open_low=True)
    _check_terms(log_term, variance, upper)
    if variance == 0 or log_term == 0:
        return 1
    exact = upper * upper * log_term / (variance * h(upper * tolerance / variance))
    return max(1, math.ceil(exact * (1 - 1e-12)))


def h(v: float) -> float:
    """Return h(v) = (1+v)ln(1+v) - v for v >= 0, to full precision also where it is tiny.

    Raises:
        ValueError: v is negative or not finite.
    Source: eq:radius. Differs: below 0.01 the cancellation is avoided by the alternating series.
    """
    _check_range(v, "v")
    if v < _SERIES_BELOW:
        return math.fsum((-1) ** k * v**k / (k * (k - 1)) for k in range(2, 10))
    return (1 + v) * math.log1p(v) - v


def h_inverse(y: float) -> float:
    """Return the v >= 0 with h(v) = y.

    Equal to exp(1 + W0((y-1)/e)) - 1 with Lambert's W0, whose branch point sits at y = 0 where that form
    loses half the digits. Newton's method from above is exact at both ends: h is convex and increasing.

    Raises:
        ValueError: y is negative or not finite.
    Source: eq:radius.
    """
    _check_range(y, "y")
    if y == 0:
        return 0.0
    # An upper bound: h(v) >= v^2/(2 + 2v/3) solved for v (the relaxation of lem:bennett).
    v = y / 3 + math.sqrt(y * y / 9 + 2 * y)
    for _ in range(60):
        step = (h(v) - y) / math.log1p(v)
        v -= step
        if abs(step) <= 4e-16 * v:
            break
    return v


def effective_range_holds(deviation: float, bound: float) -> bool:
    """Return whether the range M = 1 - c may replace M = 2 for a radius b and certified value c.

    With w = 1 - nu the condition of eq:effective-range-condition reads
    (w(1-b-c)/s^2 - 2) ln(1+v) + 2v >= 0. When b + c <= 1 the bracket is at least -2, and v >= ln(1+v)
    settles it for every nu and every s^2; so this test is sufficient, whatever the variance.

    Args:
        deviation: b, the radius, in rate units.
        bound: c, the certified value, in [-1, 1].
    Source: rem:range. Differs: proven for b + c <= 1 instead of checked on a grid.
    """
    return deviation + bound <= 1.0


def _probability(delta: float) -> float:
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta}, expected a probability between 0 and 1")
    return delta


def _check_terms(log_term: float, variance: float, upper: float) -> None:
    _check_range(log_term, "log_term")
    _check_range(variance, "variance")
    _check_range(upper, "upper", open_low=True)


def _check_range(value: float, name: str, *, open_low: bool = False) -> None:
    if not math.isfinite(value) or value < 0 or (open_low and value == 0):
        raise ValueError(f"{name} is {value!r}, expected a finite number in {'(' if open_low else '['}0, inf)")
