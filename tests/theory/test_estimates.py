"""Rates and variance from complete panels."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.theory.convergence import variance_bound, vmass
from valve_plugin.theory.estimates import Spread, paired_variance, population, posterior, spread, variance


@st.composite
def measurements(draw):
    r, n = draw(st.integers(1, 5)), draw(st.integers(1, 8))
    row = st.lists(st.integers(0, r), min_size=n, max_size=n)
    return draw(st.lists(row, min_size=1, max_size=3)), r


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.98))
def test_a_population_has_the_mean_and_noise_asked_for(mean, share):
    rates = Spread(mean, share * mean * (1 - mean))
    found = population(rates)
    assert found.moment(1, 0) == pytest.approx(mean)
    assert found.moment(1, 1) == pytest.approx(rates.mass)


def test_what_cannot_be_told_apart_is_spread_little():
    assert population(Spread(0.5, 0.25)).moment(1, 1) == pytest.approx(0.25, rel=0.02)
    with pytest.raises(ValueError, match="noise above 0"):
        population(Spread(0.5, 0.0))


def test_without_evidence_a_rate_is_uniform():
    assert population(Spread(1 / 2, 1 / 6)) == pytest.approx((1.0, 1.0))


@given(measurements())
def test_one_task_of_unknown_rate_is_added(case):
    panels, r = case
    found, n = spread(panels, r), len(panels[0])
    assert 0 < found.mean < 1
    assert found.mass > 0
    if r > 1:
        mass = sum(vmass(p, r) for p in panels) / len(panels)
        assert found.mass == pytest.approx((n * mass + 1 / 6) / (n + 1))


@given(measurements())
def test_more_passes_are_believed_more(case):
    panels, r = case
    by_task = sorted(zip(panels[-1], [b.moment(1, 0) for b in posterior(panels, r)], strict=True))
    assert [mean for _, mean in by_task] == pytest.approx(sorted(mean for _, mean in by_task))


@given(measurements())
def test_the_variance_is_never_nothing_and_never_below_what_was_seen(case):
    panels, r = case
    found = variance(panels, r)
    assert 0 < found <= 1
    assert found >= min(1, variance_bound(spread(panels, r).mass, r)) - 1e-12
    if len(panels) > 1:
        assert found >= min(1, paired_variance(panels[0], panels[1], r)) - 1e-12


def test_the_reference_noise_needs_more_than_the_pooled_variance():
    # h = 0.2075 of 400 tasks unstable, r = 3: a fresh pair alone varies by more than the pooled 0.025.
    passes = [1] * 83 + [3] * 317
    assert variance([passes], 3) == pytest.approx(0.1157, abs=2e-4)


def test_more_rollouts_to_come_vary_less():
    panels = [[1, 2, 3, 0], [2, 2, 3, 1]]
    assert variance(panels, 3, 3) == variance(panels, 3) > variance(panels, 3, 9)
    assert variance(panels, 3, 9) == pytest.approx(variance_bound(spread(panels, 3).mass, 9))


def test_nonsense_is_refused():
    for panels in ([], [[]]):
        with pytest.raises(ValueError, match="expected at least one"):
            spread(panels, 3)
