"""The gate's chances against brute force over every outcome, and drawn runs against both."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.theory.test_gate_rule import numbered
from valve_plugin.records import PanelOutcome
from valve_plugin.theory import gate_rule as rule
from valve_plugin.theory import power
from valve_plugin.theory.estimates import RateSpread
from valve_plugin.theory.power import Beta, Change, Gate, accept_chance, change_of, margin_for, simulate

weights = st.floats(0.05, 5.0)
betas = st.builds(Beta, weights, weights)
panels = st.lists(betas, min_size=1, max_size=2)
changes = st.builds(Change, st.floats(-1, 1), st.floats(0, 1), st.booleans())
gates = st.builds(lambda r, needed, guard: Gate(r, needed, guard=guard), *[st.integers(low, 2) for low in (1, 0, 0)])
NAMES = ("unresolved", "resolved")
Cells = tuple[int, ...]


def moment(b: Beta, passed: int, failed: int) -> float:
    """The chance of one given sequence of so many passes and failures."""
    up = [b.a + i for i in range(passed)] + [b.b + i for i in range(failed)]
    return math.prod(x / (b.a + b.b + i) for i, x in enumerate(up))


def cells_of(b: Beta, how: Change, current: Cells) -> Iterator[tuple[Cells, float]]:
    """Every way the candidate's rollouts of a task can come out, and its chance."""
    n = len(current)
    yield current, 1 - how.reach
    c, spoil, rescue = abs(how.chance), max(-how.chance, 0.0), max(how.chance, 0.0)
    for base in product((0, 1), repeat=n):
        chance = how.reach * moment(b, sum(base), n - sum(base))
        if how.whole:
            yield base, chance * (1 - c)
            yield (int(how.chance > 0),) * n, chance * c
            continue
        for then in product((0, 1), repeat=n):
            steps = [(spoil if x else rescue, x != y) for x, y in zip(base, then, strict=True)]
            yield then, chance * math.prod(flip if changed else 1 - flip for flip, changed in steps)


@settings(max_examples=40, deadline=None)
@given(panels, gates, changes, st.data())
def test_a_carried_gate_is_every_outcome_weighed(
    panel: list[Beta], gate: Gate, how: Change, data: st.DataObject
) -> None:
    r = gate.rollouts
    now = [data.draw(st.integers(0, r)) for _ in panel]
    rows = [tuple(int(j < passed) for j in range(r)) for passed in now]
    current = numbered([NAMES[x] for row in rows for x in row], r)
    accepted = 0.0
    for parts in product(*(list(cells_of(b, how, row)) for b, row in zip(panel, rows, strict=True))):
        then = numbered([NAMES[x] for cells, _ in parts for x in cells], r)
        decision, _ = rule.decide_measurement(current, then, gate.needed, gate.guard)
        accepted += (decision == "accept") * math.prod(chance for _, chance in parts)
    assert accept_chance(panel, gate, how, now) == pytest.approx(accepted, abs=1e-9)


@given(panels, gates, changes)
def test_a_fresh_gate_is_every_baseline_weighed(panel: list[Beta], gate: Gate, how: Change) -> None:
    r, accepted = gate.rollouts, 0.0
    for now in product(range(r + 1), repeat=len(panel)):
        seen = math.prod(math.comb(r, p) * moment(b, p, r - p) for b, p in zip(panel, now, strict=True))
        after = [Beta(b.a + p, b.b + r - p) for b, p in zip(panel, now, strict=True)]
        accepted += seen * accept_chance(after, gate, how, now)
    assert accept_chance(panel, gate, how) == pytest.approx(accepted, abs=1e-9)


@given(panels, st.integers(1, 2), st.integers(0, 2), changes)
def test_more_conditions_accept_less(panel: list[Beta], r: int, needed: int, how: Change) -> None:
    plain = accept_chance(panel, Gate(r, needed), how)
    for more in (Gate(r, needed, guard=1), Gate(r, needed + 1)):
        assert accept_chance(panel, more, how) <= plain + 1e-9


@given(
    st.lists(betas, min_size=1, max_size=5), st.integers(1, 4), st.integers(0, 6), st.floats(0.1, 1),
    st.lists(st.floats(-0.999, 0.999), min_size=2, max_size=2), st.booleans(),
)  # fmt: skip
def test_a_better_proposal_is_accepted_more_often(
    panel: list[Beta], r: int, needed: int, reach: float, shares: list[float], whole: bool
) -> None:
    room = power.most_gain(panel, reach)
    effects = sorted(share * (room if share > 0 else reach - room) for share in shares)
    hows = [change_of(panel, effect, reach)._replace(whole=whole) for effect in effects]
    worse, better = (accept_chance(panel, Gate(r, needed), how) for how in hows)
    assert worse <= better + 1e-9
    gains = power._sum_of_gains(panel, Gate(r, 0), hows[0], None)
    mean = float(gains @ np.arange(-len(panel) * r, len(panel) * r + 1)) / (len(panel) * r)
    assert mean == pytest.approx(effects[0], abs=1e-9), "the change moves the mean rate by the effect"


@given(st.lists(betas, min_size=1, max_size=6), st.integers(1, 4), st.floats(0.001, 0.5))
def test_the_margin_for_a_false_accept_rate_is_the_smallest(panel: list[Beta], r: int, rate: float) -> None:
    margin = margin_for(panel, r, rate)
    assert accept_chance(panel, Gate(r, margin), Change()) <= rate + 1e-12
    assert margin == 1 or accept_chance(panel, Gate(r, margin - 1), Change()) > rate - 1e-12


def test_more_than_there_is_to_gain_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected at most 0\.100"):
        change_of([Beta(9, 1)], 0.2)


