"""Rollouts on real bugs in deepdiff 8.2.0: the simulated solver's edits mean what its draws say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.agents.support import SCRIPTED, always
from tests.tools import need
from valve_plugin.lab.simulation import edits
from valve_plugin.lab.simulation.server import start
from valve_plugin.records import Attempt, Context, Task
from valve_plugin.rollouts.attempt import attempt
from valve_plugin.sandbox import bubblewrap, workspace
from valve_plugin.tasks.repository import PreparedRepository, prepare
from valve_plugin.tasks.states import gold_patch
from valve_plugin.tasks.task_set import TaskSet, load
from valve_plugin.tasks.workspace import open_task

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]
DEEPDIFF = Path(__file__).parents[2] / "examples" / "deepdiff"


@pytest.fixture(scope="module")
def taskset() -> TaskSet:
    need("bwrap")
    return load(DEEPDIFF)


@pytest.fixture(scope="module")
def deepdiff(taskset: TaskSet) -> PreparedRepository:
    return prepare(taskset.repository)


def test_the_right_edit_is_the_gold_patch(taskset: TaskSet, deepdiff: PreparedRepository) -> None:
    box = bubblewrap.choose(SCRIPTED)
    for task in taskset.tasks:
        gold = _changed(gold_patch(deepdiff, task))
        with open_task(deepdiff, task) as place:
            done = box.run(edits.command(edits.changes(task.patch)), place)
            assert done.returncode == 0, (task.instance_id, done.output)
            assert _changed(workspace.diff(place)) == gold, task.instance_id


@pytest.mark.parametrize(("right", "outcome"), [(True, "resolved"), (False, "unresolved")])
def test_draws_and_grades_agree(
    taskset: TaskSet, deepdiff: PreparedRepository, monkeypatch: pytest.MonkeyPatch, right: bool, outcome: str
) -> None:
    some = taskset.tasks[::8]
    with start(taskset, seed=1, parameters=always(right)) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        made = [_attempt(task, n) for n, task in enumerate(some)]
    found = Counter(x.outcome for x in made)
    # A slip may by chance hit a line that no test looks at.
    assert found[outcome] >= len(some) - (0 if right else 1), [(x.task_id, x.reason) for x in made]


def _attempt(task: Task, ordinal: int) -> Attempt:
    return attempt(SCRIPTED, task, Context(text=""), ordinal, "panel")


def _changed(patch: str) -> list[str]:
    """A patch without the line numbers and ids, which depend on what else the tree holds."""
    return [line for line in patch.splitlines() if line[:1] in ("+", "-")]
