"""Clopper-Pearson: it covers, exactly, whatever the true chance is."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.theory.intervals import clopper_pearson, sign_test


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
