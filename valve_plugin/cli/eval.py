"""`valve eval`: frozen checkpoints of a bank on the sealed holdout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from valve_plugin.bank.scripted_bank import LABEL, ran_scripted_model
from valve_plugin.cli import output, runs
from valve_plugin.cli.options import BankDir, Commands, Json, argument, flag, option
from valve_plugin.errors import ConfigError
from valve_plugin.plugins import send
from valve_plugin.words import plural

if TYPE_CHECKING:
    from valve_plugin.bank.entries import Entry
    from valve_plugin.bank.store import BankStore
    from valve_plugin.evidence.evaluations import Reading
    from valve_plugin.evidence.items import Effect, Key

SPENT = (
    "Report only. This holdout is now spent: a bank whose notes were kept or retired by these numbers cannot be "
    "certified on it. `valve bank retire` asks the gate instead"
)
READ = (
    "Report only. Retiring a note by these numbers uses the panel beyond its verdicts, so `valve certify` marks later "
    "certificates as unmet; a new panel starts over"
)

commands = Commands()


@commands.add(
    "eval",
    "valve eval                          # the empty bank, some versions between, and the last one",
    "valve eval --show                   # what is on record; runs nothing",
    "valve eval --items                  # each note of the last version alone; spends the holdout",
    "valve eval tasks/ --workers 4 --json",
)
def evaluate(
    tasks: Annotated[
        str, argument("TASKS", "A task set that `valve split` has split. Default: the last one used.")
    ] = "",
    version: Annotated[list[int], option("--version", "V", "Evaluate this version only; repeat.", min=0)] = [],  # noqa: B006 (Typer copies it)
    rollouts: Annotated[int, option("--rollouts", "R", "Rollouts per task.", min=1)] = 3,
    items: Annotated[bool, flag("--items", "Measure each note of the last version alone, against version 0.")] = False,
    categories: Annotated[Path | None, option("--categories", "FILE", "With --items: categories, as TOML.")] = None,
    show: Annotated[bool, flag("--show", "Print what is on record and run nothing.")] = False,
    bank: BankDir = "",
    solving: runs.Solving = runs.SOLVING,
    json: Json = False,
) -> None:
    """Measure frozen versions of the bank on the sealed holdout.

    `valve split` set the holdout aside: nothing was learned from it, and the gate never saw it. Every reading of it
    goes into the ledger. All versions run on the same tasks, so their differences are paired. Where two versions give
    a task the same notes, they share its rollouts. An errored rollout is unknown: the number becomes an interval that
    is not final (exit code 3). Run again to retry only what errored.

    With --items, --categories sums up notes that you sort by hand: its file lists their names under the paper's three
    categories, environment (execution), repair_strategy (the repair process) and code_semantics (program behavior).
    """
    from valve_plugin.evidence.evaluations import checkpoints, readings
    from valve_plugin.evidence.items import read_categories
    from valve_plugin.evolve.evaluate import Evaluation, Frozen

    store = runs.open_store(bank, solving.simulate, tasks)
    if categories is not None and not items:
        raise ConfigError("--categories sorts single notes: give --items as well")
    if items and not store.bank.items:
        raise ConfigError(f"{store.dir}: the bank holds no notes to measure")
    sorting = read_categories(categories, store.bank.items) if categories else {}
    if not show:
        given = solving.settings("evaluate")
        with runs.reopen(store, tasks, given, simulate=solving.simulate, purpose="evaluate") as run:
            store = run.store
            wanted = version or [c.version for c in checkpoints(store.entries())]
            frozen = list(map(Frozen, dict.fromkeys(wanted)))
            if items:
                frozen = [Frozen(0), *(Frozen(store.bank.version, item.key) for item in store.bank.items)]
            evaluation = Evaluation(run.manager, store, run.settings, run.taskset, rollouts)
            others = [r for r in readings(store.entries()) if r.entry.solver != evaluation.solver]
            _note_lines("will not be shown", others)
            evaluation.run(frozen, partial(send, run.manager.hook))
    if items:
        report_items(store, sorting, json=json, simulate=solving.simulate)
    else:
        report(store, json=json, simulate=solving.simulate)


def report(store: BankStore, *, json: bool = False, simulate: bool = False) -> None:
    """Print the evaluated versions of a bank; exit with 3 where errored rollouts leave a number open."""
    from valve_plugin.evidence.evaluations import evaluation_facts

    entries = list(store.entries())
    found = evaluation_facts(entries)
    simulate = simulate or note_simulation(store)
    if json:
        output.emit_json({"bank": str(store.dir), "simulation": simulate, **found})
    elif found["checkpoints"]:
        rows = []
        for p in found["checkpoints"]:
            moved: tuple[object, ...] = ("unknown", "-", "-")
            if p["gain"]:
                each = p["per_task"].values()
                moved = (_points(p["gain"]), sum(low > 0 for low, _ in each), sum(high < 0 for _, high in each))
            rows.append([p["step"], p["version"], _percent(p["avg"]), *moved, p["line"]])
        output.table(["STEP", "VERSION", f"AVG@{found['rollouts']}", "GAIN", "BETTER", "WORSE", "LINE"], rows)
        last, best = found["checkpoints"][-1], found["peak"]
        over = (
            _points(last["gain"])
            if last["gain"]
            else "gain unknown: version 0 was not evaluated; `valve eval` evaluates it"
        )
        output.say(f"final     {_percent(last['avg'])} at step {last['step']}, {over}")
        if found["drawdown"]:
            output.say(f"peak      {_percent(best['avg'])} at step {best['step']}: {best['note']}")
            output.say(f"drawdown  {_points(found['drawdown']).lstrip('+')} from peak to final")
        else:
            output.say("drawdown  none: a drop needs two versions, and one was evaluated")
        tasks = plural(len(found["holdout"]), "holdout task")
        output.say(output.advice(f"{tasks}; `valve certify` says what this proves"))
    else:
        output.say(output.advice("no evaluation is on record; `valve eval` makes one"))
    note_incomparable(entries)
    if not all(point["final"] for point in found["checkpoints"]):
        output.note("some rollouts errored, so these numbers are not final; run again to retry only those")
        raise typer.Exit(output.INFRASTRUCTURE)


def note_simulation(store: BankStore) -> bool:
    """Return whether what is on record is a simulation, and print it if so."""
    found = ran_scripted_model(store)
    if found:
        output.note(LABEL)
    return found


def note_incomparable(entries: Sequence[Entry]) -> None:
    """Print which recorded evaluations are not shown because the newest was made in another way."""
    from valve_plugin.evidence.evaluations import incomparable_readings, readings

    _note_lines("not shown", incomparable_readings(readings(entries)))


def _note_lines(what: str, found: Sequence[Reading]) -> None:
    if found:
        lines = ", ".join(str(reading.line) for reading in found)
        output.warn(
            f"{what}: {plural(len(found), 'evaluation')} (ledger: {lines}) on other holdout tasks, with other "
            "rollouts per task, or by another solver (model, its arguments, limits, files of mini) than the newest"
        )


def _percent(ends: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{100 * end:.1f} %" for end in ends))


def _points(ends: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{100 * end:+.1f}" for end in ends))


def report_items(
    store: BankStore, categories: Mapping[Key, str], *, json: bool, simulate: bool, panel: bool = False
) -> None:
    """Print what each item and each category is worth; exit with 3 where rollouts errored.

    Args:
        categories: how a person sorted the items; empty: not sorted.
        panel: show what the panel loses without the item, not what the holdout gains by the item alone.
    """
    from valve_plugin.evidence import items

    rows = items.removal_losses(store) if panel else items.single_item_gains(store)
    groups = items.category_effects(rows, categories)
    what, note = ("loss", READ) if panel else ("gain", SPENT)
    simulate = simulate or note_simulation(store)
    if json:
        shown = [row.facts(categories, what) for row in rows]
        means = {name: {"items": n, what: e.mean, "low": e.low, "high": e.high} for name, (n, e) in groups.items()}
        about = {"bank": str(store.dir), "simulation": simulate}
        output.emit_json({**about, "items": shown, "categories": means, "note": note})
    else:
        body = [
            [r.item.kind, r.item.name, *_shown(r.effect, r.changed_tasks), r.changed_tasks, r.line]
            + ([categories.get(r.item.key, "-")] if categories else [])
            for r in rows
        ]
        head = ["KIND", "NAME", what.upper(), "INTERVAL", "MOVED", "LINE", *(["CATEGORY"] if categories else [])]
        output.table(head, body)
        if groups:
            sums = [[name, n, *_shown(e)] for name, (n, e) in groups.items()]
            output.table(["CATEGORY", "NOTES", what.upper(), "INTERVAL"], sums)
        output.say(note)
    if not panel:
        note_incomparable(list(store.entries()))
    if not all(row.final for row in rows):
        raise typer.Exit(output.INFRASTRUCTURE)


def _shown(effect: Effect, moved: int = 1) -> tuple[str, str]:
    """Return the mean and its interval. Where no task moved there is no spread to compute an interval from."""
    interval = f"{effect.low:+.1f} to {effect.high:+.1f}" if moved else "no task moved"
    return f"{effect.mean:+.1f}", interval
