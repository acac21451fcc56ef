"""The confirmed and guarded gate's chances against brute force over every outcome of both measurements."""

from __future__ import annotations

import math
import random
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.theory.test_gate import numbered
from tests.theory.test_power import beliefs, changes, reference, rollouts_of
from valve_plugin.theory import gate as rule
from valve_plugin.theory import power, repeated
from valve_plugin.theory.power import Beta, Change, Known
from valve_plugin.theory.repeated import Gate, accept_carried, accept_fresh, used_carried

gates = st.builds(Gate, st.integers(1, 2), st.integers(0, 2), st.booleans(), st.integers(0, 2))
panels = st.lists(beliefs, min_size=1, max_size=2)


def judged(current, measurements, gate):
    """Decision and rollouts of a whole query, by the rule that decides real ones."""
    now = numbered(current, gate.rollouts)
    used = 0
    for values in measurements[: 1 + gate.confirm]:
        decision, length = rule.stage(now, numbered(values, gate.rollouts), gate.needed, gate.guard)
        used += length
        if decision == "reject":
            return False, used
    return True, used


def outcomes(panel, n, how):
    """Every outcome of n rollouts per task and its chance."""
    for parts in product(*(list(rollouts_of(belief, n, how)) for belief in panel)):
        yield [cells for cells, _ in parts], math.prod(chance for _, chance in parts)


@settings(max_examples=25)
@given(panels, gates, changes, st.data())
def test_a_carried_gate_is_every_outcome_weighed(panel, gate, how, data):
    r = gate.rollouts
    assume(len(panel) * r <= 3)  # the rest takes long and shows the same
    now = [data.draw(st.integers(0, r)) for _ in panel]
    current = [("resolved" if j < passed else "unresolved") for passed in now for j in range(r)]
    accepted = used = 0.0
    names = ("unresolved", "resolved")
    for rows, chance in outcomes(panel, 2 * r, how):
        both = [[names[x] for row in rows for x in row[k * r : (k + 1) * r]] for k in (0, 1)]
        yes, ran = judged(current, both, gate)
        accepted, used = accepted + chance * yes, used + chance * ran
    assert accept_carried(panel, gate, now, how) == pytest.approx(accepted, abs=1e-9)
    if gate.guard:
        assert used_carried(panel, gate, now, how) >= used - 1e-9
    else:
        assert used_carried(panel, gate, now, how) == pytest.approx(used, abs=1e-9)


@given(panels, gates, changes)
def test_a_fresh_gate_is_every_baseline_weighed(panel, gate, how):
    r, accepted = gate.rollouts, 0.0
    for now in product(range(r + 1), repeat=len(panel)):
        seen = math.prod(
            math.comb(r, passed) * b.moment(passed, r - passed) for b, passed in zip(panel, now, strict=True)
        )
        if seen:
            after = [b.updated(passed, r - passed) for b, passed in zip(panel, now, strict=True)]
            accepted += seen * accept_carried(after, gate, now, how)
    assert accept_fresh(panel, gate, how) == pytest.approx(accepted, abs=1e-9)


@given(panels, st.integers(1, 2), st.integers(0, 2), changes)
def test_without_either_it_is_the_plain_gate(panel, r, needed, how):
    plain = Gate(r, needed)
    assert accept_fresh(panel, plain, how) == pytest.approx(power.accept_fresh(panel, r, needed, how), abs=1e-9)
    for more in (Gate(r, needed, confirm=True), Gate(r, needed, guard=1)):
        assert accept_fresh(panel, more, how) <= accept_fresh(panel, plain, how) + 1e-9


def test_the_reference_panel_agrees_with_simulated_gates():
    """Fifty tasks: the sums of transforms against gates that were drawn rollout by rollout."""
    draw = np.random.default_rng(7)
    panel, runs = reference(0.75), 20_000
    gate = Gate(3, 3, confirm=True, guard=3)
    rates = np.empty((runs, len(panel)))
    for i, b in enumerate(panel):
        rates[:, i] = b.p if isinstance(b, Known) else draw.beta(b.a, b.b, size=runs)
    assert {type(b) for b in panel} == {Known, Beta}
    now, first, second = (draw.binomial(3, rates) for _ in range(3))
    accepted = np.ones(runs, dtype=bool)
    for then in (first, second):
        accepted &= (then.sum(1) - now.sum(1) >= 3) & ((now - then).max(1) < 3)
    exact = accept_fresh(panel, gate, Change())
    assert abs(accepted.mean() - exact) < 4 * math.sqrt(exact * (1 - exact) / runs)


def test_expected_rollouts_count_what_is_repeated():
    panel = reference(0.75)
    gate = Gate(3, 3, confirm=True)

    def used(after, now):
        return used_carried(after, gate, now, Change())

    plain = power.used_fresh(panel, 3, 3, Change(), random.Random(1).random, baselines=8)
    both = power.used_fresh(panel, 3, 3, Change(), random.Random(1).random, baselines=8, used=used)
    assert plain < both < plain + 150 * 0.5


def plainly(pairs, start, upto):
    """P(start <= first and second <= upto) of a sum of pairs, with every possible sum held."""
    size = sum(max(pair.shape) - 1 for pair in pairs) + 1
    total = np.ones((size, size // 2 + 1), dtype=complex)
    for pair in pairs:
        total = total * np.fft.rfft2(pair, (size, size))
    return float(np.fft.irfft2(total, (size, size))[start : upto + 1, start : upto + 1].sum())


@settings(max_examples=20, deadline=None)
@given(st.lists(beliefs, min_size=12, max_size=12), st.integers(2, 4), changes, st.integers(-8, 8))
def test_what_is_left_out_of_large_sums_shows_nowhere(panel, r, how, needed):
    gate = Gate(r, needed, confirm=True)
    gains = [repeated._gains(b, gate, how) for b in panel]
    end = 2 * len(panel) * r
    assert accept_fresh(panel, gate, how) == pytest.approx(plainly(gains, len(panel) * r + needed, end), abs=1e-12)
    current = len(panel) * r // 2
    spare, now = len(panel) * r - current - needed, [r // 2] * len(panel)
    now[0] += current - sum(now)
    expected = 0.0
    for k, b in enumerate(panel):
        ahead = [repeated._failures(x, r, r, how) for x in panel[:k]]
        behind = [repeated._failures(x, r, 0, how) for x in panel[k + 1 :]]
        for done in range(r):
            expected += plainly([*ahead, repeated._failures(b, r, done, how), *behind], 0, spare)
    once = power.used_carried(panel, r, needed, current, how)
    assert used_carried(panel, gate, now, how) - once == pytest.approx(expected, abs=1e-10)
