"""The one-sided Bennett deviation radius b_M, its inverse, and the range it may be used with."""

from __future__ import annotations

import math

_SERIES_BELOW = 1e-2


def h(v: float) -> float:
    """Return h(v) = (1+v)ln(1+v) - v for v >= 0, to full precision also where it is tiny.

    Raises:
        ValueError: v is negative or not finite.
    Source: eq:radius. Differs: below 0.01 the cancellation is avoided by the alternating series.
    """
    _require(v, "v", 0.0, math.inf)
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
    _require(y, "y", 0.0, math.inf)
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
    _require_positive(n, "n")
    _require(log_term, "log_term", 0.0, math.inf)
    _require(variance, "variance", 0.0, math.inf)
    _require(upper, "upper", 0.0, math.inf, open_low=True)
    if variance == 0 or log_term == 0:
        return 0.0
    return variance / upper * h_inverse(upper * upper * log_term / (n * variance))


def relaxed_radius(n: int, log_term: float, variance: float, upper: float = 1.0) -> float:
    """Return sqrt(2 s^2 L/N) + 2ML/(3N), an upper bound on `radius` with the same arguments and errors.

    Source: eq:radius, right-hand side.
    """
    _require_positive(n, "n")
    _require(log_term, "log_term", 0.0, math.inf)
    _require(variance, "variance", 0.0, math.inf)
    _require(upper, "upper", 0.0, math.inf, open_low=True)
    return math.sqrt(2 * variance * log_term / n) + 2 * upper * log_term / (3 * n)


def smallest_n(tolerance: float, log_term: float, variance: float, upper: float = 1.0) -> int:
    """Return the smallest N with b_M(N, L, s^2) <= tolerance, by exact inversion of the radius.

    Raises:
        ValueError: an argument is out of range; the tolerance must be positive.
    Source: app:sizing-proof ("all reported sizes invert the exact radius").
    """
    _require(tolerance, "tolerance", 0.0, math.inf, open_low=True)
    _require(log_term, "log_term", 0.0, math.inf)
    _require(variance, "variance", 0.0, math.inf)
    _require(upper, "upper", 0.0, math.inf, open_low=True)
    if variance == 0 or log_term == 0:
        return 1
    exact = upper * upper * log_term / (variance * h(upper * tolerance / variance))
    return max(1, math.ceil(exact * (1 - 1e-12)))


def closed_form_n(tolerance: float, log_term: float, variance: float, upper: float = 1.0) -> int:
    """Return a sufficient N from the corollary's closed form; never smaller than `smallest_n`.

    Source: eq:sizing, with a = 2 s^2 L and c = 2ML/3.
    """
    _require(tolerance, "tolerance", 0.0, math.inf, open_low=True)
    _require(log_term, "log_term", 0.0, math.inf)
    _require(variance, "variance", 0.0, math.inf)
    _require(upper, "upper", 0.0, math.inf, open_low=True)
    a, c = 2 * variance * log_term, 2 * upper * log_term / 3
    if c == 0:
        return 1
    return max(1, math.ceil((2 * c / (math.sqrt(a + 4 * c * tolerance) - math.sqrt(a))) ** 2))


def effective_range_holds(deviation: float, bound: float) -> bool:
    """Say whether the range M = 1 - c may replace M = 2 for a radius b and certified value c.

    With w = 1 - nu the condition of eq:effective-range-condition reads
    (w(1-b-c)/s^2 - 2) ln(1+v) + 2v >= 0. When b + c <= 1 the bracket is at least -2, and v >= ln(1+v)
    settles it for every nu and every s^2; so this test is sufficient, whatever the variance.

    Args:
        deviation: b, the radius, in rate units.
        bound: c, the certified value, in [-1, 1].
    Source: rem:range. Differs: proven for b + c <= 1 instead of checked on a grid.
    """
    return deviation + bound <= 1.0


def _require_positive(n: int, name: str) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"{name} is {n!r}, expected a whole number of at least 1")


def _require(value: float, name: str, low: float, high: float, *, open_low: bool = False) -> None:
    if not math.isfinite(value) or value < low or value > high or (open_low and value == low):
        bracket = "(" if open_low else "["
        raise ValueError(f"{name} is {value!r}, expected a finite number in {bracket}{low:g}, {high:g})")
