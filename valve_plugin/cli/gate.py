"""`valve gate` and `valve bank retire`: judge waiting proposals, and the removal of an item."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from valve_plugin.bank.entries import undecided
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import output, runs
from valve_plugin.cli.evolve import show
from valve_plugin.cli.options import BankDir, Commands, Json, argument, bank_dir, find_item
from valve_plugin.errors import BankError
from valve_plugin.records import Proposal
from valve_plugin.words import quote

commands = Commands()


@commands.add(
    "gate",
    "valve gate                      # what mini's runs queued, and a verdict that was left open",
    "valve gate --tasks tasks/       # the first time: the task set to choose a panel from",
)
def gate(
    tasks: runs.Tasks = "",
    bank: BankDir = "",
    solving: runs.Solving = runs.SOLVING,
    new_epoch: runs.NewEpoch = False,
    no_early_stop: runs.NoEarlyStop = False,
    limits: runs.Limits = runs.LIMITS,
    json: Json = False,
) -> None:
    """Judge the proposals that wait, first in, first out.

    Each group of mixed attempts that `mini --plugin valve` queued becomes a proposal. It enters the bank only if the
    panel gains by the margin. A proposal without a final verdict comes first.
    """
    from valve_plugin.cli.progress import Progress
    from valve_plugin.evidence.summary import bank_facts
    from valve_plugin.evolve.loop import drain
    from valve_plugin.evolve.steps import Steps, waiting
    from valve_plugin.gate.plan import require_kept
    from valve_plugin.tasks import task_set

    store = runs.open_store(bank, solving.simulate, tasks)
    judged, progress = False, Progress()
    given = solving.settings("drain", early_stop=False if no_early_stop else None, **limits.settings)
    settings = store.settings(given)  # wrong settings are refused also where nothing waits
    if panel := store.panel():
        require_kept(given, panel, store.epoch(), store.dir)
    if tasks:
        task_set.find(tasks)
    runs.require_apart(store, settings, simulate=solving.simulate)
    if store.local.queue() or waiting(store):
        found = runs.tasks_of(store, tasks, settings)
        with (
            progress,
            runs.open_run(
                found, str(store.dir), given, simulate=solving.simulate, new_epoch=new_epoch, purpose="drain",
                observer=progress,
            ) as run,
        ):  # fmt: skip
            steps = Steps(run.manager, run.store, run.settings)
            runs.preflight(run, steps, queued=True, yes=limits.yes)
            progress.begin(run)
            before = run.store.head
            with runs.stopping(progress):
                drain(steps)
            judged = run.store.head != before
            store = run.store
    if json:
        spent = runs.spent_facts(progress, store)
        output.emit_json({**bank_facts(store), "judged": judged, "simulation": solving.simulate, **spent})
    elif judged or progress.stopped:
        show(store, simulate=solving.simulate)
        runs.say_spent(progress)
    else:
        output.say("nothing waits")
        if solving.simulate and not bank:
            _note_real(store)


def _note_real(store: BankStore) -> None:
    """Name the repository's own bank where proposals wait there: a simulation does not judge them."""
    with contextlib.suppress(BankError):
        own = BankStore.open(bank_dir(""))
        if number := len(own.local.queue()) + len(undecided(own.entries())):
            what = output.plural(number, "proposal waits", "proposals wait")
            output.say(
                f"{what} in {own.dir}: `valve gate` without --simulate judges what is there. To try your own notes in "
                f"this simulation, add them here: valve bank add notes.md --bank {quote(str(store.dir))}"
            )


def retire(
    name: Annotated[str, argument("NAME", "Name of the note, or kind/name.")],
    tasks: runs.Tasks = "",
    bank: BankDir = "",
    solving: runs.Solving = runs.SOLVING,
    new_epoch: runs.NewEpoch = False,
    json: Json = False,
) -> None:
    """Take a note out of the bank, if the panel gains by the margin.

    The bank without the note is judged like any other move: it counts as a gate query and is a line of the ledger.
    Tasks whose context stays the same keep their outcomes. Exit code 1 when the note stays.
    """
    from valve_plugin.evidence.summary import bank_facts
    from valve_plugin.evolve.loop import settle
    from valve_plugin.evolve.steps import Steps

    store = runs.open_store(bank, solving.simulate, tasks)
    find_item(store.bank, name)  # before anything is asked for or set up
    given = solving.settings("drain")
    with runs.reopen(store, tasks, given, simulate=solving.simulate, new_epoch=new_epoch, purpose="measure") as run:
        steps = Steps(run.manager, run.store, run.settings)
        settle(steps)  # what waits was proposed about the bank as it is
        item = find_item(run.store.bank, name)
        asked = f"retire {item.kind}/{item.name} at version {run.store.bank.version}"
        steps.record(Proposal(task_id=asked, removes=(item.key,), reason="asked for by a person"))
        settle(steps)
        gone = item.key not in {i.key for i in run.store.bank.items}
    if json:
        output.emit_json({**bank_facts(run.store), "retired": gone, "simulation": solving.simulate})
    else:
        show(run.store)
        output.say(f"{item.kind} {item.name} {'is retired' if gone else 'stays'}")
    if not gone:
        raise typer.Exit(output.FINDING)
