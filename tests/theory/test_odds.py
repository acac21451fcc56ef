"""The odds of a running gate: a distribution over what open rollouts may still do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.theory.odds import accept_odds

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
