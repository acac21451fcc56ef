"""The odds of a running gate: a distribution over what open rollouts may still do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.theory.odds import accept_odds, gate_odds

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
