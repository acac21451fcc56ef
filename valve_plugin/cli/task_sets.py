"""Which task set a command is about: the one that is named, else that of the current repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from valve_plugin.bank.identity import find_bank, own_names
from valve_plugin.checkout import find
from valve_plugin.cli import output
from valve_plugin.cli.init import detect_name
from valve_plugin.cli.options import argument
from valve_plugin.config import load as settings_of
from valve_plugin.errors import ConfigError, TaskError
from valve_plugin.paths import data_dir
from valve_plugin.words import quote

if TYPE_CHECKING:
    from valve_plugin.tasks.task_set import TaskSet

MAKE_TASKS = "`valve tasks generate`, `valve tasks import` and `valve tasks mine` make one"

ABOUT = (
    "A task set: its directory, or its name in `valve tasks list --all`. Default: that of the repository you are in."
)
Given = Annotated[str, argument("TASKS", ABOUT)]


def load(given: str = "") -> TaskSet:
    """Load a task set; see `find_folder`."""
    from valve_plugin.tasks.task_set import load as read

    return read(find_folder(given))


def find_folder(given: str = "") -> Path:
    """Return where a task set is: by path, by its name in user data, or the only one of the current repository.

    Raises:
        TaskError: none of that name.
        ConfigError: none is named, and there is none, or several.
    """
    from valve_plugin.tasks import task_set

    if given:
        return task_set.find(given)
    name, sets = of_this_repository()
    if len(sets) == 1:
        output.note(f"task set: {sets[0]}")
        return sets[0]
    if sets:
        raise ConfigError(f"there are {len(sets)} task sets of {name}, give one: {', '.join(map(str, sets))}")
    raise ConfigError(
        f"there is no task set of {name} in user data; give TASKS, a directory with repository.toml and tasks.jsonl or "
        f"a name `valve tasks list --all` shows. {MAKE_TASKS}; `valve demo` needs none"
    )


def of_this_repository() -> tuple[str, list[Path]]:
    """Return the name of the current repository, and the task sets in user data that are of it.

    First those with a name that its bank, a remote or a project file gives, also as SWE-smith's mirrors have it; if
    there is none, those with such a name and another owner, as that of a fork.
    """
    from valve_plugin.tasks import task_set

    name, here = _detected_name(Path()), find(Path())
    names = {task_set.plain_name(one).lower() for one in (name, here.name, *own_names(here))}
    sets = {path: path.name.lower().removesuffix("__mined") for path in task_set.known_folders()}
    found = [path for path, slug in sets.items() if slug in {one.replace("/", "__") for one in names}]
    last = {_joined(one.rpartition("/")[2]) for one in names}
    return name, found or [path for path, slug in sets.items() if _joined(slug.rpartition("__")[2]) in last]


def _joined(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name)


def display_name(path: Path) -> str:
    """Return what a command calls a task set: its name in user data, else its path."""
    return path.name.replace("__", "/") if path.parent == data_dir() / "tasks" else str(path)


def repository_name(path: str, given: str) -> str:
    """Return the name of a source's repository: the given one, that of its bank, or what `valve init` would find.

    Raises:
        TaskError: the name found is not owner/name.
    """
    name = given
    if not name:
        pypi = path.startswith("pypi:")
        name = path.removeprefix("pypi:").partition("==")[0] if pypi else _detected_name(Path(path))
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)?", name):
        raise TaskError(f"repository name {name!r}, expected owner/name or name; say it with --repo")
    return name


def _detected_name(path: Path) -> str:
    from valve_plugin.tasks.task_set import plain_name

    checkout = find(path)
    bank = find_bank("", checkout)
    return (settings_of(bank).repo if bank.is_dir() else "") or plain_name(detect_name(checkout).value)


def split_command(name: str, tasks: int) -> str:
    """Return the command that splits a set of `tasks` tasks; empty where they are too few."""
    from valve_plugin.tasks import split

    fit = split.fitting_sizes(tasks)
    if fit is None:
        return ""
    words = ["valve split", *([quote(name)] if name else [])]
    return " ".join([*words, *([] if tasks > 150 else [f"--holdout {fit.holdout} --panel {fit.panel}"])])
