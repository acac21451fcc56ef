"""`valve demo`: the whole loop on real bugs, with a scripted model, from an empty directory."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from valve_plugin.cli import output
from valve_plugin.cli.evolve import facts, show
from valve_plugin.cli.options import Json, examples
from valve_plugin.cli.session import Run, running
from valve_plugin.errors import ConfigError, SandboxError

if TYPE_CHECKING:
    from valve_plugin.records import Attempt

FULL = {"panel_size": 6, "rollouts": 3}
FAST = {"panel_size": 4, "rollouts": 2}
FULL_TASKS, FAST_TASKS = 16, 6
SEED = 4
"""Of the simulated model. Chosen after looking at eight seeds, so that the short run shows an accept and a rejection;
seed 0 accepts nothing there. What a demo shows is therefore an illustration, never a rate."""
_SHOWN_LINES = 14


def register(app: typer.Typer) -> None:
    """Add `valve demo`."""
    app.command(
        "demo",
        epilog=examples(
            "valve demo                       # 16 tasks, a panel of 6 x 3: minutes",
            "valve demo --fast --out my-demo  # 6 tasks, a panel of 4 x 2; bank, ledger and telemetry stay in my-demo",
        ),
    )(demo)


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Fewer tasks and a smaller panel.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Keep everything here. Default: a new temporary folder.")
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            "--seed", metavar="SEED", help="Another simulated model; the default was chosen to show both verdicts."
        ),
    ] = SEED,
    workers: Annotated[int, typer.Option("--workers", min=1, metavar="N", help="Rollouts run at the same time.")] = 2,
    json: Json = False,
) -> None:
    """Show the whole loop on real bugs, offline.

    The bugs, their tests, the agent and its commands are real: deepdiff 8.2.0 with bugs made by SWE-smith's
    modifiers. The model is a script, so this is a SIMULATION: it shows what VALVE does, not what a model gains.
    The first time, the repository and what its tests need are fetched from the package index.
    """
    from valve_plugin.bank.paths import local_dir
    from valve_plugin.cli.progress import Progress
    from valve_plugin.evolve.loop import evolve
    from valve_plugin.evolve.steps import Steps
    from valve_plugin.simulate.examples import deepdiff

    folder = _empty(out)
    shutil.rmtree(local_dir(folder / "bank"), ignore_errors=True)  # an earlier demo's rollouts, were the place the same
    given: dict[str, Any] = {**(FAST if fast else FULL), "seed": seed, "workers": workers, "embedding": "hashing"}
    given["unsafe_local"] = _runs_plainly()
    limit = FAST_TASKS if fast else FULL_TASKS
    with (
        Progress() as progress,
        running(str(deepdiff()), str(folder / "bank"), given, simulate=True, observer=progress) as run,
    ):
        evolve(Steps(run.manager, run.store, run.settings), run.stream[:limit])
    shutil.copytree(run.store.local.dir, folder / "local", dirs_exist_ok=True)
    carried = _carried(run)
    problems = _problems(folder / "bank")
    if json:
        output.emit_json({**facts(run.store), "simulation": True, "out": str(folder), "verified": not problems,
                          "carried": _carried_facts(carried)})  # fmt: skip
    else:
        _tell(run, carried, problems, folder)
    if problems:
        raise typer.Exit(output.FINDING)


def _empty(out: Path | None) -> Path:
    """Return the folder to fill.

    Raises:
        ConfigError: it is not empty.
    """
    if out is None:
        return Path(tempfile.mkdtemp(prefix="valve-demo-"))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out}: not an empty directory; a demo starts from nothing: choose another --out")
    out.mkdir(parents=True, exist_ok=True)
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


def _carried(run: Run) -> tuple[Attempt, str] | None:
    """Return the first stream attempt whose system message ends with a block, and that block, out of its trajectory."""
    from valve_plugin.codec import decode

    for attempt in run.store.local.attempts():
        if attempt.source == "evolve" and attempt.context_items:
            trajectory = decode(run.store.local.trajectory(attempt), dict[str, Any], where="trajectory")
            block = _ending_with_hash(str(trajectory["messages"][0]["content"]), attempt.context_hash)
            if block:
                return attempt, block
    return None


def _ending_with_hash(text: str, wanted: str) -> str:
    """Return the lines at the end of `text` that have this hash: what was injected, byte for byte; else nothing."""
    from valve_plugin.codec import digest_bytes

    starts = [0, *(i + 1 for i, character in enumerate(text) if character == "\n")]
    endings = (text[start:] for start in starts)
    return next((ending for ending in endings if digest_bytes(ending.encode("utf-8", "surrogatepass")) == wanted), "")


def _problems(bank: Path) -> list[str]:
    from valve_plugin.bank.verify import verify

    return [finding.message for finding in verify(bank) if finding.level == "error"]


def _carried_facts(carried: tuple[Attempt, str] | None) -> dict[str, Any] | None:
    if carried is None:
        return None
    attempt, _ = carried
    return {"task_id": attempt.task_id, "items": [f"{kind}: {name}" for kind, name in attempt.context_items]}


def _tell(run: Run, carried: tuple[Attempt, str] | None, problems: list[str], folder: Path) -> None:
    from valve_plugin.evolve.summary import scores
    from valve_plugin.simulate.server import BANNER

    output.say()
    show(run.store)
    output.say("\nPanel passes of each accepted version (in-sample: the gate selected by them):")
    for score in scores(run.store.entries()):
        bar = "#" * round(30 * score.passes / score.rollouts)
        output.say(f"  version {score.version}  {bar:<30}  {score.passes}/{score.rollouts}")
    if carried is not None:
        attempt, block = carried
        output.say(f"\nFrom then on the system prompt carried them; {attempt.task_id} got:")
        lines = block.splitlines()
        for line in lines[:_SHOWN_LINES]:
            output.say(f"  | {line}")
        if len(lines) > _SHOWN_LINES:
            output.say(f"  ... {output.plural(len(lines) - _SHOWN_LINES, 'more line')}")
    verdict = "; ".join(problems) or "every verdict follows from its stored outcomes"
    output.say(f"\nvalve bank verify: {verdict}")
    output.say(f"bank and ledger: {folder / 'bank'}; attempts, trajectories and telemetry: {folder / 'local'}")
    for command in ("log", "list"):
        output.say(f"  valve bank {command} --bank {shlex.quote(str(folder / 'bank'))}")
    output.say(BANNER, style="bold yellow")
