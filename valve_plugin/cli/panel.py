"""`valve panel`: the panel's rollouts as a stream of JSON lines, which the gate runs too, and leave-one-out."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from valve_plugin import plugins
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import runs
from valve_plugin.cli.options import BankDir, Commands, Json, flag, option, read_input
from valve_plugin.codec import decode_once
from valve_plugin.config import Settings, resolve
from valve_plugin.errors import ConfigError
from valve_plugin.plugins import send
from valve_plugin.records import Proposal

_MAX_BYTES = 10_000_000

commands = Commands(
    "panel",
    "valve panel run --current",
    "valve panel run --proposal proposal.json",
    "valve panel items",
    help="Run the fixed panel by hand.",
    no_args_is_help=True,
)


@commands.add(
    "run",
    "valve panel run --current                    # what the accepted bank scores",
    "valve panel run --proposal proposal.json     # what it would score with a proposal",
)
def run(
    current: Annotated[bool, flag("--current", "Measure the bank as it is.")] = False,
    proposal: Annotated[str, option("--proposal", "FILE", "Measure the bank with this proposal; - reads stdin.")] = "",
    confirm: Annotated[bool, flag("--confirm", "Measure the fresh rollouts that would confirm an accept.")] = False,
    tasks: runs.Tasks = "",
    bank: BankDir = "",
    solving: runs.Solving = runs.SOLVING,
    json: Annotated[bool, flag("--json", "As everywhere; the lines are JSON with or without it.")] = False,
    settings_file: Annotated[Path | None, option("--settings", "FILE", "Complete settings.", hidden=True)] = None,
    until_decided: Annotated[bool, flag("--until-decided", "Start nothing after the verdict.", hidden=True)] = False,
    parent: Annotated[int, option("--parent", "PID", "Stop when this process is gone.", hidden=True)] = 0,
    fork_server: Annotated[str, option("--fork-server", "PATH", "Of the parent's fork server.", hidden=True)] = "",
) -> None:
    """Run the panel, one JSON line per rollout.

    Each line has the outcome as the ledger would keep it, and telemetry. It is printed after the rollout was saved.
    Saved rollouts are not run again. Nothing is written to the ledger; the gate does that.
    """
    from valve_plugin.agents import process
    from valve_plugin.gate import panel_run, plan
    from valve_plugin.gate.panel_run import stop_with
    from valve_plugin.gate.plan import fixed_panel, require_kept
    from valve_plugin.tasks.task_set import load

    if current == bool(proposal):
        raise ConfigError("say what to measure: --current, or --proposal FILE")
    if confirm and current:
        raise ConfigError("--confirm goes with --proposal: the current bank has nothing to repeat")
    stop_with(parent)
    process.use_server(fork_server)
    store = runs.open_store(bank, solving.simulate, tasks)
    given = solving.settings("measure")
    settings = _settings(store, settings_file, given)
    if settings_file is None:  # else a gate asks, which has made sure of it
        runs.require_apart(store, settings, simulate=solving.simulate)
    process.require_agent(settings)
    require_kept(given, fixed_panel(store), store.epoch(), store.dir)
    taskset = load(runs.tasks_of(store, tasks, settings))
    with ExitStack() as stack:
        if solving.simulate:
            settings = stack.enter_context(runs.serve_scripted(taskset, settings))
        proposed = None
        if proposal:
            proposed = decode_once(read_input(proposal, _MAX_BYTES), Proposal, where=proposal)
            if proposed.empty:
                raise ConfigError(f"{proposal}: proposes no note, so there is nothing to measure")
        fixed = plan.fixed_panel(store)
        settings = plan.panel_settings(settings, fixed)
        members = plan.panel_tasks(fixed, taskset.tasks)
        hook = plugins.load(settings.plugins).hook
        planned = plan.panel_plan(settings, store, members, proposed, hook.valve_retrieve, confirm=confirm)
        stage = plan.staging(store, planned) if until_decided and proposed else None
        printing = threading.Lock()

        def emit(line: panel_run.Line) -> None:
            with printing:
                sys.stdout.write(panel_run.write_line(line).decode() + "\n")
                sys.stdout.flush()

        panel_run.run_panel(hook.valve_attempt, store.local, settings, planned, emit, stage)


@commands.add("items", "valve panel items                            # what the panel loses without each note")
def items(tasks: runs.Tasks = "", bank: BankDir = "", solving: runs.Solving = runs.SOLVING, json: Json = False) -> None:
    """Measure the panel without each note of the bank: leave-one-out.

    Only tasks whose context changes without the note are run. This is a report: it removes no note and is no gate
    query. It is kept in the ledger, so that a gate about retiring the note runs fresh rollouts. Interrupted and started
    again, it continues.
    """
    from valve_plugin.cli.eval import report_items
    from valve_plugin.gate.panel_run import leave_out

    store = runs.open_store(bank, solving.simulate, tasks)
    given = solving.settings("measure")
    with runs.reopen(store, tasks, given, simulate=solving.simulate, purpose="measure") as run_:
        leave_out(run_.manager, run_.store, run_.settings, run_.taskset, partial(send, run_.manager.hook))
    report_items(run_.store, {}, json=json, simulate=solving.simulate, panel=True)


def _settings(store: BankStore, file: Path | None, given: dict[str, Any]) -> Settings:
    from valve_plugin.lab.conditions import with_hooks

    if file is None:
        return with_hooks(store.settings(given))
    return resolve(decode_once(read_input(str(file), _MAX_BYTES), dict[str, Any], where=str(file)), where=str(file))
