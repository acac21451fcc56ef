"""Which rollouts of a plan start: none after those that decide, whatever was unknown on the way."""

from __future__ import annotations

import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rollouts.test_retry import TASK
from tests.strategies import outcomes
from valve_plugin.agents.protocol import Payment, RolloutCancelledError
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.events import RolloutCut, RunPaused, event_of
from valve_plugin.gate.panel_run import (
    CUT,
    Charge,
    PanelLine,
    _Starter,
    panel_outcome,
    read_line,
    run_panel,
    write_line,
)
from valve_plugin.gate.plan import Plan, PlannedRollout, prefix
from valve_plugin.records import Attempt, Context, PanelOutcome
from valve_plugin.rollouts.workers import Workers, stop_event
from valve_plugin.theory import gate_rule

PAIRS = st.lists(st.tuples(outcomes, outcomes), min_size=1, max_size=12)


@given(PAIRS, st.integers(0, 4), st.integers(0, 2), st.integers(1, 4))
def test_what_starts_decides_as_the_whole_plan_and_one_worker_starts_no_more(pairs, needed, guard, workers):
    plan = Plan(("t",), tuple(PlannedRollout(TASK, Context(text=""), n) for n in range(len(pairs))))
    attempts = [Attempt(id="x", task_id="t", ordinal=n, source="panel", outcome=o) for n, (_, o) in enumerate(pairs)]
    now = [
        panel_outcome(cell, Attempt(id="x", task_id="t", ordinal=0, source="panel", outcome=o))
        for cell, (o, _) in zip(plan.cells, pairs, strict=True)
    ]
    started = []

    def start(cell):
        started.append(cell.ordinal)
        return attempts[cell.ordinal]

    def stage(found):
        return gate_rule.decide_measurement(now, prefix(plan, found), needed, guard)

    with Workers(workers) as executor:
        jobs = [executor.submit(partial(_Starter(start, None), cell)) for cell in plan.cells]
        assert [job.result() for job in jobs] == attempts, "without a question all of them run"
        started.clear()
        starts = _Starter(start, stage)
        jobs = [executor.submit(partial(starts, cell)) for cell in plan.cells]
        done = [job.result() for job in jobs]
    everything = {("t", cell.ordinal): panel_outcome(cell, a) for cell, a in zip(plan.cells, attempts, strict=True)}
    decision, length = stage(everything)
    assert stage({key: o for key, o in everything.items() if done[key[1]]}) == (decision, length)
    most = len(pairs) if length is None else length
    assert sorted(started) == [n for n, a in enumerate(done) if a]
    assert len(started) >= most
    if workers == 1:
        assert len(started) == most


def test_an_interrupted_run_reports_what_just_ended_and_what_the_others_had_cost(tmp_path, data_dir):
    local = BankStore.create(tmp_path / "bank", "o/r", {"repo": "o/r"}).local
    context, settings, running = Context(text=""), Settings(model="m", workers=3, budget_usd=9.0), threading.Barrier(3)
    plan = Plan(("t",), tuple(PlannedRollout(TASK, context, n) for n in range(3)))
    lines = []

    def attempt(ordinal, **_):
        running.wait(60)
        if ordinal:
            stop_event().wait(60)
        if ordinal == 2:
            raise RolloutCancelledError(Payment(2, 0.25))
        return Attempt(id=f"{ordinal}", task_id="t", ordinal=ordinal, source="panel", outcome="resolved", cost_usd=1.0,
                       context_hash=context.hash)  # fmt: skip

    def emit(line):
        lines.append(line)
        if isinstance(line, PanelLine) and line.outcome.ordinal == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_panel(attempt, local, settings, plan, emit)
    assert [line.outcome.ordinal for line in lines if isinstance(line, PanelLine)] == [0, 1]
    (cut,) = [line for line in lines if isinstance(line, RolloutCut)]
    assert (cut.ordinal, cut.source, cut.steps, cut.cost_usd) == (2, "panel", 2, 0.25)
    charges = [line for line in lines if isinstance(line, Charge)]
    assert (sum(c.usd for c in charges), sum(c.rollouts for c in charges)) == (2.25, 3)
    assert [event_of("rollout_cut", noted) for noted in local.read_telemetry(CUT)] == [cut]


@pytest.mark.parametrize(
    "line",
    [
        PanelLine(outcome=PanelOutcome(task_id="t", ordinal=0, outcome="resolved", context_hash="0" * 64)),
        Charge(0.5, 1),
        RunPaused(reason="why"),
    ],
)
def test_a_line_comes_back_from_its_bytes(line):
    assert read_line(write_line(line)) == line
