"""`valve eval`: frozen checkpoints of a bank on the sealed holdout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from valve_plugin.cli import completion, output, simulations
from valve_plugin.cli.given import overrides
from valve_plugin.cli.options import BankDir, Json, examples
from valve_plugin.cli.session import Set, Simulate, UnsafeLocal, Workers, holding, tasks_of
from valve_plugin.errors import ConfigError

if TYPE_CHECKING:
    from valve_plugin.bank.entries import Entry
    from valve_plugin.bank.evaluated import Interval, Point
    from valve_plugin.bank.store import BankStore

UNREAD = "version 0 was not evaluated; `valve eval` does"
PEAK = "selected on this holdout, so it is no untouched final-test estimate"


def register(app: typer.Typer) -> None:
    """Add `valve eval`."""
    app.command(
        "eval",
        epilog=examples(
            "valve eval                          # step 0, every 10 mixed tasks, and the last version",
            "valve eval --version 0 --version 3  # these versions only",
            "valve eval --show                   # what is on record; runs nothing",
            "valve eval --items                  # each item of the last version alone; spends the holdout",
            "valve eval --items --categories sorted.toml  # and what each category of them gains",
            "valve eval tasks/ --workers 4 --json",
        ),
    )(evaluate)


def evaluate(
    tasks: Annotated[
        str,
        typer.Argument(
            metavar="TASKS",
            help="Task set with a split.json. Default: the last one used.",
            autocompletion=completion.sets,
        ),
    ] = "",
    version: Annotated[
        list[int], typer.Option("--version", metavar="V", min=0, help="Evaluate this version only; repeat.")
    ] = [],  # noqa: B006 (Typer copies it)
    every: Annotated[
        int, typer.Option("--every", metavar="N", min=1, help="Mixed tasks from one checkpoint to the next.")
    ] = 10,
    rollouts: Annotated[int, typer.Option("--rollouts", metavar="R", min=1, help="Rollouts per task.")] = 3,
    items: Annotated[
        bool, typer.Option("--items", help="Measure each item of the last version alone, against version 0.")
    ] = False,
    categories: Annotated[
        Path | None,
        typer.Option("--categories", metavar="FILE", help="With --items: your sorting of them, as TOML; see below."),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print what is on record and run nothing.")] = False,
    bank: BankDir = "",
    workers: Workers = None,
    set_: Set = [],  # noqa: B006 (Typer copies it)
    simulate: Simulate = False,
    unsafe_local: UnsafeLocal = False,
    json: Json = False,
) -> None:
    """Measure frozen versions of the bank on the sealed holdout.

    The holdout is what `valve split` set aside: nothing was learned from it, and the gate never saw it. Every reading
    of it goes into the ledger. All versions are measured on the same tasks, so their differences are paired; where
    two versions give a task the same block, they share its rollouts. An errored rollout is unknown: it widens the
    number to an interval that is not final (exit code 3); run again to retry only what errored.

    Categories are a person's reading. The file lists item names under the paper's three: environment (execution),
    repair_strategy (the repair process), code_semantics (program behavior).
    """
    from valve_plugin.bank.evaluated import checkpoints
    from valve_plugin.cli.progress import Progress
    from valve_plugin.evolve.evaluate import Evaluation, Frozen
    from valve_plugin.report.items import read_categories

    store = simulations.opened(bank, simulate, tasks)
    if categories is not None and not items:
        raise ConfigError("--categories sorts single items: give --items as well")
    if items and not store.bank.items:
        raise ConfigError(f"{store.dir}: the bank holds no items, so there is none to measure alone")
    sorting = read_categories(categories, store.bank.items) if categories else {}
    if not show:
        given = overrides(set_, workers=workers, unsafe_local=unsafe_local or None)
        found = tasks_of(store, tasks, store.settings(given))
        with (
            Progress() as progress,
            holding(found, str(store.dir), given, simulate=simulate, observer=progress) as run,
        ):
            store = run.store
            wanted = version or [c.version for c in checkpoints(store.entries(), every)]
            frozen = list(map(Frozen, dict.fromkeys(wanted)))
            if items:
                frozen = [Frozen(0), *(Frozen(store.bank.version, item.key) for item in store.bank.items)]
            evaluation = Evaluation(run.manager, store, run.settings, run.taskset, rollouts)
            _tell_other_solver(store, evaluation.solver)
            evaluation.run(frozen, lambda n, d: run.manager.hook.valve_event(name=n, data=d))
    if items:
        from valve_plugin.cli.eval_items import report_items

        report_items(store, sorting, json=json, simulate=simulate)
    else:
        report(store, every, json=json, simulate=simulate)


def report(store: BankStore, every: int, *, json: bool = False, simulate: bool = False) -> None:
    """Print what a bank's evaluations say; exit with 3 where errors leave a number open."""
    from valve_plugin.bank.evaluated import points

    entries = list(store.entries())
    found = points(entries, every)
    simulate = simulate or told_scripted(store)
    if json:
        output.emit_json({"bank": str(store.dir), "simulation": simulate, **facts(entries, every)})
        tell_apart(entries)
    elif not found:
        output.say("no evaluation is on record; `valve eval` makes one")
    else:
        _print(found)
        tell_apart(entries)
    if any(not p.entry.complete for p in found):
        output.note("some rollouts errored, so these numbers are not final; run again to retry only those")
        raise typer.Exit(output.INFRASTRUCTURE)


