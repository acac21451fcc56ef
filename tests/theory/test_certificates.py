"""The paper's printed numbers, the deviation radius, and the properties behind them."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.theory.certificates import (
    accepted_move,
    drawdown,
    effective_range_holds,
    epoch_delta,
    gain,
    h,
    h_inverse,
    holdout_size,
    move_log_term,
    panel_size,
    radius,
    smallest_n,
)
from valve_plugin.theory.estimates import accept_cap, variance_bound, vmass

DELTA, VARIANCE = 0.05, 0.025
# tab:sizing, row by row: A = 4, 8, 16, then K = 3, 5, 7.
SIZING = {
    0.02: (680, 787, 895, 235, 324, 396),
    0.03: (328, 380, 432, 195, 268, 327),
    0.05: (136, 157, 179, 142, 195, 239),
    0.08: (62, 72, 82, 99, 136, 166),
    0.10: (44, 51, 58, 81, 111, 136),
}


@pytest.mark.parametrize("tolerance", SIZING)
def test_the_sizing_table(tolerance: float) -> None:
    left = [holdout_size(tolerance, a, DELTA, VARIANCE) for a in (4, 8, 16)]
    right = [panel_size(tolerance, k, 60, DELTA, VARIANCE, 0.0583) for k in (3, 5, 7)]
    assert (*left, *right) == SIZING[tolerance]


def test_the_printed_radii_and_certificates() -> None:
    assert round(100 * radius(100, math.log(1 / DELTA), VARIANCE), 1) == 4.8
    assert round(100 * radius(100, math.log(8 / DELTA), VARIANCE), 1) == 6.5
    assert round(100 * radius(400, math.log(1 / DELTA), 0.05), 1) == 3.0
    assert round(100 * drawdown(0.0092, 100, DELTA, VARIANCE, 8).value, 1) == 7.5
    assert round(100 * gain(0.172, 100, DELTA, VARIANCE).value, 1) == 12.4
    assert round(100 * gain(0.08, 400, DELTA, 0.05).value, 1) == 5.0


def test_the_printed_caps() -> None:
    rates = {"gpt": ("0.593", "0.687", "0.647", "0.382"), "claude": ("0.785", "0.793", "0.717", "0.713")}
    assert [accept_cap("0.02", Fraction(r)) for r in rates["gpt"]] == [20, 15, 17, 30]
    assert accept_cap("0.02") == 50
    assert [accept_cap("0.02", Fraction(r)) for r in rates["claude"]] == [10, 10, 14, 14]


def test_the_printed_variance_mass() -> None:
    # r = 3: each unstable task contributes a third, so vmass is h/3.
    passes = [1] * 83 + [3] * 317
    assert round(vmass(passes, 3), 3) == 0.069
    assert variance_bound(0.069, 3) == pytest.approx(0.115)


@given(st.integers(1, 60), st.data())
def test_path_count_is_the_printed_sum(horizon: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, horizon))
    paths = sum(math.comb(t - 1, k - 1) for t in range(1, horizon + 1))
    assert move_log_term(horizon, k, DELTA) == pytest.approx(math.log(paths * k * (k + 1) / DELTA))


@given(st.floats(0.001, 0.6), st.integers(5, 2000), st.integers(1, 8), st.floats(1e-4, 0.3))
def test_a_certified_loss_is_the_smallest(measured: float, n: int, k: int, variance: float) -> None:
    result, log_term = accepted_move(measured, n, 100, k, DELTA, variance), move_log_term(100, k, DELTA)
    loss = -result.value
    if result.vacuous:
        assert radius(n, log_term, variance, 2.0) > measured + 1
    elif loss > 0:
        assert radius(n, log_term, variance, 1 + loss) <= measured + loss + 1e-12
        if 3 * n > 2 * log_term:
            assert radius(n, log_term, variance, 1 + 0.999 * loss) > measured + 0.999 * loss
    else:
        assert result.value == pytest.approx(measured - radius(n, log_term, variance, 1.0))


@given(st.floats(-1, 1), st.integers(1, 5000), st.floats(1e-5, 0.5))
def test_a_gains_range_is_one_and_what_it_may_have_lost(measured: float, n: int, variance: float) -> None:
    bound, log_term = gain(measured, n, DELTA, variance), math.log(1 / DELTA)
    at_most_two = max(measured - radius(n, log_term, variance, 2.0), -1.0)
    assert at_most_two - 1e-12 <= bound.value <= measured
    assert (bound.range == 1.0) == (measured - radius(n, log_term, variance, 1.0) >= 0)
    if bound.value < 0 and not bound.vacuous:
        assert bound.range == pytest.approx(1 - bound.value)
        assert radius(n, log_term, variance, bound.range) <= bound.radius + 1e-12


@given(st.integers(1, 4), st.data())
def test_the_variance_mass_is_unbiased(rollouts: int, data: st.DataObject) -> None:
    r = rollouts + 1
    p = data.draw(st.floats(0, 1))
    expected = sum(math.comb(r, k) * p**k * (1 - p) ** (r - k) * vmass([k], r) for k in range(r + 1))
    assert expected == pytest.approx(p * (1 - p), abs=1e-9)


def test_all_epochs_together_spend_delta() -> None:
    assert sum(epoch_delta(DELTA, e) for e in range(1, 10_000)) < DELTA


@pytest.mark.parametrize(
    "call",
    [
        lambda: gain(1.5, 10, DELTA, VARIANCE),
        lambda: gain(0.1, 10, 1.5, VARIANCE),
        lambda: drawdown(-0.1, 10, DELTA, VARIANCE, 2),
        lambda: move_log_term(10, 11, DELTA),
        lambda: vmass([1], 1),
        lambda: vmass([], 3),
        lambda: accept_cap("0"),
        lambda: panel_size(0.05, 3, 60, DELTA, VARIANCE, -0.1),
        lambda: holdout_size(0.05, 0, DELTA, VARIANCE),
    ],
)
def test_nonsense_is_refused(call) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="expected"):
        call()


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
    relaxed = math.sqrt(2 * variance * log_term / n) + 2 * upper * log_term / (3 * n)  # eq:radius, right-hand side
    assert radius(n, log_term, variance, upper) <= relaxed * (1 + 1e-12)


@given(sizes, logs, variances, uppers)
def test_the_radius_falls_with_more_tasks(n: int, log_term: float, variance: float, upper: float) -> None:
    assert radius(n + 1, log_term, variance, upper) < radius(n, log_term, variance, upper)


@given(st.floats(1e-3, 1.0), logs, variances, uppers)
def test_the_smallest_n_is_the_smallest(tolerance: float, log_term: float, variance: float, upper: float) -> None:
    n = smallest_n(tolerance, log_term, variance, upper)
    assert radius(n, log_term, variance, upper) <= tolerance * (1 + 1e-9)
    if n > 1:
        assert radius(n - 1, log_term, variance, upper) > tolerance * (1 - 1e-9)
    a, c = 2 * variance * log_term, 2 * upper * log_term / 3  # eq:sizing, the closed form
    assert math.ceil((2 * c / (math.sqrt(a + 4 * c * tolerance) - math.sqrt(a))) ** 2) >= n


@given(st.floats(0.0, 1.0), st.floats(-1.0, 1.0), st.floats(1e-4, 1.0), st.floats(0.0, 1.0))
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
