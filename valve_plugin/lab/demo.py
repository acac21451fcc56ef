"""The demo: two banks learn from the same real bugs, one through the gate and one without it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from valve_plugin.errors import TaskError
from valve_plugin.evidence.summary import ProposalResult, proposal_results
from valve_plugin.evolve.open import OpenRun
from valve_plugin.records import Attempt

EXAMPLE = "funcy"
FULL = {"panel_size": 8, "rollouts": 3, "pairing": "paper", "screen": 0}
FAST = {"panel_size": 4, "rollouts": 2, "pairing": "paper", "screen": 0}
"""So few panel tasks seldom retrieve a note, so each note is judged on all of them, as in the paper. A screen would
leave the gate of so short a run little to show."""
FULL_TASKS, FAST_TASKS = 16, 8


def example(name: str) -> Path:
    """Return the directory with the tasks of an example, such as "funcy".

    Raises:
        TaskError: neither the installed package nor the checkout has it.
    """
    here = Path(__file__).resolve().parent
    places = (here / "simulation" / name, here.parents[1] / "examples" / name)
    for place in places:
        if (place / "tasks.jsonl").is_file():
            return place
    raise TaskError(f"the {name} tasks are in neither {places[0]} nor {places[1]}; install the package again")


class TaskResult(NamedTuple):
    """What one run did at one task of the stream."""

    passed: int
    attempts: int
    proposal: ProposalResult | None
    """None: all attempts had the same outcome, so nothing was proposed."""


class DemoResult(NamedTuple):
    """What one run of the demo did."""

    run: OpenRun
    tasks: dict[str, TaskResult]
    """By task id, in the order of the stream; tasks that were not attempted are missing."""

    @property
    def passed(self) -> list[int]:
        """Attempts that passed, for each task."""
        return [task.passed for task in self.tasks.values()]

    @property
    def attempts(self) -> list[int]:
        """Attempts at each task."""
        return [task.attempts for task in self.tasks.values()]


def read_result(run: OpenRun) -> DemoResult:
    """Return what a run did, from its ledger and its attempts."""
    proposals = {result.task_id: result for result in proposal_results(run.store.entries())}
    attempts: dict[str, list[Attempt]] = {}
    for attempt in run.store.local.attempts():
        if attempt.source == "evolve":
            attempts.setdefault(attempt.task_id, []).append(attempt)
    tasks = {
        task: TaskResult(sum(a.outcome == "resolved" for a in attempts[task]), len(attempts[task]), proposals.get(task))
        for task in (t.instance_id for t in run.stream)
        if task in attempts
    }
    return DemoResult(run, tasks)
