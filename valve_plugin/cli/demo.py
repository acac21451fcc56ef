"""`valve demo`: the whole loop on real bugs, gated and ungated, with a scripted model, from an empty directory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from valve_plugin.cli import output
from valve_plugin.cli.options import Commands, Count, Json, flag, option
from valve_plugin.cli.runs import open_run
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError, SandboxError
from valve_plugin.extras import runnable
from valve_plugin.paths import local_dir
from valve_plugin.words import quote

if TYPE_CHECKING:
    from valve_plugin.lab.demo import DemoResult, Size, TaskResult

commands = Commands()


@commands.add(
    "demo",
    "valve demo                       # 16 tasks, a panel of 8 x 3: minutes",
    "valve demo --fast --out my-demo  # 12 tasks, a panel of 8 x 2; all of it stays in my-demo",
)
def demo(
    fast: Annotated[bool, flag("--fast", "Fewer tasks and a smaller panel.")] = False,
    out: Annotated[Path | None, option("--out", "DIR", "Keep everything here. Default: a temporary folder.")] = None,
    seed: Annotated[Count, option("--seed", "SEED", "Another scripted model.", min=0)] = None,
    json: Json = False,
) -> None:
    """Show the whole loop on real bugs, offline.

    The bugs, their tests, the agent and its commands are real: funcy 2.0 with bugs made by SWE-smith's modifiers. The
    model is a script, so this is a SIMULATION: it shows what VALVE does, not what a model gains. Two banks learn from
    the same tasks: first one through the gate, then one that takes whatever is proposed. The script proposes harmful
    notes, baits, as often as useful ones. In the end both banks are read on tasks that neither learned from. The first
    time, the repository and what its tests need are fetched from the package index.
    """
    from valve_plugin.bank.verify import verify
    from valve_plugin.evidence.summary import bank_facts
    from valve_plugin.lab import demo as lab
    from valve_plugin.sandbox import bubblewrap

    folder, size = _make_folder(out), lab.FAST if fast else lab.FULL
    tasks = lab.task_folder(folder, size)
    given: dict[str, Any] = {**size.settings, "workers": 4, "embedding": "hashing"}
    given["seed"] = size.seed if seed is None else seed
    try:
        bubblewrap.choose(Settings())
    except SandboxError as e:
        output.note(f"no sandbox here ({e}); the demo's commands are VALVE's own and run without one", style="yellow")
        given["unsafe_local"] = True
    results = {name: _learn(folder / name, tasks, given, size) for name in ("gated", "ungated")}
    found = [one for result in results.values() for one in verify(result.run.store.dir) if one.level == "error"]
    if json:
        facts: dict[str, Any] = {}
        for name, result in results.items():
            passed = {task: one.passed for task, one in result.tasks.items()}
            share = [sum(result.passed) / sum(result.attempts)]
            before, after = (one._asdict() for one in result.holdout)
            facts[name] = {**bank_facts(result.run.store), "passed": passed, "share": share}
            facts[name] |= {"baits": dict(result.baits), "holdout": {"without": before, "with": after}}
        output.emit_json({**facts, "simulation": True, "out": str(folder), "verified": not found})
    else:
        _show(results, [one.message for one in found], folder, tasks, size)
    if found:
        raise typer.Exit(output.FINDING)


def _learn(folder: Path, tasks: Path, given: Mapping[str, Any], size: Size) -> DemoResult:
    """Learn from the first tasks of the stream, with a gate or without one, and read the holdout."""
    from valve_plugin.cli.progress import Progress
    from valve_plugin.lab import demo as lab
    from valve_plugin.lab.run import share_rollouts

    bank, gated = folder / "bank", folder.name == "gated"
    shutil.rmtree(local_dir(bank), ignore_errors=True)  # rollouts of an earlier demo in the same folder
    with (
        Progress(f"{folder.name:8} ") as progress,
        open_run(
            str(tasks), str(bank), given, simulate=True, proposals=lab.PROPOSALS, gated=gated, observer=progress
        ) as opened,
    ):
        share_rollouts(bank, folder.parent / "rollouts", lab.SHARED)
        run = opened._replace(stream=opened.stream[: size.tasks])
        progress.begin(run)
        lab.learn(run, size, gated=gated)
        shutil.copytree(run.store.local.dir, folder / "local", dirs_exist_ok=True)
        return lab.read_result(run)


def _make_folder(out: Path | None) -> Path:
    """Return the folder to fill.

    Raises:
        ConfigError: it is not empty, or cannot be made.
    """
    if out is None:
        return Path(tempfile.mkdtemp(prefix="valve-demo-"))
    with output.explain_errors("--out", out):
        occupied = out.exists() and (not out.is_dir() or any(out.iterdir()))
    if occupied:
        raise ConfigError(f"{out}: not an empty directory; a demo starts from nothing: choose another --out")
    output.make_folder("--out", out)
    return out.resolve()


def _show(results: Mapping[str, DemoResult], problems: list[str], folder: Path, tasks: Path, size: Size) -> None:
    from valve_plugin.lab.simulation.server import BANNER
    from valve_plugin.tasks.names import task_names

    banks = [quote(str(result.run.store.dir)) for result in results.values()]
    output.say()
    gated, ungated = (results[name].tasks for name in ("gated", "ungated"))
    names = task_names(str(tasks), (), ids=True)
    table = [[names.get(task, task), *_cells(gated[task]), *_cells(ungated[task])] for task in gated if task in ungated]
    output.table(["TASK", "GATED", "VERDICT", "VERSION", "UNGATED", "TAKEN", "UNGATED VERSION"], table)
    for name, result in results.items():
        bank, attempts = result.run.store.bank, output.plural(sum(result.attempts), "attempt")
        items = output.plural(len(bank.items), "note")
        output.say(f"{name:8} {sum(result.passed)} of {attempts} passed; version {bank.version} holds {items}")
    output.say()
    for line in _story(results["gated"], results["ungated"], size):
        output.say(line)
    verdict = "; ".join(problems) or "both intact; every verdict follows from its stored outcomes"
    output.say(f"\nvalve bank verify: {verdict}")
    output.say(f"banks and ledgers: {folder}/*/bank; attempts, trajectories and telemetry: {folder}/*/local")
    valve = runnable("valve")
    for command in ("bank log", "bank list", "certify"):
        output.say(f"  {valve} {command} --bank {banks[0]}")
    output.say(f"  {valve} report --compare {' '.join(banks)} --open")
    output.say(BANNER, style="bold yellow")


def _story(gated: DemoResult, ungated: DemoResult, size: Size) -> Iterator[str]:
    """Yield what the run showed, in a few sentences; all numbers are this run's."""
    kept_out, baits = gated.baits["kept_out"], sum(gated.baits.values())
    yield "What to see (SIMULATION; the script proposes harmful notes, baits, as often as useful ones):"
    judged, held = output.plural(gated.proposals, "proposal"), sum(ungated.baits.values())
    yield (
        f"- The gate judged {judged}, {baits} of them with a bait, and kept {kept_out} of these {baits} out. "
        f"Without a gate {ungated.baits['taken']} of {held} with a bait were taken."
    )
    if gated.panel and gated.run.store.bank.version:
        first, last = gated.panel
        yield f"- On the panel, which the gate judges by, {first} passed in the beginning and {last} with its bank."
    (empty, behind), (_, without) = gated.holdout, ungated.holdout
    yield (
        f"- On {output.plural(size.holdout, 'task')} that neither learned from, {empty} attempts passed without notes, "
        f"{behind} with the gated bank, {without} with the ungated one."
    )
    if behind.share <= max(empty.share, without.share):
        yield "  So the gated bank is not ahead here: a short run does not always show what a gate is for."


def _cells(result: TaskResult) -> list[object]:
    passed = f"{result.passed}/{result.attempts}"
    if result.proposal:
        return [passed, result.proposal.outcome, result.proposal.version]
    return [passed, "" if 0 < result.passed < result.attempts else "not mixed", ""]
