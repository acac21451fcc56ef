"""`valve bank retire`: ask the gate whether the bank does better without an item."""

from __future__ import annotations

from typing import Annotated

import typer

from valve_plugin.cli import output, simulations
from valve_plugin.cli.given import overrides
from valve_plugin.cli.options import BankDir, Json
from valve_plugin.cli.session import NewEpoch, Set, Simulate, Tasks, UnsafeLocal, Workers, running, tasks_of


def retire(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the item; kind/name where two share it.")],
    tasks: Tasks = "",
    bank: BankDir = "",
    workers: Workers = None,
    set_: Set = [],  # noqa: B006 (Typer copies it)
    simulate: Simulate = False,
    unsafe_local: UnsafeLocal = False,
    new_epoch: NewEpoch = False,
    json: Json = False,
) -> None:
    """Take an item out of the bank, if the panel gains by the margin.

    The candidate is what retrieval gives each panel task without the item; tasks whose context stays the same keep
    their outcomes. It is judged like any other move, counts as a gate query, and is a line of the ledger. Exits with 1
    when the item stays.
    """
    from valve_plugin.cli.bank import find
    from valve_plugin.cli.evolve import facts, show
    from valve_plugin.cli.progress import Progress
    from valve_plugin.evolve.loop import settle
    from valve_plugin.evolve.steps import Steps
    from valve_plugin.records import Proposal

    store = simulations.opened(bank, simulate, tasks)
    find(store.bank, name)  # before anything is asked for or set up
    given = overrides(set_, workers=workers, unsafe_local=unsafe_local or None)
    found = tasks_of(store, tasks, store.settings(given))
    with (
        Progress() as progress,
        running(
            found, str(store.dir), given, simulate=simulate, new_epoch=new_epoch, learns="", observer=progress
        ) as run,
    ):
        steps = Steps(run.manager, run.store, run.settings)
        settle(steps)  # what waits was proposed about the bank as it is
        item = find(run.store.bank, name)
        asked = f"retire {item.kind}/{item.name} at version {run.store.bank.version}"
        steps.record(Proposal(task_id=asked, removes=(item.key,), reason="asked for by a person"))
        settle(steps)
        gone = item.key not in {i.key for i in run.store.bank.items}
    if json:
        output.emit_json({**facts(run.store), "retired": gone, "simulation": simulate})
    else:
        show(run.store)
        output.say(f"{item.kind} {item.name} {'is retired' if gone else 'stays'}")
    if not gone:
        raise typer.Exit(output.FINDING)
