"""Leave-one-out on the panel: what the current bank's panel rollouts do without each of its items. Report only."""

from __future__ import annotations

import pluggy

from valve_plugin.bank.entries import EpochOpened, LeftOut
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.errors import BankError, InfrastructureError
from valve_plugin.gate import panel
from valve_plugin.gate.guard import Observe
from valve_plugin.gate.plan import Plan, fixed_panel, left_out_plan, panel_settings, panel_tasks
from valve_plugin.gate.solver import require_solver
from valve_plugin.records import Item, PanelOutcome
from valve_plugin.rollouts.attempt import solver_of
from valve_plugin.tasks.load import TaskSet
from valve_plugin.words import plural


def leave_out(
    manager: pluggy.PluginManager,
    store: BankStore,
    settings: Settings,
    taskset: TaskSet,
    observe: Observe = lambda name, data: None,
) -> None:
    """Measure the panel without each item of the current bank, one line of the ledger per item.

    Only tasks whose context changes without the item are run, each `rollouts` times, on ordinals nothing used before.
    Interrupted and started again, it goes on where it stopped.

    Args:
        manager: the run's plugins.
        store: the bank; its panel was measured.
        settings: of the run; the panel's own win.
        taskset: the one its panel was chosen from.
        observe: told about left_out_started, rollout_finished, left_out.

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
        about = {"kind": item.kind, "name": item.name, "number": number, "of": len(todo)}
        observe("left_out_started", {**about, "rollouts": len(plan.cells)})
        outcomes = _complete(manager, store, settings, plan, observe)
        store.append(
            LeftOut(epoch=epoch.epoch, without=item.key, bank_hash=store.bank.hash, outcomes=outcomes, solver=solver)
        )
        observe("left_out", {**about, "tasks": len(plan.order), "rollouts": len(outcomes)})


def _todo(store: BankStore, epoch: EpochOpened, solver: str) -> list[Item]:
    """Items of the current bank that this epoch has not measured it without, by this solver."""
    readings = (e for e in store.entries() if isinstance(e, LeftOut) and e.solver == solver)
    known = {e.without for e in readings if (e.epoch, e.bank_hash) == (epoch.epoch, store.bank.hash)}
    return [item for item in store.bank.items if item.key not in known]


def _complete(
    manager: pluggy.PluginManager, store: BankStore, settings: Settings, plan: Plan, observe: Observe
) -> tuple[PanelOutcome, ...]:
    """Run all rollouts of the plan; in panel order."""
    found: dict[tuple[str, int], PanelOutcome] = {}
    for line in panel.run(manager.hook.valve_attempt, store.local, settings, plan):
        if isinstance(line, panel.Told):
            observe(line.event, line.data)
            continue
        found[line.outcome.task_id, line.outcome.ordinal] = line.outcome
        observe("rollout_finished", {**line.telemetry, "done": len(found), "of": len(plan.cells)})
    lost = sum(o.outcome == "errored" for o in found.values())
    if lost:
        raise InfrastructureError(
            f"{lost} of {plural(len(plan.cells), 'rollout')} errored; the next start retries only those"
        )
    return tuple(found[cell.task.instance_id, cell.ordinal] for cell in plan.cells)
