"""Which rollouts of a plan start: none after those that decide, whatever was unknown on the way."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from tests.gate.test_guard import TASK
from tests.strategies import outcomes
from valve_plugin.gate.panel import _Starts
from valve_plugin.gate.plan import Cell, Plan, prefix
from valve_plugin.gate.rollout import outcome
from valve_plugin.records import Attempt, Context
from valve_plugin.rollouts.executors import LocalExecutor
from valve_plugin.theory import gate

PAIRS = st.lists(st.tuples(outcomes, outcomes), min_size=1, max_size=12)


@given(PAIRS, st.integers(0, 4), st.integers(0, 2), st.integers(1, 4))
def test_what_starts_decides_as_the_whole_plan_and_one_worker_starts_no_more(pairs, needed, guard, workers):
    plan = Plan(("t",), tuple(Cell(TASK, Context(text=""), n) for n in range(len(pairs))))
    attempts = [Attempt(id="x", task_id="t", ordinal=n, source="panel", outcome=o) for n, (_, o) in enumerate(pairs)]
    now = [
        outcome(cell, Attempt(id="x", task_id="t", ordinal=0, source="panel", outcome=o))
        for cell, (o, _) in zip(plan.cells, pairs, strict=True)
    ]
    started = []

    def start(cell):
        started.append(cell.ordinal)
        return attempts[cell.ordinal]

    def stage(found):
        return gate.stage(now, prefix(plan, found), needed, guard)

    with LocalExecutor(workers) as executor:
        jobs = [executor.submit(partial(_Starts(start, None), cell)) for cell in plan.cells]
        assert [job.result() for job in jobs] == attempts, "without a question all of them run"
        started.clear()
        starts = _Starts(start, stage)
        jobs = [executor.submit(partial(starts, cell)) for cell in plan.cells]
        done = [job.result() for job in jobs]
    everything = {("t", cell.ordinal): outcome(cell, a) for cell, a in zip(plan.cells, attempts, strict=True)}
    decision, length = stage(everything)
    assert stage({key: o for key, o in everything.items() if done[key[1]]}) == (decision, length)
    most = len(pairs) if length is None else length
    assert sorted(started) == [n for n, a in enumerate(done) if a]
    assert len(started) >= most
    if workers == 1:
        assert len(started) == most
