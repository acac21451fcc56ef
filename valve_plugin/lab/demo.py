"""The demo: two banks learn from the same real bugs at the same time, one through the gate and one without it."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from valve_plugin.codec import decode, digest_bytes
from valve_plugin.errors import TaskError
from valve_plugin.evidence.summary import ProposalResult, proposal_results
from valve_plugin.evolve.loop import evolve
from valve_plugin.evolve.open import OpenRun
from valve_plugin.evolve.steps import Steps, Ungated
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Attempt

EXAMPLE = "funcy"
FULL = {"panel_size": 8, "rollouts": 3, "pairing": "paper"}
FAST = {"panel_size": 4, "rollouts": 2, "pairing": "paper"}
"""So few panel tasks seldom retrieve a note, so each note is judged on all of them, as in the paper."""
FULL_TASKS, FAST_TASKS = 16, 8
SEED = 0


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


class _Stop:
    """A plugin that ends a run at its next event once the other run has failed or was interrupted."""

    def __init__(self) -> None:
        self.requested = threading.Event()

    @hookimpl
    def valve_event(self) -> None:
        """End the run if that was requested."""
        if self.requested.is_set():
            raise CancelledError


def learn(gated: OpenRun, ungated: OpenRun) -> None:
    """Learn with both runs at the same time; when one fails, the other stops as well."""
    stop = _Stop()
    with ThreadPoolExecutor(2) as pool:
        jobs = []
        for run, kind in ((gated, Steps), (ungated, Ungated)):
            run.manager.register(stop)
            jobs.append(pool.submit(evolve, kind(run.manager, run.store, run.settings), run.stream))
        try:
            for job in as_completed(jobs):
                job.result()
        except BaseException:
            stop.requested.set()
            raise


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


def first_block(run: OpenRun) -> tuple[Attempt, str] | None:
    """Return the first attempt that was given items, and the block in its system message; None: there is none."""
    for attempt in run.store.local.attempts():
        if attempt.source == "evolve" and attempt.context_items:
            trajectory = decode(run.store.local.trajectory(attempt), dict[str, Any], where="trajectory")
            lines = str(trajectory["messages"][0]["content"]).split("\n")
            for start in range(len(lines)):
                block = "\n".join(lines[start:])  # the message ends with the block, byte for byte
                if digest_bytes(block.encode("utf-8", "surrogatepass")) == attempt.context_hash:
                    return attempt, block
    return None