def told_scripted(store: BankStore) -> bool:
    """Whether what is on record is a simulation, and say so."""
    from valve_plugin.bank.simulation import LABEL, took_part

    found = took_part(store)
    if found:
        output.note(LABEL)
    return found


def tell_apart(entries: Sequence[Entry]) -> None:
    """Say which evaluations on record are in no table, since the newest was made otherwise."""
    from valve_plugin.bank.evaluated import apart, readings

    lines = [str(r.line) for r in apart(readings(entries))]
    if lines:
        output.note(
            f"valve: not shown: {output.plural(len(lines), 'evaluation')} on other holdout tasks, with other rollouts "
            f"per task or by another solver than the newest (ledger {'lines' if len(lines) > 1 else 'line'} "
            f"{', '.join(lines)})",
            style="yellow",
        )


def _tell_other_solver(store: BankStore, solver: str) -> None:
    """Before anything runs: what is on record will not be compared with it."""
    from valve_plugin.bank.evaluated import readings

    lines = [str(r.line) for r in readings(store.entries()) if r.entry.solver != solver]
    if lines:
        output.note(
            f"valve: another solver than the one on record (ledger {'lines' if len(lines) > 1 else 'line'} "
            f"{', '.join(lines)}): its model, the model's arguments, its limits, or mini's files or version differ, or "
            "a simulation's seed. The two are never compared; to add to what is on record, give its settings",
            style="yellow",
        )


def facts(entries: Sequence[Entry], every: int) -> dict[str, Any]:
    """Return every evaluated checkpoint as plain data, with per-task differences to version 0, where that was."""
    from valve_plugin.bank.evaluated import apart, differences, peak, points, readings

    found = points(entries, every)
    if not found:
        return {"checkpoints": []}
    others = [r.line for r in apart(readings(entries))]
    best, known = peak(found), found[0].entry.version == 0
    return {
        "holdout": [t.instance_id for t in found[0].entry.holdout],
        "rollouts": found[0].entry.rollouts,
        "not_shown": others,
        "checkpoints": [
            {
                **_numbers(found, p),
                "per_task": {t: _ends(d) for t, d in differences(found[0].entry, p.entry).items()} if known else None,
            }
            for p in found
        ],
        "peak": {**_numbers(found, best), "note": PEAK},
        "drawdown": _ends(_drawdown(found)) if len(found) > 1 else None,
    }


def _print(found: Sequence[Point]) -> None:
    from valve_plugin.bank.evaluated import over_empty, peak, rate

    first, last, best = found[0], found[-1], peak(found)
    rows = []
    for p in found:
        gained = over_empty(found, p)
        moved = (_points(gained), *_moved(first, p)) if gained else ("unknown", "-", "-")
        rows.append([p.step, p.entry.version, _percent(rate(p.entry)), *moved, p.reading.line])
    name = f"AVG@{first.entry.rollouts}"
    output.table(["STEP", "VERSION", name, "GAIN", "BETTER", "WORSE", "LINE"], rows)
    gained = over_empty(found, last)
    over = _points(gained) if gained else f"gain unknown: {UNREAD}"
    output.say(f"final     {_percent(rate(last.entry))} at step {last.step}, {over}")
    if len(found) > 1:
        output.say(f"peak      {_percent(rate(best.entry))} at step {best.step}: {PEAK}")
        output.say(f"drawdown  {_points(_drawdown(found)).lstrip('+')} from peak to final")
    else:
        output.say("drawdown  none: a single version was evaluated, and a drop takes two")
    output.say(f"{output.plural(len(first.entry.holdout), 'holdout task')}; `valve certify` says what this proves")


def _drawdown(found: Sequence[Point]) -> Interval:
    from valve_plugin.bank.evaluated import gain, peak

    return gain(found[-1].entry, peak(found).entry)


def _numbers(found: Sequence[Point], p: Point) -> dict[str, Any]:
    from valve_plugin.bank.evaluated import over_empty, rate

    gained = over_empty(found, p)
    return {
        "step": p.step,
        "version": p.entry.version,
        "line": p.reading.line,
        "avg": _ends(rate(p.entry)),
        "gain": _ends(gained) if gained else None,
        "final": p.entry.complete,
    }


def _moved(first: Point, p: Point) -> tuple[int, int]:
    from valve_plugin.bank.evaluated import differences

    each = differences(first.entry, p.entry).values()
    return sum(d.low > 0 for d in each), sum(d.high < 0 for d in each)


def _ends(interval: Interval) -> list[float]:
    return [float(interval.low), float(interval.high)]


def _percent(interval: Interval) -> str:
    return _between(*(f"{100 * float(end):.1f} %" for end in interval))


def _points(interval: Interval) -> str:
    return _between(*(f"{100 * float(end):+.1f}" for end in interval))


def _between(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"
