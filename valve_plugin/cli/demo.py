"""`valve demo`: the whole loop on real bugs, gated and ungated, with a scripted model, from an empty directory."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from valve_plugin.cli import output, targets
from valve_plugin.cli.options import Json, examples
from valve_plugin.cli.session import Run, running
from valve_plugin.errors import ConfigError, SandboxError
from valve_plugin.hookspecs import hookimpl
from valve_plugin.shell_words import join

EXAMPLE = "funcy"
FULL = {"panel_size": 8, "rollouts": 3}
FAST = {"panel_size": 4, "rollouts": 2}
FULL_TASKS, FAST_TASKS = 16, 8
SEED = 0


def register(app: typer.Typer) -> None:
    """Add `valve demo`."""
    app.command(
        "demo",
        epilog=examples(
            "valve demo                       # 16 tasks, a panel of 8 x 3: minutes",
            "valve demo --fast --out my-demo  # 8 tasks, a panel of 4 x 2; all of it stays in my-demo",
            "valve demo --seed 7              # another simulated model: other lessons, other verdicts",
        ),
    )(demo)


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Fewer tasks and a smaller panel.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Keep everything here. Default: a new temporary folder.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="SEED", help="Another simulated model.")] = SEED,
    workers: Annotated[
        int, typer.Option("--workers", min=1, metavar="N", help="Rollouts that each of the two runs makes at a time.")
    ] = 2,
    json: Json = False,
) -> None:
    """Show the whole loop on real bugs, offline.

    The bugs, their tests, the agent and its commands are real: funcy 2.0 with bugs made by SWE-smith's modifiers. The
    model is a script, so this is a SIMULATION: it shows what VALVE does, not what a model gains. Two banks learn from
    the same tasks, one through the gate, one taking whatever is proposed. The first time, the repository and what its
    tests need are fetched from the package index.
    """
    from valve_plugin.cli import demo_told
    from valve_plugin.simulate.examples import example

    folder = _empty(out)
    given: dict[str, Any] = {**(FAST if fast else FULL), "seed": seed, "workers": workers, "embedding": "hashing"}
    given["unsafe_local"] = _runs_plainly()
    with (
        _interruptible(out),
        _side_by_side(str(example(EXAMPLE)), folder, given, FAST_TASKS if fast else FULL_TASKS) as (gated, ungated),
    ):
        told = demo_told.Told(gated, ungated)
    for run in (gated, ungated):
        shutil.copytree(run.store.local.dir, run.store.dir.parent / "local", dirs_exist_ok=True)
    problems = [problem for run in (gated, ungated) for problem in demo_told.problems(run.store.dir)]
    if json:
        output.emit_json({**told.facts(), "simulation": True, "out": str(folder), "verified": not problems})
    else:
        told.show(problems, folder)
    if problems:
        raise typer.Exit(output.FINDING)


@contextmanager
def _interruptible(out: Path | None) -> Iterator[None]:
    """Say how to start again; unlike every other run's, the same command would not go on."""
    try:
        yield
    except KeyboardInterrupt as e:
        other = f", after `{join(['rm', '-r', str(out)])}` or with another --out" if out else ""
        raise KeyboardInterrupt(f"a demo starts from nothing, but what it fetched stays: start it again{other}") from e


@contextmanager
def _side_by_side(tasks: str, folder: Path, given: Mapping[str, Any], limit: int) -> Iterator[tuple[Run, Run]]:
    """Learn from the same tasks with and without a gate, both at the same time; yields the two finished runs."""
    from valve_plugin.bank.paths import local_dir
    from valve_plugin.cli.progress import Progress
    from valve_plugin.evolve.loop import evolve
    from valve_plugin.evolve.steps import Steps, Ungated

    banks = [folder / name / "bank" for name in ("gated", "ungated")]
    for bank in banks:
        shutil.rmtree(local_dir(bank), ignore_errors=True)  # an earlier demo's rollouts, were the place the same
    stop = _Stop()
    with ExitStack() as stack:
        shown = stack.enter_context(Progress("gated    "))
        beside = stack.enter_context(Progress("ungated  ", beside=shown))
        gated = stack.enter_context(running(tasks, str(banks[0]), given, simulate=True, observer=shown))
        served = {**given, "model": gated.settings.model, "model_kwargs": gated.settings.model_kwargs}
        ungated = stack.enter_context(running(tasks, str(banks[1]), served, gated=False, observer=beside))
        gated, ungated = (run._replace(stream=run.stream[:limit]) for run in (gated, ungated))
        for run, watched in ((gated, shown), (ungated, beside)):
            run.manager.register(stop)
            watched.begin(run, "SIMULATION")
        _together(
            stop,
            partial(evolve, Steps(gated.manager, gated.store, gated.settings), gated.stream),
            partial(evolve, Ungated(ungated.manager, ungated.store, ungated.settings), ungated.stream),
        )
        yield gated, ungated


class _Stop:
    """A plugin that ends a run at its next event once the other one failed, or the person pressed Ctrl-C."""

    def __init__(self) -> None:
        self.asked = threading.Event()

    @hookimpl
    def valve_event(self, name: str, data: Mapping[str, Any]) -> None:
        """Stop here, if so asked."""
        if self.asked.is_set():
            raise CancelledError


def _together(stop: _Stop, *jobs: Callable[[], None]) -> None:
    with ThreadPoolExecutor(len(jobs)) as pool:
        try:
            for done in as_completed([pool.submit(job) for job in jobs]):
                done.result()
        except BaseException:
            stop.asked.set()
            raise


def _empty(out: Path | None) -> Path:
    """Return the folder to fill.

    Raises:
        ConfigError: it is not empty, or cannot be made.
    """
    if out is None:
        return Path(tempfile.mkdtemp(prefix="valve-demo-"))
    with targets.usable("--out", out):
        taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if taken:
        raise ConfigError(f"{out}: not an empty directory; a demo starts from nothing: choose another --out")
    targets.made("--out", out)
    return out.resolve()


def _runs_plainly() -> bool:
    """Whether there is no sandbox here; the commands of this demo are our own, so they may run without one."""
    from valve_plugin.config import Settings
    from valve_plugin.rollouts import sandbox

    try:
        sandbox.choose(Settings())
    except SandboxError as e:
        output.note(f"no sandbox here ({e}); the demo's commands are VALVE's own and run without one", style="yellow")
        return True
    return False
