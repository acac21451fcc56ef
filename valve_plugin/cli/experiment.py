"""`valve experiment`: the paper's conditions side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from valve_plugin.cli import output, targets
from valve_plugin.cli.options import Json, examples
from valve_plugin.cli.session import Run, UnsafeLocal, Workers, holding, require_able, running
from valve_plugin.errors import ConfigError, HorizonError, ValveError

if TYPE_CHECKING:
    from valve_plugin.experiment.results import Row
    from valve_plugin.experiment.spec import Cell, Experiment

File = Annotated[Path, typer.Argument(metavar="FILE", help="The experiment, as TOML.")]


def register(app: typer.Typer) -> None:
    """Add `valve experiment` and its commands."""
    group = typer.Typer(
        help="Run the paper's conditions side by side.",
        epilog=examples("valve experiment conditions", "valve experiment run matrix.toml --out results"),
        no_args_is_help=True,
    )
    group.command(
        "run",
        epilog=examples(
            "valve experiment run matrix.toml --out results              # everything the file asks for",
            "valve experiment run matrix.toml --out results --only batch # one condition of it",
            "valve experiment run matrix.toml --out results --tables     # only write the tables again",
        ),
    )(run)
    group.command("conditions", epilog=examples("valve experiment conditions"))(conditions)
    app.add_typer(group, name="experiment")


def run(
    file: File,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where banks, tables and figures go.")],
    only: Annotated[
        list[str], typer.Option("--only", metavar="LABEL", help="Run these conditions of the file alone; repeat.")
    ] = [],  # noqa: B006 (Typer copies it)
    tables: Annotated[bool, typer.Option("--tables", help="Run nothing; write what the finished runs say.")] = False,
    workers: Workers = None,
    unsafe_local: UnsafeLocal = False,
    json: Json = False,
) -> None:
    """Run repositories x models x conditions x seeds.

    Writes the paper's tables and figures. Every run has a bank and a ledger of its own; rollouts that are provably
    the same (task, context, ordinal, solver) are shared between runs, step 0 among them. Interrupted and started
    again, it goes on where it stopped. A file that says something else than what ran in DIR is refused; more seeds,
    conditions or tasks may come. What stops one run stops no other: the tables say which did not end (exit code 3:
    host or provider failed; 4: a budget of its settings is used up; 2: it cannot go on like this).
    """
    from valve_plugin.experiment import bound
    from valve_plugin.experiment.results import collect
    from valve_plugin.experiment.spec import cells, read

    experiment = read(file)
    wanted = _wanted(experiment, only, file)
    _require_place(out)
    bound.require(experiment, cells(experiment), out, file.parent, tables=tables)
    failed = {} if tables else _run_all(experiment, wanted, out, file.parent, workers, unsafe_local)
    found = collect(experiment, out)
    failed = _still(failed, experiment, wanted, out)
    remarks = found.remarks | {path: failure.why for path, failure in failed.items()}
    written = write(experiment, found.rows, remarks, out)
    if json:
        runs = [r._asdict() for r in found.rows]
        output.emit_json(
            {"simulation": experiment.simulate, "failed": [f"{p}: {f.why}" for p, f in failed.items()],
             "remarks": remarks, "runs": runs}
        )  # fmt: skip
    else:
        for path in written:
            output.say(str(path))
    for place in [p for p in remarks if not failed or p in failed]:
        output.note(f"valve: {place}: {remarks[place]}", style="yellow")
    if failed:
        output.note(f"{len(failed)} of {output.plural(len(wanted), 'run')} did not end; start again to go on with them")
        raise typer.Exit(min(failure.code for failure in failed.values()))


def _still(
    failed: Mapping[str, Failure], experiment: Experiment, wanted: Sequence[Cell], out: Path
) -> dict[str, Failure]:
    """Failures of runs that have not ended meanwhile: another process may have been at one, and taken it to its end."""
    from valve_plugin.experiment import ending

    ended = {cell.path.as_posix() for cell in wanted if ending.done(experiment, cell, out)}
    return {place: failure for place, failure in failed.items() if place not in ended}


class Failure(NamedTuple):
    """Why one run did not end, and the exit code that says so; of several runs' codes, the lowest counts."""

    why: str
    code: int


def _wanted(experiment: Experiment, only: Sequence[str], file: Path) -> list[Cell]:
    from valve_plugin.experiment.spec import cells

    names = [v.name for v in experiment.condition]
    if unknown := [name for name in only if name not in names]:
        raise ConfigError(f"{file}: no condition {unknown[0]!r}; it has {', '.join(names)}")
    return [c for c in cells(experiment) if not only or c.variant.name in only]


