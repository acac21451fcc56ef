"""The gate's chances against brute force over every outcome, and against what was measured for the reference panel."""

from __future__ import annotations

import math
import random
from functools import reduce
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.theory import gate
from valve_plugin.theory.power import (
    Beta,
    Change,
    Known,
    accept_carried,
    accept_fresh,
    change,
    gain_counts,
    margin_for,
    pass_counts,
    used_carried,
    used_fresh,
)

rates = st.floats(0.0, 1.0)
weights = st.floats(0.05, 5.0)
beliefs = st.builds(Known, rates) | st.builds(Beta, weights, weights)
changes = st.builds(Change, rescue=rates, spoil=rates)
NAMES = ("unresolved", "resolved")


def rollouts_of(belief, n, how):
    """Every way n rollouts can come out, first without the proposal and then with it, and its chance."""
    for base in product((0, 1), repeat=n):
        chance = belief.moment(sum(base), n - sum(base))
        for then in product((0, 1), repeat=n):
            step = 1.0
            for before, after in zip(base, then, strict=True):
                flip = how.spoil if before else how.rescue
                step *= flip if before != after else 1 - flip
            yield then, chance * step


def gates(panel, r, how, current):
    """Every candidate outcome in canonical order with its chance."""
    for parts in product(*(list(rollouts_of(belief, r, how)) for belief in panel)):
        cells = [NAMES[x] for cells, _ in parts for x in cells]
        yield cells, math.prod(chance for _, chance in parts)


@given(st.lists(beliefs, min_size=1, max_size=2), st.integers(1, 2), st.integers(0, 2), changes, st.data())
def test_a_carried_gate_is_every_outcome_weighed(panel, r, needed, how, data):
    current = data.draw(st.integers(0, len(panel) * r))
    before = ["resolved"] * current + ["unresolved"] * (len(panel) * r - current)
    accepted = used = 0.0
    for cells, chance in gates(panel, r, how, current):
        accepted += chance * (gate.decide(before, cells, needed) == "accept")
        used += chance * gate.decisive_prefix(before, cells, needed)
    assert accept_carried(panel, r, needed, current, how) == pytest.approx(accepted, abs=1e-12)
    assert used_carried(panel, r, needed, current, how) == pytest.approx(used, abs=1e-12)


@given(st.lists(beliefs, min_size=1, max_size=2), st.integers(1, 2), st.integers(0, 2), changes)
def test_a_fresh_gate_is_every_pair_of_outcomes_weighed(panel, r, needed, how):
    accepted = 0.0
    for now in product((0, 1), repeat=len(panel) * r):
        rows = [now[i * r : (i + 1) * r] for i in range(len(panel))]
        seen = math.prod(b.moment(sum(row), r - sum(row)) for b, row in zip(panel, rows, strict=True))
        if not seen:
            continue
        after = [b.updated(sum(row), r - sum(row)) for b, row in zip(panel, rows, strict=True)]
        accepted += seen * accept_carried(after, r, needed, sum(now), how)
    assert accept_fresh(panel, r, needed, how) == pytest.approx(accepted, abs=1e-12)


@given(beliefs, st.integers(1, 6), changes)
def test_chances_sum_to_one(belief, r, how):
    assert pass_counts(belief, r, how).sum() == pytest.approx(1)
    assert gain_counts(belief, r, how).sum() == pytest.approx(1)


panels = st.lists(st.builds(Beta, weights, weights), min_size=1, max_size=6)


@given(panels, st.integers(1, 4), st.integers(0, 6), st.floats(-1, 1), st.floats(-1, 1))
def test_a_better_proposal_is_accepted_more_often(panel, r, needed, one, other):
    mean = sum(b.moment(1, 0) for b in panel) / len(panel)
    worse, better = (change(panel, e * (1 - mean if e > 0 else mean) * 0.999) for e in sorted((one, other)))
    assert accept_fresh(panel, r, needed, worse) <= accept_fresh(panel, r, needed, better) + 1e-12
    assert accept_carried(panel, r, needed, 1, worse) <= accept_carried(panel, r, needed, 1, better) + 1e-12


@given(panels, st.integers(1, 4), st.integers(0, 6), changes)
def test_a_higher_margin_is_reached_less_often(panel, r, needed, how):
    assert accept_fresh(panel, r, needed + 1, how) <= accept_fresh(panel, r, needed, how) + 1e-12


@given(panels, st.integers(1, 4), st.floats(-1, 1))
def test_the_change_moves_the_mean_by_the_effect(panel, r, share):
    mean = sum(b.moment(1, 0) for b in panel) / len(panel)
    effect = 0.999 * share * (1 - mean if share > 0 else mean)
    how = change(panel, effect)
    after = sum(float(pass_counts(b, r, how) @ range(r + 1)) for b in panel) / (len(panel) * r)
    assert after - mean == pytest.approx(effect, abs=1e-9)


@given(panels, st.integers(1, 4), st.floats(0.001, 0.5))
def test_the_margin_for_a_false_accept_rate_is_the_smallest(panel, r, rate):
    margin = margin_for(panel, r, rate)
    assert accept_fresh(panel, r, margin, Change()) <= rate
    assert margin == 1 or accept_fresh(panel, r, margin - 1, Change()) > rate


def test_more_than_there_is_to_gain_is_refused():
    with pytest.raises(ValueError, match=r"expected at most 0\.100"):
        change([Known(0.9)], 0.2)


def reference(base):
    """The reference panel: 14 of 50 tasks unstable, p ~ Beta(1.2, 1.2), the others certain; shuffled."""
    certain = [Known(1.0)] * round(base * 50 - 7)
    panel = [Beta(1.2, 1.2)] * 14 + certain + [Known(0.0)] * (36 - len(certain))
    random.Random(3).shuffle(panel)
    return panel


@pytest.mark.parametrize(("base", "share"), [(0.64, 0.61), (0.75, 0.54), (0.85, 0.48), (0.92, 0.46)])
def test_the_reference_gate_accepts_nothing_a_quarter_of_the_time(base, share):
    panel = reference(base)
    assert accept_fresh(panel, 3, 3, Change()) == pytest.approx(0.257, abs=0.001)
    used = used_fresh(panel, 3, 3, Change(), random.Random(1).random) / 150
    assert used == pytest.approx(share, abs=0.06)


def test_drawn_baselines_are_the_only_randomness():
    panel = reference(0.75)
    once, again = (used_fresh(panel, 3, 3, Change(), random.Random(5).random, baselines=8) for _ in range(2))
    assert once == again


@given(st.lists(beliefs, min_size=25, max_size=25), st.integers(2, 5), st.integers(-5, 5), changes, st.integers(0, 125))
def test_what_is_left_out_of_large_sums_shows_nowhere(panel, r, needed, how, current):
    def plainly(parts):
        return reduce(np.convolve, parts, np.ones(1))

    gains = plainly(gain_counts(b, r, how) for b in panel)
    assert accept_fresh(panel, r, needed, how) == pytest.approx(gains[25 * r + needed :].sum(), abs=1e-13)
    spare, open_ = 25 * r - current - needed, 0.0
    for k, belief in enumerate(panel):
        before = plainly(pass_counts(b, r, how)[::-1] for b in panel[:k])
        for done in range(r):
            open_ += np.convolve(before, pass_counts(belief, done, how)[::-1])[: max(spare + 1, 0)].sum()
    assert used_carried(panel, r, needed, current, how) == pytest.approx(open_, abs=1e-10)
