"""What a gate took: all that ended counts, heard or not, and what was cut short is told apart."""

from __future__ import annotations

from concurrent.futures import CancelledError

import pytest

from tests.gate.test_guard import TASK
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.gate.plan import Cell, Plan
from valve_plugin.gate.rollout import CUT, durable, outcome
from valve_plugin.gate.took import took
from valve_plugin.records import Attempt, Context
from valve_plugin.rollouts.paid import CutError, Paid


def test_what_ended_unheard_ran_and_what_was_ended_was_cut(tmp_path, data_dir):
    local = BankStore.create(tmp_path / "bank", "o/r", {"repo": "o/r"}).local
    context, settings = Context(text=""), Settings(model="m")
    cells = tuple(Cell(TASK, context, n) for n in range(5))
    plan, done = Plan(("t",), cells), {}

    def attempt(ordinal, source, **_):
        if ordinal == 3:
            raise CutError(Paid(2, 0.25))
        how = "errored" if ordinal == 1 else "resolved"
        return Attempt(id="x", task_id="t", ordinal=ordinal, source=source, outcome=how, reason="why", cost_usd=1.0,
                       context_hash=context.hash)  # fmt: skip

    for cell in cells[:3]:
        done[cell.ordinal] = durable(attempt, local, settings, cell, "panel")
    found = {("t", n): outcome(cells[n], done[n]) for n in (0, 1)}
    with pytest.raises(CancelledError):
        durable(attempt, local, settings, cells[3], "panel")
    assert took(local, settings, plan, found, 2.0) == {"ran": 3, "cut": 1, "cost_usd": 3.0, "cut_usd": 0.25}
    (noted,) = local.told(CUT)
    assert (noted["source"], noted["steps"], noted["cost_usd"]) == ("panel", 2, 0.25)

    durable(lambda **about: attempt(**{**about, "ordinal": 0}), local, settings, cells[3], "panel")  # a later start
    assert took(local, settings, plan, found, 2.0) == {"ran": 4, "cut": 0, "cost_usd": 4.0, "cut_usd": 0}
