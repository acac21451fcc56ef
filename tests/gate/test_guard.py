"""The circuit breaker: lasting faults open it at once, repeated ones soon, and a success in between closes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.config import Settings
from valve_plugin.errors import InfrastructureError
from valve_plugin.gate.guard import IN_A_ROW, Guard
from valve_plugin.records import Attempt, Context, Task

TASK = Task(instance_id="t", repo="o/r", patch="p", fail_to_pass=("a",), pass_to_pass=(), problem_statement="x")


def ask(guard, outcome, fault="", ordinal=0):
    guard._attempt = lambda **_: Attempt(
        id="x", task_id="t", ordinal=ordinal, source="panel", outcome=outcome, fault=fault, reason=f"why {fault}"
    )
    return guard(settings=Settings(), task=TASK, context=Context(text=""), ordinal=ordinal, source="panel")


def run(steps):
    """How many attempts ran until the circuit opened; None: it never did."""
    guard = Guard(lambda **_: None)
    for number, step in enumerate(steps):
        try:
            ask(guard, *step)
        except InfrastructureError:
            return number
    return None


@pytest.mark.parametrize("fault", ["key", "quota", "model", "price", "request"])
def test_a_lasting_fault_opens_it_at_once(fault):
    guard = Guard(lambda **_: None)
    assert ask(guard, "errored", fault).outcome == "errored"
    with pytest.raises(InfrastructureError, match=f"why {fault}; the run pauses"):
        guard.check()


@given(st.lists(st.sampled_from(["resolved", "unresolved", "errored"]), max_size=40))
def test_a_fault_that_passes_opens_it_after_some_in_a_row(outcomes):
    steps = [(o, "server" if o == "errored" else "", 0) for o in outcomes]
    in_a_row = next(
        (n + IN_A_ROW for n in range(len(outcomes)) if outcomes[n : n + IN_A_ROW] == ["errored"] * IN_A_ROW), None
    )
    assert run([*steps, ("resolved", "", 0)]) == in_a_row


def test_one_dead_container_is_no_dead_host():
    """Tries of one rollout that the host fails do not stop the others; several rollouts do."""
    assert run([("errored", "", 7)] * 20) is None
    assert run([("errored", "", n) for n in range(20)]) == IN_A_ROW
