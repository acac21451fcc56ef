"""The deviation radius: exact inversion, stability at both ends, the relaxation, the effective range."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.theory.bennett import (
    closed_form_n,
    effective_range_holds,
    h,
    h_inverse,
    radius,
    relaxed_radius,
    smallest_n,
)

wide = st.floats(min_value=-40, max_value=12).map(lambda e: 10.0**e)
sizes = st.integers(1, 100_000)
logs = st.floats(0.01, 50)
variances = st.floats(1e-6, 1.0)
uppers = st.floats(0.05, 2.0)


@given(wide)
def test_h_keeps_full_precision(v: float) -> None:
    with mpmath.workdps(120):
        exact = (1 + mpmath.mpf(v)) * mpmath.log(1 + mpmath.mpf(v)) - mpmath.mpf(v)
        assert float(abs(h(v) - exact) / exact) < 1e-13


@given(wide)
def test_h_inverse_agrees_with_lambert_w(y: float) -> None:
    with mpmath.workdps(150):
        exact = mpmath.exp(1 + mpmath.lambertw((mpmath.mpf(y) - 1) / mpmath.e).real) - 1
        assert float(abs(h_inverse(y) - exact) / exact) < 1e-12


def test_h_inverse_of_nothing_is_nothing() -> None:
    assert h_inverse(0.0) == 0.0


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_arguments_out_of_range_are_named(bad: float) -> None:
    with pytest.raises(ValueError, match="expected a finite number"):
        h(bad)
    with pytest.raises(ValueError, match="variance"):
        radius(10, 1.0, bad)


@given(sizes, logs, variances, uppers)
def test_the_relaxation_is_never_smaller(n: int, log_term: float, variance: float, upper: float) -> None:
    assert radius(n, log_term, variance, upper) <= relaxed_radius(n, log_term, variance, upper) * (1 + 1e-12)


@given(sizes, logs, variances, uppers)
def test_the_radius_falls_with_more_tasks(n: int, log_term: float, variance: float, upper: float) -> None:
    assert radius(n + 1, log_term, variance, upper) < radius(n, log_term, variance, upper)


@given(st.floats(1e-3, 1.0), logs, variances, uppers)
def test_the_smallest_n_is_the_smallest(tolerance: float, log_term: float, variance: float, upper: float) -> None:
    n = smallest_n(tolerance, log_term, variance, upper)
    assert radius(n, log_term, variance, upper) <= tolerance * (1 + 1e-9)
    if n > 1:
        assert radius(n - 1, log_term, variance, upper) > tolerance * (1 - 1e-9)
    assert closed_form_n(tolerance, log_term, variance, upper) >= n


@given(
    st.floats(0.0, 1.0),
    st.floats(-1.0, 1.0),
    st.floats(1e-4, 1.0),
    st.floats(0.0, 1.0),
)
def test_the_effective_range_condition_holds_whenever_we_say_so(
    deviation: float, bound: float, variance: float, share: float
) -> None:
    # eq:effective-range-condition as printed, at a random nu in [-1, c].
    if not effective_range_holds(deviation, bound):
        return
    nu = -1 + share * (bound + 1)
    v = (1 - nu) * (deviation + bound - nu) / variance
    left = (1 - nu) * (deviation + bound + 1 - 2 * nu) / variance * math.log1p(v)
    assert left >= 2 * h(v) * (1 - 1e-9)


def test_the_radius_is_exceeded_no_more_often_than_promised() -> None:
    # Skewed two-point draws, the worst case for a one-sided bound; 40,000 averages.
    rng = np.random.default_rng(7)
    p, n, delta = 0.03, 50, 0.05
    means = (rng.random((40_000, n)) < p).mean(axis=1)
    slack = radius(n, math.log(1 / delta), p * (1 - p), 1 - p)
    assert (means - p > slack).mean() <= delta
