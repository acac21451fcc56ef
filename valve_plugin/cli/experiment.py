"""`valve experiment`: the paper's conditions side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from valve_plugin.cli import output, targets
from valve_plugin.cli.options import Json, examples
from valve_plugin.cli.session import Run, UnsafeLocal, Workers, holding, running
from valve_plugin.errors import ConfigError, InfrastructureError

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
    again, it goes on where it stopped. A run that host or provider failed is left for the next time, and the others
    go on (exit code 3).
    """
    from valve_plugin.experiment.results import collect
    from valve_plugin.experiment.spec import cells, read
    from valve_plugin.rollouts import mini_config

    experiment = read(file)
    wanted = [c for c in cells(experiment) if not only or c.variant.name in only]
    if not wanted:
        raise ConfigError(f"{file}: no condition {only[0]!r}; it has {', '.join(v.name for v in experiment.condition)}")
    for given in {tuple(c.settings(experiment).get("mini_config", ())) for c in wanted if not tables}:
        mini_config.require(given)  # not hours later, when the run that names it comes
    _require_place(out)
    out.mkdir(parents=True, exist_ok=True)
    failed = [] if tables else _run_all(experiment, wanted, out, file.parent, workers or 1, unsafe_local)
    rows = collect(experiment, out)
    written = write(experiment, rows, out)
    if json:
        output.emit_json({"simulation": experiment.simulate, "failed": failed, "runs": [r._asdict() for r in rows]})
    else:
        for path in written:
            output.say(str(path))
    if failed:
        output.note(f"{len(failed)} of {len(wanted)} runs did not end: {failed[0]}; start again to go on with them")
        raise typer.Exit(output.INFRASTRUCTURE)


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


def write(experiment: Experiment, rows: Sequence[Row], out: Path) -> list[Path]:
    """Write tables, and figures where matplotlib is installed; return what was written."""
    from valve_plugin.experiment import figures
    from valve_plugin.experiment import tables as page

    if not rows:
        return []
    written = [out / name for name in page.OWN]
    written[0].write_text(page.markdown(rows, experiment.name, simulated=experiment.simulate), encoding="utf-8")
    written[1].write_text(page.comma_separated(rows), encoding="utf-8")
    try:
        return written + figures.draw(rows, out, simulated=experiment.simulate)
    except ConfigError as e:
        output.note(f"valve: {e}", style="yellow")
        return written


def _run_all(
    experiment: Experiment, wanted: Sequence[Cell], out: Path, root: Path, workers: int, unsafe_local: bool
) -> list[str]:
    from valve_plugin.cli.meter import Meter
    from valve_plugin.experiment.run import run_cell

    failed: list[str] = []
    meter = Meter(len(wanted))
    for cell in wanted:
        try:
            run_cell(experiment, cell, out, root, _starter(unsafe_local), workers)
            meter.tick(str(cell.path))
        except InfrastructureError as e:
            failed.append(f"{cell.path}: {e}")
            meter.tick(failed[-1], style="red")
    return failed


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
