"""The gate rule against brute force: every completion enumerated, every tie, every base rate."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from tests.strategies import conditions
from valve_plugin.errors import ConfigError
from valve_plugin.records import PanelOutcome, Verdict
from valve_plugin.theory import confidence_sequence, gate_rule, panel_order
from valve_plugin.theory.gate_rule import fallen_tasks, recompute
from valve_plugin.theory.panel_order import accept_odds, gate_odds

KNOWN = ("resolved", "unresolved")
outcomes = st.sampled_from(("resolved", "unresolved", "errored"))
HASH = "0" * 64


def completions(known, total):
    """Every way the errored and missing outcomes could have turned out."""
    slots = [KNOWN if o == "errored" else (o,) for o in known] + [KNOWN] * (total - len(known))
    return product(*slots)


@st.composite
def sides(draw, current_of=outcomes):
    current = draw(st.lists(current_of, min_size=1, max_size=5))
    candidate = draw(st.lists(outcomes, max_size=len(current)))
    return current, candidate, draw(st.integers(0, 3))


@pytest.mark.parametrize(
    ("rho", "n", "r", "needed"),
    [
        ("0.02", 50, 3, 3),
        ("0.02", 6, 3, 1),
        ("0.1", 10, 3, 3),
        ("0.0200001", 50, 3, 4),
        ("2e-2", 50, 3, 3),
        ("0", 5, 3, 0),
    ],
)
def test_the_margin_is_exact(rho, n, r, needed):
    assert gate_rule.needed_passes(rho, n, r) == needed


@given(st.integers(1, 999), st.integers(1, 60), st.integers(1, 5))
def test_the_margin_is_the_least_integer_that_reaches_rho(thousandths, n, r):
    needed = gate_rule.needed_passes(f"0.{thousandths:03d}", n, r)
    rho = Fraction(thousandths, 1000)
    assert Fraction(needed, n * r) >= rho > Fraction(needed - 1, n * r)


@given(st.integers(1, 9999))
def test_a_margin_of_one_pass_is_one_on_any_panel(total):
    assert gate_rule.needed_passes(gate_rule.margin("auto", total, 1), total, 1) == 1
    assert gate_rule.margin("auto", total, 1, "paper") == "0.02"


@pytest.mark.parametrize("rho", ["", "nan", "inf", "-0.1", "1", "1e-999999999", "0." + "0" * 60 + "1", "1/50", "0.02x"])
def test_a_margin_that_is_no_margin_is_refused(rho):
    with pytest.raises(ConfigError, match="rho is"):
        gate_rule.needed_passes(rho, 50, 3)


@given(sides())
def test_decide_agrees_with_every_completion(case):
    current, candidate, needed = case
    gains = {
        b.count("resolved") - a.count("resolved")
        for a in completions(current, len(current))
        for b in completions(candidate, len(current))
    }
    assert gate_rule.gain_bounds(current, candidate) == (min(gains), max(gains))
    decision = gate_rule.decide(current, candidate, needed)
    assert (decision == "reject") == (max(gains) < needed)
    all_known = len(candidate) == len(current) and "errored" not in (*current, *candidate)
    assert (decision == "accept") == (all_known and min(gains) >= needed)


@given(sides())
def test_the_prefix_is_the_shortest_that_decides(case):
    current, candidate, needed = case
    decided = [k for k in range(len(candidate) + 1) if gate_rule.decide(current, candidate[:k], needed) != "indecisive"]
    assert gate_rule.decisive_prefix(current, candidate, needed) == (decided[0] if decided else None)


def cells(per_task, first=0):
    return tuple(
        PanelOutcome(task_id=task, ordinal=first + j, outcome=o, context_hash=HASH)
        for task, row in per_task.items()
        for j, o in enumerate(row)
    )


def in_order(tasks, history, current):
    return panel_order.task_order(tasks, panel_order.add_counts({}, history), current)


def test_the_order_starts_with_what_fails_most():
    history = cells({"a": ["resolved"] * 3, "b": ["unresolved", "errored", "resolved"], "c": ["unresolved"] * 3})
    assert in_order(["a", "b", "c"], history, history) == ("c", "b", "a")
    assert in_order(["x", "y"], (), ()) == ("x", "y")
    now = cells({"a": ["resolved"], "d": ["unresolved"]})
    tied = cells({"a": ["resolved", "unresolved"], "d": ["resolved", "unresolved"]})
    assert in_order(["a", "d"], tied, now) == ("d", "a")


recorded = st.lists(
    st.builds(
        PanelOutcome,
        task_id=st.sampled_from("abcdef"),
        ordinal=st.integers(0, 9),
        outcome=outcomes,
        context_hash=st.just(HASH),
    ),
    max_size=40,
)


@given(st.permutations("abcdef"), recorded, recorded, st.randoms(use_true_random=False))
def test_the_order_is_a_permutation_that_depends_on_what_is_recorded_alone(tasks, history, current, chance):
    found = in_order(tasks, history, current)
    assert sorted(found) == sorted(tasks)
    shuffled, known = list(history), [o for o in history if o.outcome != "errored"]
    chance.shuffle(shuffled)
    assert in_order(tasks, shuffled, current) == in_order(tasks, known, current) == found


@given(st.permutations("abcdef"), recorded, recorded, st.sampled_from("abcdef"))
def test_a_failure_never_moves_a_task_back_and_a_pass_never_forward(tasks, history, current, task):
    place = in_order(tasks, history, current).index(task)
    for outcome, moved in (("unresolved", -1), ("resolved", 1), ("errored", 0)):
        more = PanelOutcome(task_id=task, ordinal=10, outcome=outcome, context_hash=HASH)
        now = in_order(tasks, [*history, more], current).index(task)
        assert (now - place) * moved >= 0
        assert moved or now == place


@st.composite
def verdicts(draw):
    """A sound verdict with the current outcomes it was made against, both pairings, errors included."""
    n, r = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    rho = draw(st.sampled_from(["0.02", "0.1", "0.34"]))
    tasks = [f"t{i}" for i in range(n)]
    row = st.lists(outcomes, min_size=r, max_size=r)
    known = st.lists(st.sampled_from(KNOWN), min_size=r, max_size=r)
    current = cells({t: draw(known) for t in tasks})
    kept = set(draw(st.lists(st.sampled_from(tasks), max_size=n))) if draw(st.booleans()) else set()
    reused = tuple(o for o in current if o.task_id in kept)
    order = in_order(tasks, current, current)
    fresh = cells({t: draw(row) for t in order if t not in kept})
    needed = gate_rule.needed_passes(rho, n, r)
    asked = draw(conditions)
    guard, bet = (asked.guard, asked.bet) if asked else (0, 0)
    decision, length = gate_rule.decide_measurement(current, reused + fresh, needed, guard, bet)
    judged = fresh if length is None else fresh[: max(0, length - len(reused))]
    confirming = UNSET
    if decision == "accept" and asked and asked.confirm:
        again = cells({t: draw(row) for t in order if t not in kept}, first=r)
        decision, length = gate_rule.decide_measurement(current, reused + again, needed, guard, bet)
        confirming = again if length is None else again[: length - len(reused)]
    now, values = [o.outcome for o in current], [o.outcome for o in judged]
    verdict = Verdict(
        proposal_id="p", decision=decision, epoch=1, query=1, panel_hash=HASH,
        bank_hash=HASH, pairing="deployed" if kept else "paper", rho=rho, n_tasks=n, rollouts=r, needed=needed,
        current_passes=gate_rule.count_passes(now), candidate_passes=gate_rule.count_passes(values),
        unknown=gate_rule.count_errored(values),
        order=order, outcomes=judged, reused=reused, conditions=asked, confirming=confirming,
    )  # fmt: skip
    return verdict, current


@given(verdicts())
def test_a_sound_verdict_recomputes(case):
    assert recompute(*case) == []


CHANGES = {
    "decision": lambda v: "reject" if v.decision == "accept" else "accept",
    "needed": lambda v: v.needed + 1,
    "rho": lambda v: "0",
    "current_passes": lambda v: v.current_passes + 1,
    "candidate_passes": lambda v: v.candidate_passes + 1,
    "unknown": lambda v: v.unknown + 1,
    "n_tasks": lambda v: v.n_tasks + 1,
    "rollouts": lambda v: v.rollouts + 1,
    "order": lambda v: ("stranger", *v.order[1:]),
    "confirming": lambda v: v.confirming[:-1] if v.confirming else v.outcomes or cells({"t0": ["resolved"]}),
}


@given(verdicts(), st.sampled_from(sorted(CHANGES)))
def test_a_changed_verdict_does_not(case, name):
    verdict, current = case
    changed = msgspec.structs.replace(verdict, **{name: CHANGES[name](verdict)})
    assert recompute(changed, current) != []


@given(sides(st.sampled_from(KNOWN)), st.integers(0, 3), st.integers(1, 3))
def test_a_guarded_measurement_agrees_with_every_completion(case, guard, r):
    """Decided is what no completion changes; the guard looks at every task, the margin at all of them together."""
    current, candidate, needed = case
    now = numbered(current, r)
    then = numbered(candidate, r)

    def verdict(values):
        whole = numbered(values, r)
        passed = {t: [sum(o.outcome == "resolved" and o.task_id == t for o in side) for side in (now, whole)]
                  for t in {o.task_id for o in now}}  # fmt: skip
        fell = guard and any(before - after >= guard for before, after in passed.values())
        return "reject" if fell or sum(b - a for a, b in passed.values()) < needed else "accept"

    def settled(length):
        found = {verdict(c) for c in completions(candidate[:length], len(current))}
        complete = length == len(current) and "errored" not in candidate
        return found.pop() if found == {"reject"} or (found == {"accept"} and complete) else None

    first = next((k for k in range(len(candidate) + 1) if settled(k)), None)
    decision, length = gate_rule.decide_measurement(now, then, needed, guard)
    assert length == first
    assert decision == ("indecisive" if first is None else settled(first))


def numbered(values, r):
    return tuple(
        PanelOutcome(task_id=f"t{i // r}", ordinal=i % r, outcome=o, context_hash=HASH) for i, o in enumerate(values)
    )


@given(verdicts(), st.data())
def test_a_changed_outcome_does_not(case, data):
    verdict, current = case
    if not verdict.outcomes:
        return
    i = data.draw(st.integers(0, len(verdict.outcomes) - 1))
    old = verdict.outcomes[i]
    flip = {"resolved": "unresolved", "unresolved": "resolved", "errored": "resolved"}[old.outcome]
    for change in ({"outcome": flip}, {"task_id": "stranger"}, {"ordinal": old.ordinal + 7}):
        if change.get("ordinal") and len(verdict.outcomes) == 1:
            continue  # one outcome alone says nothing about where its task's ordinals start
        new = (*verdict.outcomes[:i], msgspec.structs.replace(old, **change), *verdict.outcomes[i + 1 :])
        if change.get("ordinal") and verdict.rollouts == 1:
            continue
        if change.get("ordinal") and i == len(verdict.outcomes) - 1 and i % verdict.rollouts == 0:
            continue  # the first ordinal of the last task, likewise
        assert recompute(msgspec.structs.replace(verdict, outcomes=new), current) != []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6), st.integers(1, 3))
def test_tasks_that_lose_two_passes_or_their_only_one_have_fallen(passes, r):
    def side(which):
        return [
            PanelOutcome(
                task_id=f"t{task}",
                ordinal=n,
                outcome="resolved" if n < min(r, both[which]) else "unresolved",
                context_hash="0" * 64,
            )
            for task, both in enumerate(passes)
            for n in range(r)
        ]

    fallen = fallen_tasks(side(0), side(1))
    expected = {f"t{t}": (min(r, a), min(r, b)) for t, (a, b) in enumerate(passes)}
    assert fallen == {t: (a, b) for t, (a, b) in expected.items() if a - b >= min(2, r)}


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 400))
def test_the_bet_is_the_capital_of_the_interval_in_integers(better, worse, needed):
    capital = confidence_sequence.log_capital([(1.0, better), (-1.0, worse)], 0.0)
    if abs(capital - math.log(needed)) > 1e-9:
        assert gate_rule.bet_reaches(better, worse, needed) == (capital > math.log(needed))


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=8).filter(
        lambda rates: sum(after for _, after in rates) <= sum(before for before, _ in rates)
    ),
    st.integers(2, 20),
)
def test_a_bet_on_what_does_not_help_seldom_reaches_it(rates, needed):
    """Exact, however unequal the tasks: some may gain what others lose."""
    chances = {(0, 0): 1.0}
    for before, after in rates:
        up, down = after * (1 - before), before * (1 - after)
        following = Counter()
        for (better, worse), chance in chances.items():
            following[better + 1, worse] += chance * up
            following[better, worse + 1] += chance * down
            following[better, worse] += chance * (1 - up - down)
        chances = following
    reached = sum(c for (better, worse), c in chances.items() if gate_rule.bet_reaches(better, worse, needed))
    assert reached <= 1 / needed + 1e-12


@given(sides(st.sampled_from(KNOWN)), st.integers(1, 6))
def test_the_bet_ends_with_the_first_outcome_after_which_no_completion_reaches_it(case, needed):
    current, candidate, _ = case

    def reached(then):
        better = sum(a != "resolved" and b == "resolved" for a, b in zip(current, then, strict=True))
        worse = sum(a == "resolved" and b != "resolved" for a, b in zip(current, then, strict=True))
        return gate_rule.bet_reaches(better, worse, needed)

    lost = [
        n for n in range(len(candidate) + 1) if not any(map(reached, completions(candidate[:n], len(current))))
    ]  # fmt: skip
    found = gate_rule.bet_prefix(numbered(current, len(current)), numbered(candidate, len(current)), needed)
    assert found == (lost[0] if lost else None)


def test_what_a_bet_has_to_reach_is_the_declared_number_over_the_queries():
    assert gate_rule.bet_needed(100, 0) == 0
    assert [gate_rule.bet_needed(100, k) for k in (0.05, 1, 3)] == [2000, 100, 34]


COUNT = st.integers(0, 150)


@given(COUNT, COUNT, COUNT)
def test_they_are_the_tails_of_one_distribution(open_rollouts: int, passed: int, failed: int) -> None:
    tails = [accept_odds(wanted, open_rollouts, passed, failed) for wanted in range(open_rollouts + 2)]
    assert (tails[0], tails[-1]) == (1.0, 0.0)
    assert all(0 <= one <= other + 1e-9 for one, other in zip(tails[1:], tails, strict=False))
    mean = sum(tails[1:])
    assert mean == pytest.approx(open_rollouts * (passed + 0.5) / (passed + failed + 1), abs=1e-6)


@given(COUNT, COUNT, COUNT, COUNT)
def test_a_pass_more_makes_an_accept_likelier(wanted: int, open_rollouts: int, passed: int, failed: int) -> None:
    before = accept_odds(wanted, open_rollouts + 1, passed, failed)
    assert accept_odds(wanted - 1, open_rollouts, passed + 1, failed) >= before - 1e-9
    assert accept_odds(wanted, open_rollouts, passed, failed + 1) <= before + 1e-9


@given(st.integers(-2, 40), st.lists(st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1)), max_size=60))
def test_a_rollout_is_needed_no_likelier_than_the_one_before(spare, passing):
    told = gate_odds(spare, passing)
    assert len(told.needed) == len(passing)
    assert all(0 <= p <= 1 for p in (*told.needed, told.accept))
    assert all(p == 1 for p in told.needed[: max(0, spare + 1)]), "so many failures it takes at least"
    if all(p in (0.0, 1.0) for p in passing):
        assert told.accept == (passing.count(0.0) <= spare)


def test_the_odds_of_a_gate_are_close_to_the_exact_ones():
    passing = [0.3, 0.9, 0.5, 0.95] * 10
    exact = [1.0]
    for p in passing:
        exact = [a * p + b * (1 - p) for a, b in zip([*exact, 0.0], [0.0, *exact], strict=True)]
    for spare in range(5, 25):
        assert gate_odds(spare, passing).accept == pytest.approx(sum(exact[: spare + 1]), abs=0.02)
