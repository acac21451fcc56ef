"""The gate's chances against brute force over every outcome, and against what was measured for the reference panel."""

from __future__ import annotations

import math
import random
from functools import reduce
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.theory.test_acceptance import numbered
from valve_plugin.theory import acceptance as rule
from valve_plugin.theory import power
from valve_plugin.theory.power import (
    Beta,
    EffectChange,
    Gate,
    KnownRate,
    carried_accept_chance,
    carried_rollouts,
    effect_change,
    fresh_accept_chance,
    fresh_rollouts,
    margin_for,
    pass_counts,
)

rates = st.floats(0.0, 1.0)
weights = st.floats(0.05, 5.0)
beliefs = st.builds(KnownRate, rates) | st.builds(Beta, weights, weights)
changes = st.builds(EffectChange, rescue=rates, spoil=rates)
panels = st.lists(beliefs, min_size=1, max_size=2)
betas = st.lists(st.builds(Beta, weights, weights), min_size=1, max_size=6)
gates = st.builds(Gate, st.integers(1, 2), st.integers(0, 2), st.booleans(), st.integers(0, 2))
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


def outcomes(panel, n, how):
    """Every outcome of n rollouts per task and its chance."""
    for parts in product(*(list(rollouts_of(belief, n, how)) for belief in panel)):
        yield [cells for cells, _ in parts], math.prod(chance for _, chance in parts)


def judged(current, measurements, gate):
    """Decision and rollouts of a whole query, by the rule that decides real ones."""
    now = numbered(current, gate.rollouts)
    used = 0
    for values in measurements[: 1 + gate.confirm]:
        decision, length = rule.decide_measurement(now, numbered(values, gate.rollouts), gate.needed, gate.guard)
        used += length
        if decision == "reject":
            return False, used
    return True, used


@settings(max_examples=50)
@given(panels, gates, changes, st.data())
def test_a_carried_gate_is_every_outcome_weighed(panel, gate, how, data):
    r = gate.rollouts
    assume(len(panel) * r * (1 + gate.confirm) <= 6)  # the rest takes long and shows the same
    now = [data.draw(st.integers(0, r)) for _ in panel]
    current = [NAMES[j < passed] for passed in now for j in range(r)]
    accepted = used = 0.0
    for rows, chance in outcomes(panel, r * (1 + gate.confirm), how):
        both = [[NAMES[x] for row in rows for x in row[k * r : (k + 1) * r]] for k in range(1 + gate.confirm)]
        yes, ran = judged(current, both, gate)
        accepted, used = accepted + chance * yes, used + chance * ran
    assert carried_accept_chance(panel, gate, now, how) == pytest.approx(accepted, abs=1e-9)
    if gate.guard:
        assert carried_rollouts(panel, gate, now, how) >= used - 1e-9
    else:
        assert carried_rollouts(panel, gate, now, how) == pytest.approx(used, abs=1e-9)


@given(panels, gates, changes)
def test_a_fresh_gate_is_every_baseline_weighed(panel, gate, how):
    r, accepted = gate.rollouts, 0.0
    for now in product(range(r + 1), repeat=len(panel)):
        seen = math.prod(
            math.comb(r, passed) * b.moment(passed, r - passed) for b, passed in zip(panel, now, strict=True)
        )
        if seen:
            after = [b.updated(passed, r - passed) for b, passed in zip(panel, now, strict=True)]
            accepted += seen * carried_accept_chance(after, gate, now, how)
    assert fresh_accept_chance(panel, gate, how) == pytest.approx(accepted, abs=1e-9)


@given(panels, st.integers(1, 2), st.integers(0, 2), changes)
def test_more_conditions_accept_less(panel, r, needed, how):
    plain = fresh_accept_chance(panel, Gate(r, needed), how)
    for more in (Gate(r, needed, confirm=True), Gate(r, needed, guard=1), Gate(r, needed + 1)):
        assert fresh_accept_chance(panel, more, how) <= plain + 1e-9


@given(beliefs, st.integers(1, 6), changes)
def test_chances_sum_to_one(belief, r, how):
    assert pass_counts(belief, r, how).sum() == pytest.approx(1)
    assert power._gains(belief, Gate(r, 0), how).sum() == pytest.approx(1)
    assert power._gains(belief, Gate(r, 0, confirm=True), how).sum() == pytest.approx(1)


@given(betas, st.integers(1, 4), st.integers(0, 6), st.floats(-1, 1), st.floats(-1, 1))
def test_a_better_proposal_is_accepted_more_often(panel, r, needed, one, other):
    mean = sum(b.moment(1, 0) for b in panel) / len(panel)
    worse, better = (effect_change(panel, e * (1 - mean if e > 0 else mean) * 0.999) for e in sorted((one, other)))
    gate, now = Gate(r, needed), [1, *[0] * (len(panel) - 1)]
    assert fresh_accept_chance(panel, gate, worse) <= fresh_accept_chance(panel, gate, better) + 1e-12
    assert carried_accept_chance(panel, gate, now, worse) <= carried_accept_chance(panel, gate, now, better) + 1e-12


@given(betas, st.integers(1, 4), st.floats(-1, 1))
def test_the_change_moves_the_mean_by_the_effect(panel, r, share):
    mean = sum(b.moment(1, 0) for b in panel) / len(panel)
    effect = 0.999 * share * (1 - mean if share > 0 else mean)
    how = effect_change(panel, effect)
    after = sum(float(pass_counts(b, r, how) @ range(r + 1)) for b in panel) / (len(panel) * r)
    assert after - mean == pytest.approx(effect, abs=1e-9)


