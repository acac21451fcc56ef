"""`valve try`: does a text help the agent on this repository's tasks?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from valve_plugin.bank.scripted_bank import LABEL
from valve_plugin.cli import options, output, runs, task_sets
from valve_plugin.cli.options import Commands, Count, Json, argument, option, read_input
from valve_plugin.cli.stage import Stage
from valve_plugin.codec import plain
from valve_plugin.errors import ConfigError
from valve_plugin.records import Context
from valve_plugin.theory.budget import gate_cost
from valve_plugin.words import duration, hidden_characters, plural

if TYPE_CHECKING:
    from valve_plugin.evolve.trial import Trial, TrialResult

_MAX_BYTES = 10_000_000

commands = Commands()


@commands.add(
    "try",
    "valve try AGENTS.md                        # with it and without: does it help here?",
    "valve try skills/ --workers 8              # a folder of SKILL.md files, eight rollouts at a time",
    "valve try CLAUDE.md -c model=NAME --budget-usd 20",
    "valve try AGENTS.md --out page.html        # the answer, every task and both texts on one page",
    "valve try AGENTS.md --simulate             # without a key: a SIMULATION",
)
def try_text(
    files: Annotated[list[Path], argument("FILE", "Texts: AGENTS.md, CLAUDE.md, a SKILL.md, a folder of them.")],
    against: Annotated[list[Path], option("--against", "OTHER", "Compare with this text, not with none; repeat.")] = [],  # noqa: B006 (Typer copies it)
    tasks: Annotated[str, option("--tasks", "TASKS", "Task set. Default: that of this repository.")] = "",
    pairs: Annotated[Count, option("--pairs", "N", "Pairs at most. Default: three for each task.", min=1)] = None,
    negligible: Annotated[float, options.tolerable("--negligible", "D", "Differences up to this do not matter.")] = 0.1,
    seed: Annotated[Count, option("--seed", "SEED", "Draw other tasks, with fresh rollouts. Default: 0.")] = None,
    out: Annotated[Path | None, option("--out", "FILE", "Write a page about it, one HTML file.")] = None,
    solving: runs.Solving = runs.SOLVING,
    limits: runs.Limits = runs.LIMITS,
    json: Json = False,
) -> None:
    """Does this text help? Paired rollouts with and without it.

    Each pair is a rollout with the text and one without, at a task drawn at random. It stops when the answer is
    clear: the text helps, it harms, or it makes no difference that matters. The interval stays valid however often
    one looks. Nothing is learned, and no bank is needed or changed. Interrupted and started again, it continues;
    rollouts without a text are used again when another text is tried. Exit code 1: the text harms.
    """
    from valve_plugin.cli.progress import Progress
    from valve_plugin.evolve.trial import ANSWERS, Sides, open_trial
    from valve_plugin.report.trial import verdict

    texts, others = read_texts(files), read_texts(against)
    if texts == others:
        raise ConfigError(f"{_names(files)} and {_names(against)} hold the same text: there is nothing to compare")
    given = solving.settings("try", seed=seed, **limits.settings)
    folder = task_sets.find_folder(tasks)
    if out:
        output.require_page("--out", out)
    sides = Sides(_context(others), _context(texts))
    with (
        Progress() as progress,
        output.advise_on_stop(),
        open_trial(
            folder, given, sides, pairs=pairs, negligible=negligible, observer=progress,
            scripted=runs.serve_scripted if solving.simulate else None, say=runs.say, stages=Stage(),
        ) as trial,
    ):  # fmt: skip
        _announce(trial, ask=not (limits.yes or json))
        result = trial.run()
    from valve_plugin.tasks.names import name_patches

    names = name_patches({task.instance_id: task.patch for task in trial.tasks}, ids=True)
    name, other = _names(files), _names(against)
    said = verdict(result, name, other, negligible)
    # for the report, which shows the last answer about each text
    mark = "SIMULATION: " if solving.simulate else ""
    kept = {"verdict": mark + said, "pairs": int(result.counts.total), "text": mark + f"{name} against {other}"}
    trial.local.write_telemetry(ANSWERS, kept)
    if out:
        from valve_plugin.report.trial import render_trial_page

        page = render_trial_page(
            result, name, other, sides, negligible=negligible, simulated=solving.simulate, names=names
        )
        with output.explain_errors("--out", out):
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(page, encoding="utf-8")
    if json:
        output.emit_json({**facts(result, trial), "text": name, "against": other, "simulation": solving.simulate})
    else:
        show(result, name, other, negligible=negligible, simulate=solving.simulate, names=names)
    if result.answer == "harms":
        raise typer.Exit(output.FINDING)


# ---- the texts


def read_texts(paths: Sequence[Path]) -> list[tuple[str, str]]:
    """Return (name, text) of each file, byte for byte; a folder stands for the SKILL.md files in it.

    Raises:
        ConfigError: a file is missing, empty, too large or no UTF-8 text, or a folder holds no SKILL.md.
    """
    found = []
    for path in paths:
        if path.is_dir():
            skills = sorted(p for p in path.rglob("SKILL.md") if p.is_file())
            if not skills:
                raise ConfigError(f"{path}: no SKILL.md in this folder; name files, or a folder of skills")
            found += [(str(p.relative_to(path)), _read(p)) for p in skills]
        else:
            found.append((path.name, _read(path)))
    return found


def _read(path: Path) -> str:
    try:
        text = read_input(str(path), _MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise ConfigError(
            f"{path}: not UTF-8 text at byte {e.start + 1}; name a file of text, such as AGENTS.md"
        ) from e
    if not text.strip():
        raise ConfigError(f"{path}: the file is empty; there is nothing to try")
    if hidden := hidden_characters(text):
        output.warn(f"{path} holds characters that hide what it says: {', '.join(hidden)}")
    return text


def _context(texts: Sequence[tuple[str, str]]) -> Any:
    from valve_plugin.retrieval.block import render_texts

    return Context(text=render_texts(texts))


def _names(paths: Sequence[Path]) -> str:
    return " and ".join(map(str, paths))


# ---- before


def _announce(trial: Trial, *, ask: bool) -> None:
    """Print what the trial can tell apart and what it costs at most; ask at a terminal where that is much."""
    from valve_plugin.theory.confidence_sequence import detectable, pairs_for_no_difference

    least = detectable(len(trial.pairs), error=trial.error)
    size = f"{plural(len(trial.pairs), 'pair')} of rollouts at most, on {plural(len(trial.tasks), 'task')}"
    least_told = f"a difference of {100 * least:.0f} points from none, 4 times in 5" if least else "nothing yet"
    tells = f"tells {least_told}, if a quarter of the pairs differ by chance"
    output.note(f"plan      {size}: {tells}")
    enough = pairs_for_no_difference(trial.negligible, error=trial.error)
    if enough and enough > len(trial.pairs):
        output.note(
            f"          too few to say that a text makes no difference larger than {100 * trial.negligible:g} points: "
            f"that takes about --pairs {enough}, or a larger --negligible D"
        )
    missing = trial.missing
    if not missing:
        return
    each = trial.cost()
    need = gate_cost(missing, each, trial.settings.workers)
    money = "cost unknown" if need.usd is None else f"${need.usd:.2f}"
    time = "" if need.hours is None else f", {duration(need.hours)}"
    basis = f" ({each.basis})" if each.basis else ""
    output.note(f"cost      {plural(missing, 'rollout')} to run at most, {money}{time}{basis}; a clear answer stops it")
    if ask:
        runs.ask_before_much(missing, need.usd)


def facts(result: TrialResult, trial: Trial) -> dict[str, Any]:
    """Return the result as plain data; rates and differences are shares, not points."""
    counts = {name: int(value) for name, value in result.counts._asdict().items()}
    return {
        **plain(result),
        "counts": counts,
        "difference": result.counts.difference,
        "confidence": 1 - trial.error,
        "negligible": trial.negligible,
        "model": trial.settings.model,
        "rollouts": str(trial.local.dir),
    }


def show(
    result: TrialResult,
    name: str,
    other: str,
    *,
    negligible: float,
    simulate: bool = False,
    names: Mapping[str, str] = {},
) -> None:
    """Print the answer, on one screen."""
    from valve_plugin.report.trial import footnotes, measured_rows, moved_tasks, verdict

    if simulate:
        output.say(LABEL)
    output.say(verdict(result, name, other, negligible), style="bold")
    if result.without and result.with_text:
        output.say()
        heads = ["", other or "WITHOUT", name if other else "WITH", "DIFFERENCE"]
        rows = measured_rows(result.without, result.with_text, result.interval, simulated=simulate)
        output.table(heads, rows)
        output.say()
        gained, lost = (moved_tasks(result.by_task, sign, names) for sign in (1, -1))
        output.say(f"fixed  {gained}")
        output.say(f"broke  {lost}")
    for line in footnotes(result, name, simulated=simulate):
        output.say(line)