@pytest.mark.parametrize("spread", [RateSpread(0.75, 0.05), RateSpread(0.3, 0.21), RateSpread(0.9, 1e-5)])
def test_a_population_has_the_mean_and_noise_that_were_given(spread: RateSpread) -> None:
    found = power.exact_population(spread)
    assert (found.mean, found.noise) == (pytest.approx(spread.mean), pytest.approx(spread.mass))


@pytest.mark.parametrize("base", [0.64, 0.75, 0.85, 0.92])
def test_the_reference_gate_accepts_nothing_a_quarter_of_the_time(base: float) -> None:
    """14 of 50 tasks are unstable, p ~ Beta(1.2, 1.2), the others certain."""
    sure = round(base * 50 - 7)
    panel = [Beta(1.2, 1.2)] * 14 + [Beta(1e9, 1e-3)] * sure + [Beta(1e-3, 1e9)] * (36 - sure)
    assert accept_chance(panel, Gate(3, 3), Change()) == pytest.approx(0.257, abs=0.001)


TYPICAL = [power.exact_population(RateSpread(0.75, 0.05))] * 50


@pytest.mark.parametrize(
    ("gate", "effect", "reach", "whole"),
    [
        (Gate(3, 3), 0.0, 1.0, False),
        (Gate(3, 3), 0.05, 0.4, False),
        (Gate(3, 3, guard=3), 0.05, 1.0, False),
        (Gate(2, 1, guard=2), -0.03, 1.0, True),
    ],
)
def test_drawn_queries_agree_with_the_exact_chances(gate: Gate, effect: float, reach: float, whole: bool) -> None:
    how, runs = change_of(TYPICAL, effect, reach)._replace(whole=whole), 6000
    exact = accept_chance(TYPICAL, gate, how)
    drawn = simulate(TYPICAL, gate, [(1.0, how)], 1, runs=runs, seed=4).first[0]
    assert abs(drawn - exact) < 4 * math.sqrt(exact * (1 - exact) / runs) + 1e-9


def test_accepts_that_repeat_are_rarer_but_not_squared() -> None:
    """Two fresh measurements against one and the same baseline, which is lucky or unlucky for both."""
    once, twice = (accept_chance(TYPICAL, Gate(3, 3, confirm=confirm), Change()) for confirm in (False, True))
    assert once**2 < twice < once
    assert twice == pytest.approx(0.13, abs=0.02)


@pytest.mark.parametrize("bet", [0, 20])
def test_drawn_measurements_are_what_the_rule_says_of_them(bet: int) -> None:
    """Accepts and rollouts of drawn measurements, each judged again by the rule that decides real ones."""
    draw, gate = random.Random(3), Gate(3, 2, guard=3, bet=bet)
    n, runs = 12, 300
    passes = np.array([[draw.randint(0, 3) for _ in range(n)] for _ in range(runs)])
    reached = np.array([[draw.random() < 0.7 for _ in range(n)] for _ in range(runs)])
    rates = np.array([[draw.random() ** 0.3 for _ in range(n)] for _ in range(runs)])
    cells = np.random.default_rng(8).random((runs, n, 3))
    yes, then, used = power._measure(np.random.default_rng(8), gate, passes, rates, reached)
    for i in range(runs):
        order = np.argsort(passes[i], kind="stable")
        current = [outcome(t, j, j < passes[i, t]) for t in range(n) for j in range(3)]
        kept = [o for o in current if not reached[i, int(o.task_id)]]
        ran = [
            outcome(int(t), 3 + j, cells[i, place, j] < rates[i, t])
            for place, t in enumerate(order) if reached[i, t] for j in range(3)
        ]  # fmt: skip
        decision, length = rule.decide_measurement(current, [*kept, *ran], gate.needed, gate.guard, gate.bet)
        assert (decision == "accept") == yes[i]
        assert length is not None
        if yes[i]:
            assert then[i, reached[i]].sum() == sum(o.outcome == "resolved" for o in ran)
        assert used[i] >= max(0, length - len(kept)), "the guard may stop sooner; nothing else may"
        unguarded = rule.decide_measurement(current, [*kept, *ran], gate.needed, 0, gate.bet)[1]
        assert used[i] == max(0, (unguarded or 0) - len(kept))


def outcome(task: int, ordinal: int, passed: object) -> PanelOutcome:
    name = "resolved" if passed else "unresolved"
    return PanelOutcome(task_id=str(task), ordinal=ordinal, outcome=name, context_hash="0" * 64)


def test_a_run_in_which_accepts_are_measured_anew_learns_more() -> None:
    kinds = [(0.7, Change()), (0.2, change_of(TYPICAL, 0.03)), (0.1, change_of(TYPICAL, -0.03))]
    fresh, carried = (simulate(TYPICAL, Gate(3, 3, fresh=f), kinds, 60, runs=40) for f in (15, 0))
    assert fresh.gain > carried.gain
    assert fresh.accepted[0] > carried.accepted[0]
    assert carried.baselines == 150
    assert simulate(TYPICAL, Gate(3, 3, fresh=15), kinds, 60, runs=40) == fresh, "the seed is the only randomness"


def test_a_declared_bet_keeps_the_useless_accepts_of_a_run() -> None:
    """SIMULATION: proposals that do nothing, or trade tasks against each other; 2 may be accepted of 40."""
    bet = rule.bet_needed(40, 2)
    found = simulate(TYPICAL, Gate(3, 1, fresh=1, bet=bet), [(0.5, Change()), (0.5, Change(reach=0.3))], 40, runs=100)
    assert sum(found.accepted) < 2
    plain = simulate(TYPICAL, Gate(3, 1, fresh=15), [(0.5, Change()), (0.5, Change(reach=0.3))], 40, runs=100)
    assert sum(plain.accepted) > 4