@given(betas, st.integers(1, 4), st.floats(0.001, 0.5))
def test_the_margin_for_a_false_accept_rate_is_the_smallest(panel, r, rate):
    margin = margin_for(panel, r, rate)
    assert fresh_accept_chance(panel, Gate(r, margin), EffectChange()) <= rate
    assert margin == 1 or fresh_accept_chance(panel, Gate(r, margin - 1), EffectChange()) > rate


def test_more_than_there_is_to_gain_is_refused():
    with pytest.raises(ValueError, match=r"expected at most 0\.100"):
        effect_change([KnownRate(0.9)], 0.2)


def reference(base):
    """The reference panel: 14 of 50 tasks unstable, p ~ Beta(1.2, 1.2), the others certain; shuffled."""
    certain = [KnownRate(1.0)] * round(base * 50 - 7)
    panel = [Beta(1.2, 1.2)] * 14 + certain + [KnownRate(0.0)] * (36 - len(certain))
    random.Random(3).shuffle(panel)
    return panel


@pytest.mark.parametrize(("base", "share"), [(0.64, 0.61), (0.75, 0.54), (0.85, 0.48), (0.92, 0.46)])
def test_the_reference_gate_accepts_nothing_a_quarter_of_the_time(base, share):
    panel = reference(base)
    assert fresh_accept_chance(panel, Gate(3, 3), EffectChange()) == pytest.approx(0.257, abs=0.001)
    used = fresh_rollouts(panel, Gate(3, 3), EffectChange(), random.Random(1).random) / 150
    assert used == pytest.approx(share, abs=0.06)


def test_the_reference_panel_agrees_with_simulated_gates():
    """Fifty tasks: the sums of transforms against gates that were drawn rollout by rollout."""
    draw = np.random.default_rng(7)
    panel, runs = reference(0.75), 20_000
    gate = Gate(3, 3, confirm=True, guard=3)
    rates = np.empty((runs, len(panel)))
    for i, b in enumerate(panel):
        rates[:, i] = b.p if isinstance(b, KnownRate) else draw.beta(b.a, b.b, size=runs)
    now, first, second = (draw.binomial(3, rates) for _ in range(3))
    accepted = np.ones(runs, dtype=bool)
    for then in (first, second):
        accepted &= (then.sum(1) - now.sum(1) >= 3) & ((now - then).max(1) < 3)
    exact = fresh_accept_chance(panel, gate, EffectChange())
    assert abs(accepted.mean() - exact) < 4 * math.sqrt(exact * (1 - exact) / runs)


def test_drawn_baselines_are_the_only_randomness_and_repetition_costs():
    panel, steps = reference(0.75), []
    plain, same, both = (
        fresh_rollouts(
            panel,
            Gate(3, 3, confirm),
            EffectChange(),
            random.Random(5).random,
            baselines=8,
            progress=lambda: steps.append(1),
        )
        for confirm in (False, False, True)
    )
    assert plain == same < both < plain + 150 * 0.5
    assert len(steps) == 24


def in_full(pairs, start, upto):
    """P(start <= first and second <= upto) of a sum of pairs, with every possible sum held."""
    size = sum(max(pair.shape) - 1 for pair in pairs) + 1
    total = np.ones((size, size // 2 + 1), dtype=complex)
    for pair in pairs:
        total = total * np.fft.rfft2(pair, (size, size))
    return float(np.fft.irfft2(total, (size, size))[start : upto + 1, start : upto + 1].sum())


@given(st.lists(beliefs, min_size=25, max_size=25), st.integers(2, 5), st.integers(-5, 5), changes, st.integers(0, 125))
def test_what_is_left_out_of_large_sums_shows_nowhere(panel, r, needed, how, current):
    def total(parts):
        return reduce(np.convolve, parts, np.ones(1))

    gate, current = Gate(r, needed), min(current, 25 * r)
    gains = total(power._gains(b, gate, how)[:, 0] for b in panel)
    assert fresh_accept_chance(panel, gate, how) == pytest.approx(gains[25 * r + needed :].sum(), abs=1e-13)
    spare, open_ = 25 * r - current - needed, 0.0
    for k, belief in enumerate(panel):
        before = total(pass_counts(b, r, how)[::-1] for b in panel[:k])
        for done in range(r):
            open_ += np.convolve(before, pass_counts(belief, done, how)[::-1])[: max(spare + 1, 0)].sum()
    now = [current // 25 + (i < current % 25) for i in range(25)]
    assert carried_rollouts(panel, gate, now, how) == pytest.approx(open_, abs=1e-10)


@settings(max_examples=20, deadline=None)
@given(st.lists(beliefs, min_size=12, max_size=12), st.integers(2, 4), changes, st.integers(-8, 8))
def test_what_is_left_out_of_large_joint_sums_shows_nowhere(panel, r, how, needed):
    def failures(belief, one, other):
        return power._joint(belief, one, other, how)[::-1, ::-1]

    gate = Gate(r, needed, confirm=True)
    gains = [power._gains(b, gate, how) for b in panel]
    end = 2 * len(panel) * r
    assert fresh_accept_chance(panel, gate, how) == pytest.approx(
        in_full(gains, len(panel) * r + needed, end), abs=1e-12
    )
    current = len(panel) * r // 2
    spare, now = len(panel) * r - current - needed, [r // 2] * len(panel)
    now[0] += current - sum(now)
    expected = 0.0
    for k, b in enumerate(panel):
        ahead = [failures(x, r, r) for x in panel[:k]]
        behind = [failures(x, r, 0) for x in panel[k + 1 :]]
        for done in range(r):
            expected += in_full([*ahead, failures(b, r, done), *behind], 0, spare)
    once = carried_rollouts(panel, Gate(r, needed), now, how)
    assert carried_rollouts(panel, gate, now, how) - once == pytest.approx(expected, abs=1e-10)
