"""Evaluate: frozen banks on the sealed holdout. What is read there is recorded, and decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import as_completed
from functools import partial
from typing import NamedTuple

import pluggy
from msgspec.structs import replace

from valve_plugin.bank import embedding, moves
from valve_plugin.bank.entries import Evaluated
from valve_plugin.bank.evaluated import readings, terms
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.errors import PluginError, TaskError
from valve_plugin.gate.guard import Guard, Observe
from valve_plugin.gate.plan import Cell
from valve_plugin.gate.rollout import durable, outcome, telemetry
from valve_plugin.records import Attempt, Bank, Kind, PanelTask
from valve_plugin.rollouts.attempt import solver_of
from valve_plugin.rollouts.executors import LocalExecutor
from valve_plugin.tasks.load import TaskSet

Key = tuple[str, str, int]


class Frozen(NamedTuple):
    """A bank to evaluate: a version, or one item of it alone."""

    version: int
    only: tuple[Kind, str] | None = None


class Evaluation:
    """The holdout of one bank, and how to measure frozen banks on it."""

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
            settings = replace(settings, embedding=embedding.pinned(panel.embedding, settings.embedding))
        self.settings = settings
        self.rollouts = rollouts
        self.pinned = holdout_of(store, taskset)
        self.tasks = [taskset.by_id[task.instance_id] for task in self.pinned]
        self.solver = solver_of(settings)

    def run(self, wanted: Iterable[Frozen], observe: Observe = lambda name, data: None) -> list[Evaluated]:
        """Return the evaluations of these banks; what is on record already, or in the journal, is not run again.

        Each is appended to the ledger when it is finished, whether or not rollouts errored, in the order wanted.

        Args:
            wanted: what to evaluate.
            observe: told about eval_started, eval_rollout and evaluated. None of them says how a rollout ended
                before its evaluation is on record.
        """
        plans = [(frozen, self._cells(self._bank(frozen))) for frozen in wanted]
        todo = {key for frozen, cells in plans if not self._recorded(frozen) for key in map(_key, cells)}
        observe("eval_started", {"banks": len(plans), "rollouts": len(todo), "tasks": len(self.tasks)})
        done: dict[Key, Attempt] = {}
        return [self._recorded(f) or self._measure(f, cells, done, len(todo), observe) for f, cells in plans]

    def _measure(
        self, frozen: Frozen, cells: Sequence[Cell], done: dict[Key, Attempt], total: int, observe: Observe
    ) -> Evaluated:
        fresh = [cell for cell in cells if _key(cell) not in done]
        for cell, attempt in self._attempts(fresh, observe):
            done[_key(cell)] = attempt
            observe("eval_rollout", {"done": len(done), "of": total, "version": frozen.version})
        entry = Evaluated(
            holdout=self.pinned,
            rollouts=self.rollouts,
            version=frozen.version,
            only=frozen.only,
            bank_hash=self._bank(frozen).hash,
            solver=self.solver,
            outcomes=tuple(outcome(cell, done[_key(cell)]) for cell in cells),
        )
        self.store.append(entry)
        for cell in fresh:
            observe("attempt_finished", telemetry(done[_key(cell)]))
        observe("evaluated", {"version": frozen.version, "only": frozen.only})
        return entry

    def _attempts(self, cells: Sequence[Cell], observe: Observe) -> Iterator[tuple[Cell, Attempt]]:
        # A reading is on record also where rollouts are missing, so a host that fails does not end it.
        guard = Guard(self.hook.valve_attempt, lost_in_a_row=len(cells) + 1, observe=observe)
        run = partial(durable, guard, self.store.local, self.settings)
        with LocalExecutor(self.settings.workers) as executor:
            jobs = {executor.submit(partial(run, cell, "eval")): cell for cell in cells}
            for job in as_completed(jobs):
                yield jobs[job], job.result()

    def _bank(self, frozen: Frozen) -> Bank:
        bank = self.store.at(frozen.version)
        return bank if frozen.only is None else moves.only(bank, frozen.only)

    def _cells(self, bank: Bank) -> list[Cell]:
        """The rollouts of a bank: ordinals from 0 under each block, so equal blocks share theirs."""
        cells = []
        for task in self.tasks:
            context = self.hook.valve_retrieve(
                settings=self.settings, bank=bank, task_id=task.instance_id, issue=task.problem_statement
            )
            if context is None:
                raise PluginError("no plugin answered valve_retrieve; is `valve` among the plugins of this run?")
            cells += [Cell(task, context, n) for n in range(self.rollouts)]
        return cells

    def _recorded(self, frozen: Frozen) -> Evaluated | None:
        """The newest complete evaluation of this bank, if there is one made like this."""
        alike = (self.pinned, self.rollouts, self.solver)
        found = [r.entry for r in readings(self.store.entries()) if terms(r.entry) == alike and r.entry.complete]
        return next((e for e in reversed(found) if (e.version, e.only) == (frozen.version, frozen.only)), None)


def holdout_of(store: BankStore, taskset: TaskSet) -> tuple[PanelTask, ...]:
    """Return the holdout's tasks, in sampled order.

    Raises:
        TaskError: the task set has no split, or a holdout task judges or taught this bank.
    """
    if taskset.split is None:
        raise TaskError(
            "this task set has no holdout: run `valve split TASKS` before `valve evolve`; what a bank has been "
            "learning from, or is judged by, evaluates nothing"
        )
    holdout = taskset.split.holdout.tasks
    panel = store.panel()
    judges = {t.instance_id for t in panel.tasks} | {t.content_hash for t in panel.tasks} if panel else set()
    taught = store.sources()
    for task in holdout:
        if not judges.isdisjoint((task.instance_id, task.content_hash)) or task.instance_id in taught:
            what = "taught this bank something" if task.instance_id in taught else "is a task of its panel"
            raise TaskError(
                f"holdout task {task.instance_id} {what}, so the holdout is not sealed; start another bank after "
                "`valve split`, with --bank DIR"
            )
    return holdout


def _key(cell: Cell) -> Key:
    return cell.task.instance_id, cell.context.hash, cell.ordinal
