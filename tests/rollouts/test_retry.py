"""The circuit breaker: lasting faults open it at once, repeated ones soon, and a success in between closes it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, as_completed
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.agents.protocol import Payment, RolloutCancelledError
from valve_plugin.agents.retry import report_step, report_wait
from valve_plugin.config import Settings
from valve_plugin.errors import BudgetError, InfrastructureError
from valve_plugin.events import AgentsWorking, RunPaused, Waiting
from valve_plugin.records import Attempt, Context, Task
from valve_plugin.rollouts import retry as guards
from valve_plugin.rollouts.retry import FAILURES_IN_A_ROW, Guard, iterate_results
from valve_plugin.rollouts.workers import Workers
from valve_plugin.theory.budget import BudgetLimits

TASK = Task(instance_id="t", repo="o/r", patch="p", fail_to_pass=("a",), pass_to_pass=(), problem_statement="x")


@pytest.fixture(autouse=True)
def _no_more_tries(monkeypatch):
    monkeypatch.setattr(guards, "PAUSES", ())


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
        (
            n + FAILURES_IN_A_ROW
            for n in range(len(outcomes))
            if outcomes[n : n + FAILURES_IN_A_ROW] == ["errored"] * FAILURES_IN_A_ROW
        ),
        None,
    )
    assert run([*steps, ("resolved", "", 0)]) == in_a_row


@pytest.mark.parametrize(("usd", "limit", "pauses"), [(0.0, 5.0, True), (0.1, 5.0, False), (0.0, 0.0, False)])
def test_dollars_that_nobody_counts_are_no_limit_to_rely_on(usd, limit, pauses):
    done = Attempt(
        id="x", task_id="t", ordinal=0, source="panel", outcome="unresolved", steps=3, cost_usd=usd, model="openai/m"
    )
    guard = Guard(lambda **_: done, BudgetLimits(usd=limit))
    guard(settings=Settings(), task=TASK, context=Context(text=""), ordinal=0, source="panel")
    if not pauses:
        guard.check()
        return
    with pytest.raises(InfrastructureError, match=r"no cost for openai/m, so --budget-usd cannot hold.*--max-rollouts"):
        guard.check()


def test_steps_of_running_rollouts_are_told_now_and_then():
    heard, now = [], [0.0]

    def attempt(**_):
        for step in range(1, 31):
            now[0] += 1.0
            report_step(step, 0.0)
        return Attempt(id="x", task_id="t", ordinal=0, source="panel", outcome="resolved", steps=30)

    guard = Guard(attempt, clock=lambda: now[0], observe=heard.append)
    guard(settings=Settings(step_limit=40), task=TASK, context=Context(text=""), ordinal=0, source="panel")
    assert heard == [AgentsWorking(rollouts=1, steps=n, longest=n, of=40) for n in range(5, 31, 5)]
    report_step(3, 0.0)  # nobody listens


def test_what_waits_in_the_attempt_is_heard_and_the_open_circuit_told():
    heard = []
    guard = Guard(lambda **_: None, observe=heard.append)

    def attempt(**_):
        report_wait(Waiting(said="x", tried=1, of=2, seconds=0.0))
        return Attempt(id="x", task_id="t", ordinal=0, source="panel", outcome="errored", fault="key", reason="why")

    guard._attempt = attempt
    guard(settings=Settings(), task=TASK, context=Context(text=""), ordinal=0, source="panel")
    assert heard == [Waiting(said="x", tried=1, of=2, seconds=0.0), RunPaused(reason="why")]
    report_wait(Waiting(said="x", tried=1, of=2, seconds=0.0))
    assert len(heard) == 2, "outside nobody listens"
    guard.report(Waiting(said="x", tried=2, of=2, seconds=0.0))
    assert len(heard) == 2, "no wait follows a pause, whichever worker it is of"


def test_what_is_lent_is_charged_and_nothing_starts_meanwhile():
    guard = Guard(lambda **_: None, BudgetLimits(usd=5.0, rollouts=10))
    with guard.lend() as left:
        assert left == BudgetLimits(usd=5.0, rollouts=10)
        with pytest.raises(BudgetError, match="reserved for the gate"):
            ask(guard, "resolved")
        guard.spend(0.0, 1)
        guard.spend(2.0, 0)
    assert guard.left() == BudgetLimits(usd=3.0, rollouts=9)


def test_a_rollout_that_is_lost_is_run_again(monkeypatch):
    monkeypatch.setattr(guards, "PAUSES", (0.0,) * 3)
    outcomes = ["errored"] * 3 + ["resolved"]

    def attempt(**_):
        return Attempt(id="x", task_id="t", ordinal=0, source="panel", outcome=outcomes.pop(0))

    guard = Guard(attempt)
    assert (
        guard(settings=Settings(), task=TASK, context=Context(text=""), ordinal=0, source="panel").outcome == "resolved"
    )
    guard.check()


def test_what_a_rollout_had_cost_when_it_was_cut_counts():
    told = []
    guard = Guard(lambda **_: None, BudgetLimits(usd=2.0), spending=lambda usd, rollouts: told.append((usd, rollouts)))

    def cut(**_):
        raise RolloutCancelledError(Payment(3, 0.75))

    guard._attempt = cut
    with pytest.raises(CancelledError):
        guard(settings=Settings(), task=TASK, context=Context(text=""), ordinal=0, source="panel")
    assert told == [(0.0, 1), (0.75, 0)]
    assert guard.left().usd == pytest.approx(1.25)


@pytest.mark.parametrize("workers", [1, 5])
def test_a_budget_holds_for_all_workers_and_what_runs_is_awaited(workers):
    """Twenty jobs, seven allowed: seven run, all their results come, and only then is the budget raised."""
    running = threading.Semaphore(workers)

    def attempt(**about):
        with running:
            time.sleep(0.01)
            return Attempt(
                id="x", task_id="t", ordinal=about["ordinal"], source="panel", outcome="resolved", cost_usd=1.0
            )

    guard, got = Guard(attempt, BudgetLimits(rollouts=7)), []
    with Workers(workers) as executor:
        jobs = [
            executor.submit(
                partial(guard, settings=Settings(), task=TASK, context=Context(text=""), ordinal=n, source="panel")
            )
            for n in range(20)
        ]
        with pytest.raises(BudgetError, match="7 rollouts"):
            got.extend(done for _, done in iterate_results(as_completed(jobs)))
    assert len(got) == 7
    assert all(map(guard.ran, got))
    with pytest.raises(BudgetError):
        guard.left()
