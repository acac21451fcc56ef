"""The real extract step, through litellm, against the simulated model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulate.rows import row, taskset
from valve_plugin.config import Settings
from valve_plugin.extract.reflect import reflect
from valve_plugin.records import Attempt, Bank, Outcome
from valve_plugin.rollouts.worker import SCRIPTED_MODEL
from valve_plugin.simulate.server import start

TASKS = [row("func_pm_remove_assign", n) for n in range(40)]


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with start(taskset(*TASKS), seed=3) as server:
        for name, value in server.environment().items():  # before litellm is imported, which reads one of them
            monkeypatch.setenv(name, value)
        yield


def _attempt(task_id: str, ordinal: int, outcome: Outcome) -> Attempt:
    return Attempt(id=f"a{ordinal}", task_id=task_id, ordinal=ordinal, source="evolve", outcome=outcome)


def test_mixed_attempts_give_items_or_a_reason(simulated: None) -> None:
    settings = Settings(model=SCRIPTED_MODEL)
    proposals = []
    for task in TASKS:
        attempts = [_attempt(task.instance_id, 0, "resolved"), _attempt(task.instance_id, 1, "unresolved")]
        bank = Bank(repo=task.repo)
        proposal = reflect(settings, bank, task.problem_statement, attempts, ["looked, repaired", "gave up"])
        assert proposal == reflect(settings, bank, task.problem_statement, attempts, ["other", "digests"])
        proposals.append(proposal)
    assert sum(bool(p.items) for p in proposals) >= 20
    assert any(p.empty and p.reason for p in proposals)  # a malformed reply
    assert len({item.name for p in proposals for item in p.items}) >= 5
