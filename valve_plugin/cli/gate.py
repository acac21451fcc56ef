"""`valve gate`: judge what waits."""

from __future__ import annotations

import typer

from valve_plugin.cli import budget, output, simulations
from valve_plugin.cli.budget import BudgetUsd, MaxHours, MaxRollouts
from valve_plugin.cli.evolve import facts, show
from valve_plugin.cli.given import overrides
from valve_plugin.cli.options import BankDir, Json, examples
from valve_plugin.cli.session import (
    KeepHistory,
    NewEpoch,
    NoEarlyStop,
    Set,
    Simulate,
    Tasks,
    UnsafeLocal,
    Workers,
    running,
    tasks_of,
)


def register(app: typer.Typer) -> None:
    """Add `valve gate`."""
    app.command(
        "gate",
        epilog=examples(
            "valve gate                      # what mini's runs queued, and a verdict that was left open",
            "valve gate --max-rollouts 400   # stops there; the same command goes on",
            "valve gate --tasks tasks/       # the first time: the task set to choose a panel from",
        ),
    )(gate)


def gate(
    tasks: Tasks = "",
    bank: BankDir = "",
    workers: Workers = None,
    set_: Set = [],  # noqa: B006 (Typer copies it)
    simulate: Simulate = False,
    unsafe_local: UnsafeLocal = False,
    keep_history: KeepHistory = False,
    new_epoch: NewEpoch = False,
    no_early_stop: NoEarlyStop = False,
    budget_usd: BudgetUsd = None,
    max_rollouts: MaxRollouts = None,
    max_hours: MaxHours = None,
    json: Json = False,
) -> None:
    """Judge what waits, first in, first out.

    Each group of mixed attempts that `mini --plugin valve` queued is turned into a proposal, and the proposal
    enters the bank only if the panel gains by the margin. A proposal whose verdict was left open comes first.
    """
    from valve_plugin.cli.progress import Progress
    from valve_plugin.evolve.queue import drain
    from valve_plugin.evolve.steps import Steps, waiting
    from valve_plugin.tasks import folder

    store = simulations.opened(bank, simulate, tasks)
    judged, progress = False, Progress()
    given = overrides(
        set_, workers=workers, unsafe_local=unsafe_local or None, keep_history=keep_history or None,
        early_stop=False if no_early_stop else None,
        budget_usd=budget_usd, max_rollouts=max_rollouts, max_hours=max_hours,
    )  # fmt: skip
    settings = store.settings(given)  # what is refused is told also where nothing waits
    if tasks:
        folder.find(tasks)
    simulations.require_apart(store, store.dir, settings, simulate=simulate)
    if store.local.queue() or (store.panel() and waiting(store)):
        found = tasks_of(store, tasks, settings)
        with (
            progress,
            running(
                found, str(store.dir), given, simulate=simulate, new_epoch=new_epoch, learns="queue", observer=progress
            ) as run,
        ):
            steps = Steps(run.manager, run.store, run.settings)
            budget.preflight(run, steps, queued=True)
            progress.begin(run, "SIMULATION" if simulate else "")
            before = run.store.head
            with budget.stopping(progress):
                drain(steps)
            judged = run.store.head != before
            store = run.store
    if json:
        spent = budget.facts(progress, store)
        output.emit_json({**facts(store), "judged": judged, "simulation": simulate, **spent})
    elif judged or progress.stopped:
        show(store, simulate=simulate)
        budget.tell(progress)
    else:
        output.say("nothing waits")
