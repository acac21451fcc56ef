"""Rates and variance from complete panels, and exact intervals."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.theory import certificates
from valve_plugin.theory.estimates import (
    RateSpread,
    clopper_pearson,
    paired_variance,
    rate_spread,
    sign_test,
    variance,
    variance_bound,
    vmass,
)
from valve_plugin.theory.power import population, posterior


@st.composite
def measurements(draw):
    r, n = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    row = st.lists(st.integers(0, r), min_size=n, max_size=n)
    return draw(st.lists(row, min_size=1, max_size=3)), r


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.98))
def test_a_population_has_the_mean_and_noise_asked_for(mean, share):
    rates = RateSpread(mean, share * mean * (1 - mean))
    found = population(rates)
    assert found.mean == pytest.approx(mean)
    assert found.noise == pytest.approx(rates.mass)


def test_what_cannot_be_told_apart_is_spread_little():
    assert population(RateSpread(0.5, 0.25)).noise == pytest.approx(0.25, rel=0.02)
    with pytest.raises(ValueError, match="noise above 0"):
        population(RateSpread(0.5, 0.0))


def test_without_evidence_a_rate_is_uniform():
    assert population(RateSpread(1 / 2, 1 / 6)) == pytest.approx((1.0, 1.0))


@given(measurements())
def test_one_task_of_unknown_rate_is_added(case):
    panels, r = case
    found, n = rate_spread(panels, r), len(panels[0])
    assert 0 < found.mean < 1
    assert found.mass > 0
    if r > 1:
        mass = sum(vmass(p, r) for p in panels) / len(panels)
        assert found.mass == pytest.approx((n * mass + 1 / 6) / (n + 1))


@given(measurements())
def test_more_passes_are_believed_more(case):
    panels, r = case
    by_task = sorted(zip(panels[-1], [b.mean for b in posterior(panels, r)], strict=True))
    assert [mean for _, mean in by_task] == pytest.approx(sorted(mean for _, mean in by_task))


@given(measurements())
def test_the_variance_is_never_nothing_and_never_below_what_was_seen(case):
    panels, r = case
    found = variance(panels, r)
    assert 0 < found <= 1
    assert found >= min(1, variance_bound(rate_spread(panels, r).mass, r)) - 1e-12
    if len(panels) > 1:
        assert found >= min(1, paired_variance(panels[0], panels[1], r)) - 1e-12


def test_the_reference_noise_needs_more_than_the_pooled_variance():
    # h = 0.2075 of 400 tasks unstable, r = 3: a fresh pair alone varies by more than the pooled 0.025.
    passes = [1] * 83 + [3] * 317
    assert variance([passes], 3) == pytest.approx(0.1157, abs=2e-4)


@pytest.mark.parametrize(("sign", "shares", "safe"), [(1, (0.05, 0.2, 0.4), True), (-1, (0.05,), False)])
def test_bennett_with_an_estimated_variance_is_safe_where_few_improve_but_not_where_one_in_twenty_breaks(
    sign, shares, safe
):
    """Exact, for 50 tasks that go from never to always, or back."""
    none, whole = [0] * 50, [[3] * k + [0] * (50 - k) for k in range(51)]
    sides = [(none, some) if sign > 0 else (some, none) for some in whole]
    used = [max(variance(list(pair), 3), paired_variance(*pair, 3)) for pair in sides]
    floors = [certificates.gain(sign * k / 50, 50, 0.05, v).value for k, v in enumerate(used)]
    for share in shares:
        chances = [math.comb(50, k) * share**k * (1 - share) ** (50 - k) for k in range(51)]
        wrong = sum(c for c, floor in zip(chances, floors, strict=True) if floor > sign * share + 1e-9)
        assert (wrong <= 0.05) == safe


def test_more_rollouts_to_come_vary_less():
    panels = [[1, 2, 3, 0], [2, 2, 3, 1]]
    assert variance(panels, 3, 3) == variance(panels, 3) > variance(panels, 3, 9)
    assert variance(panels, 3, 9) == pytest.approx(variance_bound(rate_spread(panels, 3).mass, 9))


def test_nonsense_is_refused():
    for panels in ([], [[]]):
        with pytest.raises(ValueError, match="expected at least one"):
            rate_spread(panels, 3)


@pytest.mark.parametrize(
    ("count", "trials", "low", "high"), [(0, 10, 0.0, 0.30850), (5, 20, 0.08657, 0.49105), (3, 3, 0.29240, 1.0)]
)
def test_known_values(count, trials, low, high):
    assert clopper_pearson(count, trials) == pytest.approx((low, high), abs=1e-5)


@given(st.integers(1, 25), st.floats(0.01, 0.99), st.sampled_from([0.8, 0.95]))
def test_it_holds_the_true_chance_often_enough(trials, p, level):
    covered = math.fsum(
        math.comb(trials, k) * p**k * (1 - p) ** (trials - k)
        for k in range(trials + 1)
        if clopper_pearson(k, trials, level)[0] <= p <= clopper_pearson(k, trials, level)[1]
    )
    assert covered >= level - 1e-9


def test_nothing_tried_says_nothing_and_nonsense_is_refused():
    assert clopper_pearson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError, match="5 of 3"):
        clopper_pearson(5, 3)


@given(st.integers(0, 8), st.integers(0, 8))
def test_the_sign_test_counts_coins(better, worse):
    n = better + worse
    throws = [abs(2 * sum(coins) - n) for coins in itertools.product((0, 1), repeat=n)]
    assert sign_test(better, worse) == sign_test(worse, better) == sum(t >= abs(better - worse) for t in throws) / 2**n


def test_the_sign_test_of_many_and_of_none():
    assert sign_test(6, 0) == 1 / 32
    assert (sign_test(0, 0), sign_test(3000, 3000)) == (1.0, 1.0)
    assert 0 <= sign_test(3000, 0) < 1e-300
    with pytest.raises(ValueError, match="-1 better"):
        sign_test(-1, 2)
