"""`valve panel run`: the panel's rollouts as a stream of JSON lines; what the gate shells out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from valve_plugin.cli import output, simulations
from valve_plugin.cli.given import overrides
from valve_plugin.cli.options import BankDir, Json, bank_dir, examples, stdin
from valve_plugin.cli.session import (
    KeepHistory,
    Set,
    Simulate,
    Tasks,
    UnsafeLocal,
    Workers,
    hooked,
    running,
    simulation,
    tasks_of,
)
from valve_plugin.errors import ConfigError

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore
    from valve_plugin.config import Settings
    from valve_plugin.records import Proposal

_MAX_BYTES = 10_000_000


def register(app: typer.Typer) -> None:
    """Add `valve panel run`."""
    group = typer.Typer(
        help="Run the fixed panel by hand.",
        epilog=examples("valve panel run --current", "valve panel run --proposal proposal.json", "valve panel items"),
        no_args_is_help=True,
    )
    group.command(
        "run",
        epilog=examples(
            "valve panel run --current                    # what the accepted bank scores",
            "valve panel run --proposal proposal.json     # what it would score with a proposal",
            "valve panel run --current | jq -r .outcome.outcome | sort | uniq -c",
        ),
    )(run)
    group.command(
        "items",
        epilog=examples(
            "valve panel items                            # what the panel loses without each item",
            "valve panel items --show                     # what is on record; runs nothing",
            "valve panel items --categories sorted.toml   # and by category, sorted as for `valve eval --items`",
        ),
    )(items)
    app.add_typer(group, name="panel")


def run(
    current: Annotated[bool, typer.Option("--current", help="Measure the bank as it is.")] = False,
    proposal: Annotated[
        str, typer.Option("--proposal", metavar="FILE", help="Measure the bank with this proposal; - reads stdin.")
    ] = "",
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Measure the proposal on the fresh rollouts that confirm an accept.")
    ] = False,
    tasks: Tasks = "",
    bank: BankDir = "",
    workers: Workers = None,
    set_: Set = [],  # noqa: B006 (Typer copies it)
    simulate: Simulate = False,
    unsafe_local: UnsafeLocal = False,
    keep_history: KeepHistory = False,
    json: Annotated[bool, typer.Option("--json", help="As everywhere; the lines are JSON with or without it.")] = False,
    settings_file: Annotated[
        Path | None, typer.Option("--settings", hidden=True, help="Complete settings as JSON; nothing else is read.")
    ] = None,
    until_decided: Annotated[
        bool, typer.Option("--until-decided", hidden=True, help="Start nothing after what decides about the proposal.")
    ] = False,
    parent: Annotated[int, typer.Option("--parent", hidden=True, help="Stop when this process is gone.")] = 0,
    fork_server: Annotated[
        str, typer.Option("--fork-server", hidden=True, help="Where the parent's fork server listens.")
    ] = "",
) -> None:
    """Run the panel, one JSON line per rollout.

    Each line holds the outcome as the ledger would keep it, and telemetry, and is printed once the rollout is
    durable: what ran before is not run again. Nothing is written to the ledger; the gate does that.
    """
    from contextlib import ExitStack

    from valve_plugin.bank.store import BankStore
    from valve_plugin.gate.panel import stop_with
    from valve_plugin.rollouts import forks, mini_config
    from valve_plugin.tasks.load import load

    if current == bool(proposal):
        raise ConfigError("say what to measure: --current, or --proposal FILE")
    if confirm and current:
        raise ConfigError("--confirm goes with --proposal: the current bank has nothing to repeat")
    stop_with(parent)
    forks.borrow(fork_server)
    store = BankStore.open(bank_dir(simulations.bank_for(bank, simulate, tasks)))
    settings = _settings(
        store,
        settings_file,
        overrides(set_, workers=workers, unsafe_local=unsafe_local or None, keep_history=keep_history or None),
    )
    if settings_file is None:  # else a gate asks, which has made sure of it
        simulations.require_apart(store, store.dir, settings, simulate=simulate)
    mini_config.require(settings.mini_config)
    taskset = load(tasks_of(store, tasks, settings))
    with ExitStack() as stack:
        if simulate:
            settings = stack.enter_context(simulation(taskset, settings))
        proposed = _read(proposal) if proposal else None
        _print(store, settings, taskset.tasks, proposed, confirm=confirm, until_decided=until_decided)


def items(
    show: Annotated[bool, typer.Option("--show", help="Print what is on record and run nothing.")] = False,
    categories: Annotated[
        Path | None, typer.Option("--categories", metavar="FILE", help="Your sorting of the items, as TOML.")
    ] = None,
    tasks: Tasks = "",
    bank: BankDir = "",
    workers: Workers = None,
    set_: Set = [],  # noqa: B006 (Typer copies it)
    simulate: Simulate = False,
    unsafe_local: UnsafeLocal = False,
    json: Json = False,
) -> None:
    """Measure the panel without each item of the bank: leave-one-out.

    Only tasks whose context changes without the item are run. A report: no item goes by it, it is no gate query, and
    it is in the ledger, so that a gate about retiring the item runs fresh rollouts. Interrupted, it goes on.
    """
    from valve_plugin.cli.eval_items import report_items
    from valve_plugin.cli.progress import Progress
    from valve_plugin.gate.left_out import leave_out
    from valve_plugin.report.items import read_categories

    store = simulations.opened(bank, simulate, tasks)
    sorting = read_categories(categories, store.bank.items) if categories else {}
    if not show:
        given = overrides(set_, workers=workers, unsafe_local=unsafe_local or None)
        found = tasks_of(store, tasks, store.settings(given))
        with (
            Progress() as progress,
            running(found, str(store.dir), given, simulate=simulate, learns="", observer=progress) as run_,
        ):
            tell = run_.manager.hook.valve_event
            leave_out(
                run_.manager, run_.store, run_.settings, run_.taskset, lambda name, data: tell(name=name, data=data)
            )
            store = run_.store
    report_items(store, sorting, json=json, simulate=simulate, panel=True)


def _print(
    store: BankStore,
    settings: Settings,
    tasks: Any,
    proposal: Proposal | None,
    *,
    confirm: bool,
    until_decided: bool,
) -> None:
    from valve_plugin import plugins
    from valve_plugin.codec import canonical
    from valve_plugin.gate import panel, plan

    fixed = plan.fixed_panel(store)
    settings = plan.panel_settings(settings, fixed)
    members = plan.panel_tasks(fixed, tasks)
    hook = plugins.load(settings.plugins).hook
    planned = (
        plan.baseline_plan(settings, store, members, hook.valve_retrieve)
        if proposal is None
        else plan.gate_plan(settings, store, members, proposal, hook.valve_retrieve)
    )
    if confirm:
        planned = plan.continued(planned, settings.rollouts)
    stage = plan.staging(store, planned) if until_decided and proposal else None
    for line in panel.run(hook.valve_attempt, store.local, settings, planned, stage):
        sys.stdout.write(canonical(line).decode() + "\n")
        sys.stdout.flush()
    if sys.stdout.isatty():
        output.note(
            f"{output.plural(len(planned.cells), 'rollout')}, {output.plural(len(planned.reused), 'outcome')} kept"
        )


def _settings(store: BankStore, file: Path | None, given: dict[str, Any]) -> Settings:
    from valve_plugin.codec import decode_once
    from valve_plugin.config import resolve

    if file is None:
        return hooked(store.settings(given))
    return resolve(decode_once(_bytes(file), dict[str, Any], where=str(file)), where=str(file))


def _read(proposal: str) -> Proposal:
    from valve_plugin.codec import decode_once
    from valve_plugin.records import Proposal

    raw = stdin(_MAX_BYTES, "the proposal") if proposal == "-" else _bytes(Path(proposal))
    found = decode_once(raw, Proposal, where=proposal)
    if found.empty:
        raise ConfigError(f"{proposal}: proposes no item, so there is nothing to measure")
    return found


def _bytes(path: Path) -> bytes:
    from valve_plugin.reading import regular

    try:
        return regular(path, _MAX_BYTES)
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror or e}") from e
