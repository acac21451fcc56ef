"""Leave-one-out on the panel: measure the current bank without each of its items. For reports only."""

from __future__ import annotations

from typing import Any

import pluggy

from valve_plugin.bank.entries import EpochOpened, LeftOut
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.errors import BankError, InfrastructureError
from valve_plugin.events import Event, LeaveOutMeasured, LeaveOutStarted, Observe, ignore
from valve_plugin.gate.panel import Line, PanelLine, rollout_finished, run_panel
from valve_plugin.gate.plan import Plan, fixed_panel, left_out_plan, panel_settings, panel_tasks, require_solver
from valve_plugin.records import Item, PanelOutcome
from valve_plugin.rollouts.attempt import solver_of
from valve_plugin.tasks.task_set import TaskSet
from valve_plugin.words import plural


def leave_out(
    manager: pluggy.PluginManager,
    store: BankStore,
    settings: Settings,
    taskset: TaskSet,
    observe: Observe = ignore,
) -> None:
    """Measure the panel without each item of the current bank, one line of the ledger per item.

    Only tasks whose context changes without the item are run, each `rollouts` times, on unused ordinals. After an
    interruption, the next start continues.

    Args:
        manager: the run's plugins.
        store: the bank; its panel was measured.
        settings: of the run; the panel's own win.
        taskset: the one its panel was chosen from.
        observe: gets LeaveOutStarted, RolloutFinished and LeaveOutMeasured.

    Raises:
        BankError: no panel is fixed, or the bank was not measured on it in the open epoch, or by another solver.
        RecordError: a verdict is undecided.
        InfrastructureError: rollouts errored; run again to retry those.

    Source: sec:bank-growth measures items alone on the holdout; this is the other side, with all others in place.
    """
    fixed = fixed_panel(store)
    settings = panel_settings(settings, fixed)
    members = panel_tasks(fixed, taskset.tasks)
    epoch = store.epoch()
    if epoch is None or store.current_outcomes() is None:
        raise BankError(f"{store.dir}: the bank was not measured on the panel in this epoch; `valve evolve` does that")
    require_solver(store, settings)
    solver = solver_of(settings)
    todo = _todo(store, epoch, solver)
    for number, item in enumerate(todo, 1):
        plan = left_out_plan(settings, store, members, item.key, manager.hook.valve_retrieve)
        about: dict[str, Any] = {"kind": item.kind, "item": item.name, "number": number, "of": len(todo)}
        observe(LeaveOutStarted(**about, rollouts=len(plan.cells)))
        outcomes = _complete(manager, store, settings, plan, observe)
        store.append(
            LeftOut(epoch=epoch.epoch, without=item.key, bank_hash=store.bank.hash, outcomes=outcomes, solver=solver)
        )
        observe(LeaveOutMeasured(**about, tasks=len(plan.order), rollouts=len(outcomes)))


def _todo(store: BankStore, epoch: EpochOpened, solver: str) -> list[Item]:
    """Return the items whose leave-one-out measurement is missing for this bank, epoch and solver."""
    readings = (e for e in store.entries() if isinstance(e, LeftOut) and e.solver == solver)
    known = {e.without for e in readings if (e.epoch, e.bank_hash) == (epoch.epoch, store.bank.hash)}
    return [item for item in store.bank.items if item.key not in known]


def _complete(
    manager: pluggy.PluginManager, store: BankStore, settings: Settings, plan: Plan, observe: Observe
) -> tuple[PanelOutcome, ...]:
    """Run all rollouts of the plan; return the outcomes in panel order."""
    found: dict[tuple[str, int], PanelOutcome] = {}

    def emit(line: Line) -> None:
        if isinstance(line, PanelLine):
            found[line.outcome.task_id, line.outcome.ordinal] = line.outcome
            observe(rollout_finished(line, len(found), len(plan.cells)))
        elif isinstance(line, Event):
            observe(line)

    run_panel(manager.hook.valve_attempt, store.local, settings, plan, emit)
    lost = sum(o.outcome == "errored" for o in found.values())
    if lost:
        raise InfrastructureError(
            f"{lost} of {plural(len(plan.cells), 'rollout')} errored; the next start retries only those"
        )
    return tuple(found[cell.task.instance_id, cell.ordinal] for cell in plan.cells)
