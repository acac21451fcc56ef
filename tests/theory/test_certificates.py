"""The paper's printed numbers, and the properties behind them."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.theory.bennett import radius
from valve_plugin.theory.certificates import (
    accepted_move,
    drawdown,
    epoch_delta,
    gain,
    move_count,
    move_log_term,
    separation,
)
from valve_plugin.theory.convergence import (
    accept_cap,
    localized_cap,
    rescored_cap,
    unstable_share,
    variance_bound,
    vmass,
)
from valve_plugin.theory.planning import holdout_size, panel_size

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
    assert round(100 * separation(0.08, 100, DELTA, 0.05, 4).value, 1) == 5.0


def test_the_printed_caps() -> None:
    rates = {"gpt": ("0.593", "0.687", "0.647", "0.382"), "claude": ("0.785", "0.793", "0.717", "0.713")}
    assert [accept_cap("0.02", Fraction(r)) for r in rates["gpt"]] == [20, 15, 17, 30]
    assert accept_cap("0.02") == 50
    assert localized_cap("0.02", Fraction("0.2075")) == 10
    assert [accept_cap("0.02", Fraction(r)) for r in rates["claude"]] == [10, 10, 14, 14]


def test_the_printed_variance_mass() -> None:
    # r = 3: each unstable task contributes a third, so vmass is h/3.
    passes = [1] * 83 + [3] * 317
    assert unstable_share(passes, 3) == Fraction("0.2075")
    assert round(vmass(passes, 3), 3) == 0.069
    assert variance_bound(0.069, 3) == pytest.approx(0.115)


@given(st.integers(1, 60), st.data())
def test_path_count_is_the_printed_sum(horizon: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, horizon))
    assert move_count(horizon, k) == sum(math.comb(t - 1, k - 1) for t in range(1, horizon + 1))


@given(
    st.floats(0.001, 0.6),
    st.integers(5, 2000),
    st.integers(1, 8),
    st.floats(1e-4, 0.3),
)
def test_a_certified_loss_is_the_smallest(measured: float, n: int, k: int, variance: float) -> None:
    result = accepted_move(measured, n, 100, k, DELTA, variance)
    log_term = move_log_term(100, k, DELTA)
    assert not (result.loss and result.floor >= 0)
    if result.vacuous:
        assert radius(n, log_term, variance, 2.0) > measured + 1
    elif result.loss:
        assert radius(n, log_term, variance, 1 + result.loss) <= measured + result.loss + 1e-12
        smaller = result.loss * 0.999
        if 3 * n > 2 * log_term:
            assert radius(n, log_term, variance, 1 + smaller) > measured + smaller
    else:
        assert result.floor == pytest.approx(measured - radius(n, log_term, variance, 1.0))


@given(st.floats(-1, 1), st.integers(1, 5000), st.floats(1e-5, 0.5))
def test_a_negative_floor_uses_the_full_range(measured: float, n: int, variance: float) -> None:
    bound = gain(measured, n, DELTA, variance)
    assert bound.value <= measured
    assert (bound.upper == 1.0) == (measured - radius(n, math.log(20), variance, 1.0) >= 0)


@given(st.integers(1, 4), st.data())
def test_the_variance_mass_is_unbiased(rollouts: int, data: st.DataObject) -> None:
    r = rollouts + 1
    p = data.draw(st.floats(0, 1))
    expected = sum(math.comb(r, k) * p**k * (1 - p) ** (r - k) * vmass([k], r) for k in range(r + 1))
    assert expected == pytest.approx(p * (1 - p), abs=1e-9)


def test_all_epochs_together_spend_delta() -> None:
    assert sum(epoch_delta(DELTA, e) for e in range(1, 10_000)) < DELTA


def test_a_rescored_gate_needs_small_drift() -> None:
    assert rescored_cap("0.02", Fraction("0.005")) == 100
    with pytest.raises(ValueError, match="below rho/2"):
        rescored_cap("0.02", Fraction("0.01"))


@pytest.mark.parametrize(
    "call",
    [
        lambda: gain(1.5, 10, DELTA, VARIANCE),
        lambda: gain(0.1, 10, 1.5, VARIANCE),
        lambda: drawdown(-0.1, 10, DELTA, VARIANCE, 2),
        lambda: move_count(10, 11),
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
