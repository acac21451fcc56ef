"""`valve experiment`: the paper's conditions side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from valve_plugin.cli import output
from valve_plugin.cli.options import Commands, Json, argument, option
from valve_plugin.cli.runs import UnsafeLocal, Workers, open_run
from valve_plugin.cli.stage import Meter
from valve_plugin.config import resolve
from valve_plugin.errors import ConfigError, HorizonError, ValveError
from valve_plugin.files import make_dir, write_atomic

if TYPE_CHECKING:
    from valve_plugin.evolve.open import OpenRun
    from valve_plugin.lab.folder import Experiment, ExperimentRun

commands = Commands(
    "experiment",
    "valve experiment run matrix.toml --out results",
    help="Run the paper's conditions side by side.",
    no_args_is_help=True,
)


@commands.add(
    "run",
    "valve experiment run matrix.toml --out results              # everything the file asks for",
    "valve experiment run matrix.toml --out results --only batch # one condition of it",
)
def run(
    file: Annotated[Path, argument("FILE", "The experiment, as TOML.")],
    out: Annotated[Path, option("--out", "DIR", "Where banks and tables go.")],
    only: Annotated[list[str], option("--only", "LABEL", "Run these conditions of the file alone; repeat.")] = [],  # noqa: B006 (Typer copies it)
    workers: Workers = None,
    unsafe_local: UnsafeLocal = False,
    json: Json = False,
) -> None:
    """Run repositories x models x conditions x seeds.

    Writes the paper's tables. Every run has its own bank and ledger. Rollouts that are provably the same
    (task, context, ordinal, solver) are shared between runs. Started again, it continues where it stopped. FILE may
    gain seeds, conditions or tasks later; other changes are refused. A run that fails does not stop the others, and the
    tables name it (exit code 3: host or provider failed; 4: its budget is used up; 2: it cannot continue).
    """
    from valve_plugin.lab import folder
    from valve_plugin.lab.folder import list_runs, read
    from valve_plugin.lab.results import FILES, collect, comma_separated, markdown

    experiment = read(file)
    names = [v.name for v in experiment.condition]
    if unknown := [name for name in only if name not in names]:
        raise ConfigError(f"{file}: no condition {unknown[0]!r}; it has {', '.join(names)}")
    wanted = [run for run in list_runs(experiment) if not only or run.variant.name in only]
    output.require_folder("--out", out)
    folder.require_unchanged(experiment, list_runs(experiment), out, file.parent)
    given = {"workers": workers} if workers else {}
    given |= {"unsafe_local": True} if unsafe_local else {}
    failed = _complete_runs(experiment, wanted, out, file, given)
    # Another process may meanwhile have completed a run that failed here.
    ended = {run.path.as_posix() for run in wanted if folder.is_done(experiment, run, out)}
    failed = {place: failure for place, failure in failed.items() if place not in ended}
    results = collect(experiment, out)
    remarks = results.remarks | {place: why for place, (why, _) in failed.items()}
    page = markdown(results.rows, experiment.name, simulated=experiment.simulate, remarks=remarks)
    make_dir(out)
    written = [out / name for name in FILES]
    for path, text in zip(written, (page, comma_separated(results.rows)), strict=True):
        write_atomic(path, text.encode())
    if json:
        output.emit_json(
            {
                "simulation": experiment.simulate,
                "failed": [f"{place}: {why}" for place, (why, _) in failed.items()],
                "remarks": remarks,
                "runs": [row._asdict() for row in results.rows],
            }
        )
    else:
        for path in written:
            output.say(str(path))
    for place in [p for p in remarks if not failed or p in failed]:
        output.warn(f"{place}: {remarks[place]}")
    if failed:
        output.note(f"{len(failed)} of {output.plural(len(wanted), 'run')} did not end; start again to go on with them")
        raise typer.Exit(min(code for _, code in failed.values()))


def _complete_runs(
    experiment: Experiment, wanted: Sequence[ExperimentRun], out: Path, file: Path, given: Mapping[str, Any]
) -> dict[str, tuple[str, int]]:
    """Complete every run, as many at once as there are workers; a failure of one does not stop the others.

    Returns:
        folder of each run that did not end -> why, and the exit code that says so.
    """
    from valve_plugin.cli import together
    from valve_plugin.cli.together import Job
    from valve_plugin.lab.folder import is_done
    from valve_plugin.lab.run import require_usable

    require_usable(experiment, [run for run in wanted if not is_done(experiment, run, out)], file.parent, given)
    output.make_folder("--out", out)
    failed: dict[str, tuple[str, int]] = {}
    meter = Meter(len(wanted))
    settings = resolve(experiment.settings, given)

    def tell(place: str, why: str, code: int) -> None:
        if code:
            failed[place] = (why, code)
        meter.tick(f"{place}: {why}" if code else place, style="red" if code else "")

    if settings.workers > 1 and len(wanted) > 1:  # all at once
        about = {"file": str(file), "out": str(out), "given": given}
        jobs = [
            Job(run.path.as_posix(), f"{__name__}:complete", {**about, "place": run.path.as_posix()}) for run in wanted
        ]
        together.run(jobs, settings, tell=lambda place, ended: tell(place, ended.said, ended.code))
        return failed
    for run in wanted:
        try:
            _complete(experiment, run, out, file.parent, given)
        except BrokenPipeError:
            raise
        except Exception as e:  # noqa: BLE001 (also of a package that is not ours; the others' hours are not lost)
            why = str(e) if isinstance(e, ValveError) else f"{type(e).__name__}: {e}"
            tell(run.path.as_posix(), why, e.exit_code if isinstance(e, ValveError) else output.INFRASTRUCTURE)
        else:
            tell(run.path.as_posix(), "", 0)
    return failed


def complete(file: str, place: str, out: str, given: dict[str, Any]) -> None:
    """Complete the run with this folder, in a process of its own."""
    from valve_plugin.lab.folder import list_runs, read

    experiment = read(Path(file))
    (run,) = [run for run in list_runs(experiment) if run.path.as_posix() == place]
    _complete(experiment, run, Path(out), Path(file).parent, given)


def _complete(experiment: Experiment, run: ExperimentRun, out: Path, root: Path, given: Mapping[str, Any]) -> None:
    from valve_plugin.cli.progress import Progress
    from valve_plugin.lab.run import complete_run

    try:
        with Progress() as progress:

            @contextmanager
            def watched(*about: Any, **options: Any) -> Iterator[OpenRun]:
                with open_run(*about, **options, observer=progress) as opened:
                    progress.begin(opened)
                    yield opened

            complete_run(experiment, run, out, root, given, watched)
    except HorizonError as e:  # its own message names an option that this command does not have
        why = "its gate queries are used up before its stream; give another --out and a larger horizon"
        raise HorizonError(why) from e