def _require_place(out: Path) -> None:
    """Before the work: in a folder that may be written to, tables are written over tables alone."""
    from valve_plugin.experiment.tables import OWN

    targets.folder("--out", out)
    for name, own in OWN.items():
        targets.table("--out", out / name, own)


def conditions(json: Json = False) -> None:
    """List the conditions an experiment may name."""
    from valve_plugin.experiment.conditions import NAMES, find

    about = {name: find(name).about for name in NAMES}
    if json:
        output.emit_json(about)
    else:
        output.table(["CONDITION", "WHAT IT IS"], about.items())


def write(experiment: Experiment, rows: Sequence[Row], remarks: Mapping[str, str], out: Path) -> list[Path]:
    """Write tables, and figures where matplotlib is installed; return what was written."""
    from valve_plugin.bank.files import make_dir, write_atomic
    from valve_plugin.experiment import figures
    from valve_plugin.experiment import tables as page

    text = page.markdown(rows, experiment.name, simulated=experiment.simulate, remarks=remarks)
    written = [out / name for name in page.OWN]
    make_dir(out)
    write_atomic(written[0], text.encode())
    write_atomic(written[1], page.comma_separated(rows).encode())
    try:
        return written + figures.draw(rows, out, simulated=experiment.simulate)
    except ConfigError as e:
        output.note(f"valve: {e}", style="yellow")
        return written


def _run_all(
    experiment: Experiment, wanted: Sequence[Cell], out: Path, root: Path, workers: int | None, unsafe_local: bool
) -> dict[str, Failure]:
    """Take every run as far as it goes; what stops one stops no other. Return those that did not end, by folder."""
    from valve_plugin.cli.meter import Meter
    from valve_plugin.experiment.run import run_cell

    _require_usable(experiment, wanted, out, root, {"unsafe_local": True} if unsafe_local else {})
    targets.made("--out", out)
    failed: dict[str, Failure] = {}
    meter = Meter(len(wanted))
    for cell in wanted:
        place = cell.path.as_posix()
        try:
            run_cell(experiment, cell, out, root, _starter(unsafe_local), workers)
            meter.tick(place)
        except BrokenPipeError:
            raise
        except Exception as e:  # noqa: BLE001 (also of a package that is not ours; the others' hours are not lost)
            failed[place] = _failure(e)
            meter.tick(f"{place}: {failed[place].why}", style="red")
    return failed


def _failure(error: Exception) -> Failure:
    if isinstance(error, HorizonError):  # its own way out is an option that there is none of here
        why = (
            "the gate queries that its horizon declares are used and the stream has not ended; the row of a run with "
            "a larger horizon in its settings needs another --out, or this run's folder deleted"
        )
        return Failure(why, error.exit_code)
    if isinstance(error, ValveError):
        return Failure(str(error) or type(error).__name__, error.exit_code)
    return Failure(f"{type(error).__name__}: {error}", output.INFRASTRUCTURE)


def _require_usable(
    experiment: Experiment, wanted: Sequence[Cell], out: Path, root: Path, given: Mapping[str, Any]
) -> None:
    """What a later run needs is asked for now, and not hours later when its turn comes."""
    from valve_plugin.config import resolve
    from valve_plugin.experiment import bound, ending
    from valve_plugin.experiment.run import draw
    from valve_plugin.tasks.load import load

    left = [cell for cell in wanted if not ending.done(experiment, cell, out)]
    sets = {tasks: load(bound.source(tasks, root)) for tasks in {cell.repository.tasks for cell in left}}
    for cell in left:
        settings = resolve(cell.settings(experiment), given)
        require_able(sets[cell.repository.tasks], settings, simulate=experiment.simulate)
        if cell.condition.require is not None:
            cell.condition.require(settings, experiment.simulate)
    for taskset in sets.values():
        draw(experiment, taskset)


def _starter(unsafe_local: bool) -> Any:
    @contextmanager
    def start(
        tasks: str, bank: str, given: Mapping[str, Any], *, simulate: bool, gated: bool, panel: bool
    ) -> Iterator[Run]:
        from valve_plugin.cli.progress import Progress

        settings = {**given, **({"unsafe_local": True} if unsafe_local else {})}
        with Progress() as progress:
            if panel:
                with running(tasks, bank, settings, simulate=simulate, observer=progress, gated=gated) as run:
                    yield run
            else:
                with holding(tasks, bank, settings, simulate=simulate, observer=progress) as run:
                    yield run

    return start
