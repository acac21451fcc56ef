"""What stands around a bank: the repository's task sets, the run that goes on or was stopped, the model."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valve_plugin.cli import again, attach, output
from valve_plugin.cli.output import plural
from valve_plugin.errors import ValveError
from valve_plugin.shell_words import quote

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore

NOTHING: dict[str, Any] = {"tasks": [], "run": None, "model": ""}
_LEARNS = ("valve evolve", "valve gate")
_MINI = "mini --plugin valve"
_MODEL = "PROVIDER/NAME"


def look(store: BankStore) -> dict[str, Any]:
    """Return the task sets, the last run on this machine, and the model that is named, as plain data."""
    from valve_plugin.rollouts import mini_settings

    mini_settings.load()
    view, going = attach.last(store)
    run = None
    if view.started and view.command.startswith(_LEARNS):
        typed = again.recall(store.local)  # empty in another directory, whose paths the command may name
        at = f"task {view.position} of {view.of}" if view.of else ""
        run = {
            "going": going,
            "ended": "" if going else attach.how(view),
            "at": at,
            "command": typed if typed == view.command else "",
        }
    model = store.settings({}).model or os.environ.get("MSWEA_MODEL_NAME", "")
    return {"tasks": _sets(), "run": run, "model": model}


def _sets() -> list[dict[str, Any]]:
    from valve_plugin.cli import task_sets
    from valve_plugin.tasks import split as splits
    from valve_plugin.tasks.load import ROWS_NAME

    found = []
    with suppress(ValveError, OSError):  # it is told by the commands that use one
        for path in task_sets.here()[1]:
            with (path / ROWS_NAME).open("rb") as rows:
                tasks = sum(bool(row.strip()) for row in rows)
            split = splits.read(path / splits.FILE_NAME)
            drawn = {name: len(part) for name, part in splits.parts(split).items()} if split else {}
            unused = max(0, tasks - sum(drawn.values()) - split.left_out) if split else 0
            found.append({"name": called(path), "tasks": tasks, "split": drawn, "unused": unused, "path": str(path)})
    return found


def called(path: Path) -> str:
    """Return what a command calls a task set: its name in user data, else its path."""
    from valve_plugin.bank.paths import data_dir

    return path.name.replace("__", "/") if path.parent == data_dir() / "tasks" else str(path)


def lines(standing: dict[str, Any]) -> list[tuple[str, str]]:
    """Return label and text of each line of `valve` about this. Pure."""
    found = []
    for one in standing["tasks"]:
        parts = ", ".join(f"{name} {count}" for name, count in one["split"].items()) or "no split yet"
        unused = f", {one['unused']} in none of them" if one["unused"] else ""
        found.append(("tasks", f"{one['name']}: {plural(one['tasks'], 'task')}; {parts}{unused}"))
    if run := standing["run"]:
        told = "goes on" if run["going"] else f"the last one ended: {run['ended']}"
        found.append(("run", told + (f", {run['at']}" if run["at"] else "")))
    if not standing["model"]:
        found.append(("model", f"none is named; `mini-extra config set MSWEA_MODEL_NAME {_MODEL}` names one for all"))
    return found


def stopped(standing: dict[str, Any]) -> bool:
    """Whether the last run ended before it was done. Pure."""
    return bool((run := standing["run"]) and not run["going"] and run["ended"] != "the run is done")


def prepared(standing: dict[str, Any]) -> tuple[str, str] | None:
    """Return what makes a bank without a panel learn from the tasks that are there, and why; None: nothing. Pure."""
    if not standing["tasks"] or standing["panel"]:
        return None
    one = max(standing["tasks"], key=lambda found: (bool(found["split"]), found["tasks"]))
    if one["split"]:
        return f"valve evolve {quote(one['name'])}", "the task set is split, and nothing was learned from it yet"
    if command := splitting(one["name"], one["tasks"]):
        return command, f"{plural(one['tasks'], 'task')} to learn from are there, and no split yet"
    return None


def splitting(name: str, tasks: int) -> str | None:
    """Return the command that splits so many tasks; None: they are too few. Pure."""
    from valve_plugin.tasks import sizes

    fit = sizes.fitting(tasks)
    if fit is None:
        return None
    words = ["valve split", *([quote(name)] if name else [])]
    return " ".join([*words, *([] if tasks > 150 else [f"--holdout {fit.holdout} --panel {fit.panel}"])])


def note_next(command: str | None) -> None:
    """Say what to run next, where there is something."""
    if command:
        output.note(f"next: {command}")


def with_model(command: str, model: str) -> str:
    """Return a command with a place for the model, where none is named. Pure."""
    if model:
        return command
    if command.startswith(_MINI):
        return f"{_MINI} -m {_MODEL}{command.removeprefix(_MINI)}"
    takes = command.startswith("valve evolve") and "--attach" not in command
    return f"{command} -c model={_MODEL}" if takes else command


def by_hand(standing: dict[str, Any]) -> tuple[str, str]:
    """Return the next run of mini that is worth most, and why. Pure."""
    attempts = standing["attempts"]
    if attempts["recorded"] == 0:
        return "mini --plugin valve -t 'what to do'", "no attempt is recorded yet"
    if attempts["live"] and attempts["live"]["recorded"] and not attempts["live"]["graded"]:
        check = f"valve.check={failing(standing['test_command'])}"
        return (
            f"mini --plugin valve -c {quote(check)} -t ...",
            "no attempt was graded: name a check that fails now and passes once the task is done, such as its failing "
            "test; a suite that is green now grades nothing",
        )
    return "mini --plugin valve -t ...", "nothing waits"


def failing(test_command: str) -> str:
    """Return what to name as a check: one test of the suite where it is known how to name one. Pure."""
    from valve_plugin.rollouts.live_check import is_pytest

    return f"{test_command} FAILING_TEST" if is_pytest(test_command) else "COMMAND THAT FAILS NOW"
