"""The demo: two banks learn from the same real bugs, one through the gate and one without it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from valve_plugin.bank.entries import Evaluated
from valve_plugin.codec import pretty
from valve_plugin.errors import TaskError
from valve_plugin.evidence.summary import ProposalResult, proposal_results, version_scores
from valve_plugin.evolve.evaluate import Evaluation, Frozen
from valve_plugin.evolve.loop import evolve
from valve_plugin.evolve.open import OpenRun
from valve_plugin.evolve.steps import Steps, Ungated
from valve_plugin.files import write_atomic
from valve_plugin.lab.run import copy_tasks
from valve_plugin.lab.simulation import parameters
from valve_plugin.plugins import send
from valve_plugin.records import Proposal
from valve_plugin.report.build import KeptAttempts, stream
from valve_plugin.tasks import split
from valve_plugin.tasks.task_set import load

EXAMPLE = "funcy"


class Size(NamedTuple):
    """How much of the example a demo uses."""

    tasks: int
    """Tasks of the stream."""
    panel: int
    rollouts: int
    """Of each panel task."""
    holdout: int
    readings: int
    """Rollouts of each holdout task."""
    seed: int
    """Of the scripted model. These show what most do; docs/explanation/simulation.md says how many."""

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of its runs.

        A bank of few notes on few tasks: with the paper's ranking every note reaches every task, so that the panel
        judges each of them. No screen, which would end half of the useful proposals of so short a run.
        """
        paper = {"retrieval": "paper", "pairing": "paper", "screen": 0}
        return {"panel_size": self.panel, "rollouts": self.rollouts, **paper}


FULL = Size(tasks=16, panel=8, rollouts=3, holdout=8, readings=4, seed=9)
FAST = Size(tasks=12, panel=8, rollouts=2, holdout=8, readings=2, seed=3)
PROPOSALS = parameters.BAITED
SHARED = ("journal", "trajectories")
"""Parts of `local/` that both banks have in common: what both ask for runs once, such as the empty bank's holdout."""


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


def task_folder(folder: Path, size: Size) -> Path:
    """Copy the example's tasks, and draw panel and holdout of that size."""
    target = folder / EXAMPLE
    copy_tasks(example(EXAMPLE), target)
    found = load(target)
    drawn = split.draw(found.repository.name, found.tasks, holdout=size.holdout, panel=size.panel)
    write_atomic(target / split.FILE_NAME, pretty(drawn))
    return target


def learn(run: OpenRun, size: Size, *, gated: bool) -> None:
    """Learn from the stream; then read the holdout, with the bank as it was in the beginning and as it is."""
    evolve((Steps if gated else Ungated)(run.manager, run.store, run.settings), run.stream)
    evaluation = Evaluation(run.manager, run.store, run.settings, run.taskset, size.readings)
    evaluation.run([Frozen(n) for n in dict.fromkeys((0, run.store.bank.version))], partial(send, run.manager.hook))


class TaskResult(NamedTuple):
    """What one run did at one task of the stream."""

    passed: int
    attempts: int
    proposal: ProposalResult | None
    """None: all attempts had the same outcome, so nothing was proposed."""


class Passes(NamedTuple):
    """Passed rollouts of a measurement."""

    passed: int
    of: int

    def __str__(self) -> str:
        return f"{self.passed} of {self.of}"

    @property
    def share(self) -> float:
        """Share that passed."""
        return self.passed / self.of if self.of else 0.0


Baits = Literal["kept_out", "taken"]


class DemoResult(NamedTuple):
    """What one run of the demo did."""

    run: OpenRun
    tasks: dict[str, TaskResult]
    """By task id, in the order of the stream; tasks that were not attempted are missing."""
    proposals: int
    """Proposals with something new in them."""
    baits: Mapping[Baits, int]
    """Of those, the ones with a harmful note in them."""
    panel: tuple[Passes, Passes] | None
    """Of the first bank and of the last one that the gate accepted; None: no gate measured it."""
    holdout: tuple[Passes, Passes]
    """Without notes, and with the bank."""

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
    entries, attempts = list(run.store.entries()), run.store.local.attempts()
    results = [row for row in proposal_results(entries) if row.outcome != "replaced"]
    proposals = {row.task_id: row for row in results}
    points, _ = stream(entries, attempts, KeptAttempts(attempts))
    tasks = {p.task_id: TaskResult(p.passed, len(p.rollouts), proposals.get(p.task_id)) for p in points}
    baited = [row for row in results if is_baited(row.proposal)]
    taken = sum(row.outcome in ("accept", "taken") for row in baited)
    scores = [Passes(score.passes, score.rollouts) for score in version_scores(entries)]
    read = {e.version: Passes(sum(o.outcome == "resolved" for o in e.outcomes), len(e.outcomes))
            for e in entries if isinstance(e, Evaluated)}  # fmt: skip
    return DemoResult(
        run=run,
        tasks=tasks,
        proposals=sum(bool(row.proposal.items) for row in results),
        baits={"kept_out": len(baited) - taken, "taken": taken},
        panel=(scores[0], scores[-1]) if scores else None,
        holdout=(read[0], read[max(read)]),
    )


def is_baited(proposal: Proposal) -> bool:
    """Whether a proposal of the scripted model holds a harmful note."""
    harmful = [lesson for lesson in parameters.lessons() if lesson.quality == "harmful"]
    return any(lesson.count_in(item.name) for lesson in harmful for item in proposal.items)
