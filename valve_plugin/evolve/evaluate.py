"""Evaluation of frozen banks on the sealed holdout. Results are recorded and informational only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from functools import partial
from typing import NamedTuple

import pluggy

from valve_plugin.bank import moves
from valve_plugin.bank.entries import Evaluated
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.errors import PluginError, TaskError
from valve_plugin.events import (
    AttemptFinished,
    EvaluationAdvanced,
    EvaluationRecorded,
    EvaluationStarted,
    Observe,
    ignore,
)
from valve_plugin.evidence.evaluations import comparison_terms, readings
from valve_plugin.gate.panel_run import panel_outcome, rollout_facts, run_durably
from valve_plugin.gate.plan import PlannedRollout
from valve_plugin.records import Attempt, Bank, Kind, PanelTask
from valve_plugin.retrieval import embedding
from valve_plugin.rollouts.attempt import solver_of
from valve_plugin.rollouts.retry import Guard
from valve_plugin.rollouts.workers import Workers
from valve_plugin.tasks.task_set import TaskSet

Key = tuple[str, str, int]


class Frozen(NamedTuple):
    """A bank to evaluate: a version of the bank, or only one item of it."""

    version: int
    only: tuple[Kind, str] | None = None


class Evaluation:
    """Measures frozen versions of a bank on its holdout."""

    def __init__(
        self, manager: pluggy.PluginManager, store: BankStore, settings: Settings, taskset: TaskSet, rollouts: int
    ) -> None:
        """Use the holdout of the task set.

        Raises:
            TaskError: it has none, or one that is not sealed.
            ConfigError: the panel was measured with an embedding that this machine does not have.
        """
        self.hook = manager.hook
        self.store = store
        panel = store.panel()
        if panel is not None:
            settings = embedding.as_recorded(panel.embedding, settings)
        self.settings = settings
        self.rollouts = rollouts
        self.pinned = holdout_of(store, taskset)
        self.tasks = [taskset.by_id[task.instance_id] for task in self.pinned]
        self.solver = solver_of(settings)

    def run(self, wanted: Iterable[Frozen], observe: Observe = ignore) -> list[Evaluated]:
        """Return the evaluations of these banks; recorded evaluations and journaled rollouts are not run again.

        Each evaluation is appended to the ledger when it is finished, in the given order, even if rollouts errored.

        Args:
            wanted: the banks to evaluate.
            observe: gets the events. They do not show outcomes before the evaluation is recorded.
        """
        plans = [(frozen, self._cells(self._bank(frozen))) for frozen in wanted]
        todo = {key for frozen, cells in plans if not self._recorded(frozen) for key in map(_key, cells)}
        observe(EvaluationStarted(banks=len(plans), rollouts=len(todo), tasks=len(self.tasks)))
        done: dict[Key, Attempt] = {}
        return [self._recorded(f) or self._measure(f, cells, done, len(todo), observe) for f, cells in plans]

    def _measure(
        self, frozen: Frozen, cells: Sequence[PlannedRollout], done: dict[Key, Attempt], total: int, observe: Observe
    ) -> Evaluated:
        fresh = [cell for cell in cells if _key(cell) not in done]
        for cell, attempt in self._attempts(fresh, observe):
            done[_key(cell)] = attempt
            observe(EvaluationAdvanced(done=len(done), of=total))
        entry = Evaluated(
            holdout=self.pinned,
            rollouts=self.rollouts,
            version=frozen.version,
            only=frozen.only,
            bank_hash=self._bank(frozen).hash,
            solver=self.solver,
            outcomes=tuple(panel_outcome(cell, done[_key(cell)]) for cell in cells),
        )
        self.store.append(entry)
        for cell in fresh:
            observe(AttemptFinished(**rollout_facts(done[_key(cell)])))
        observe(EvaluationRecorded(version=frozen.version, only=frozen.only))
        return entry

    def _attempts(self, cells: Sequence[PlannedRollout], observe: Observe) -> Iterator[tuple[PlannedRollout, Attempt]]:
        # A reading is on record also where rollouts are missing, so a host that fails does not end it.
        guard = Guard(self.hook.valve_attempt, lost_in_a_row=len(cells) + 1, observe=observe)
        run = partial(run_durably, guard, self.store.local, self.settings)
        with Workers(self.settings.workers) as executor:
            jobs = {executor.submit(partial(run, cell, "eval")): cell for cell in cells}
            for job in as_completed(jobs):
                yield jobs[job], job.result()

    def _bank(self, frozen: Frozen) -> Bank:
        bank = self.store.at(frozen.version)
        return bank if frozen.only is None else moves.single_item_bank(bank, frozen.only)

    def _cells(self, bank: Bank) -> list[PlannedRollout]:
        """Return the rollouts of a bank. Ordinals start at 0 for each context, so equal contexts share rollouts."""
        cells = []
        for task in self.tasks:
            context = self.hook.valve_retrieve(
                settings=self.settings, bank=bank, task_id=task.instance_id, issue=task.problem_statement
            )
            if context is None:
                raise PluginError("no plugin answered valve_retrieve; is `valve` among the plugins of this run?")
            cells += [PlannedRollout(task, context, n) for n in range(self.rollouts)]
        return cells

    def _recorded(self, frozen: Frozen) -> Evaluated | None:
        """Return the newest complete evaluation of this bank with the same holdout, rollouts and solver, or None."""
        alike = (self.pinned, self.rollouts, self.solver)
        found = [
            r.entry for r in readings(self.store.entries()) if comparison_terms(r.entry) == alike and r.entry.complete
        ]
        return next((e for e in reversed(found) if (e.version, e.only) == (frozen.version, frozen.only)), None)


def holdout_of(store: BankStore, taskset: TaskSet) -> tuple[PanelTask, ...]:
    """Return the holdout's tasks, in sampled order.

    Raises:
        TaskError: the task set has no split, or a holdout task judges or taught this bank.
    """
    if taskset.split is None:
        raise TaskError(
            "this task set has no holdout: run `valve split TASKS` before `valve evolve`; tasks from which a bank "
            "learned, or by which it is judged, cannot evaluate it"
        )
    holdout = taskset.split.holdout.tasks
    panel = store.panel()
    judges = {t.instance_id for t in panel.tasks} | {t.content_hash for t in panel.tasks} if panel else set()
    taught = store.state.sources
    for task in holdout:
        if not judges.isdisjoint((task.instance_id, task.content_hash)) or task.instance_id in taught:
            what = "taught this bank something" if task.instance_id in taught else "is a task of its panel"
            raise TaskError(
                f"holdout task {task.instance_id} {what}, so the holdout is not sealed; start another bank after "
                "`valve split`, with --bank DIR"
            )
    return holdout


def _key(cell: PlannedRollout) -> Key:
    return cell.task.instance_id, cell.context.hash, cell.ordinal
