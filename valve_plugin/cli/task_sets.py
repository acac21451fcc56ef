"""Which task set a command is about: the one that is named, else that of the repository one is in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from valve_plugin.cli import completion, output, tasks_generate
from valve_plugin.cli.session import MAKE_TASKS
from valve_plugin.errors import ConfigError

if TYPE_CHECKING:
    from valve_plugin.tasks.load import TaskSet

ABOUT = "A task directory, or the name of one in user data. Default: that of the repository you are in."
Given = Annotated[str, typer.Argument(metavar="TASKS", help=ABOUT, autocompletion=completion.sets)]


def load(given: str = "") -> TaskSet:
    """Load the task set of `place`."""
    from valve_plugin.tasks.load import load as read

    return read(place(given))


def place(given: str = "") -> Path:
    """Return where a task set is: by path, by its name in user data, or the only one about the repository at hand.

    Raises:
        TaskError: none of that name.
        ConfigError: none is named, and there is none, or several.
    """
    from valve_plugin.tasks import folder

    if given:
        return folder.find(given)
    name, sets = here()
    if len(sets) == 1:
        output.note(f"of {name}: {sets[0]}")
        return sets[0]
    if sets:
        raise ConfigError(f"there are {len(sets)} task sets of {name}, give one: {', '.join(map(str, sets))}")
    raise ConfigError(
        f"there is no task set of {name} in user data; give TASKS, a directory with repository.toml and tasks.jsonl or "
        f"a name `valve tasks list --all` shows. {MAKE_TASKS}"
    )


def here() -> tuple[str, list[Path]]:
    """Return the name of the repository at hand, and the task sets about it in user data."""
    from valve_plugin.tasks import folder

    name = tasks_generate.repository_name(".", "")
    own = (folder.default(name).name, folder.default(f"{name}__mined").name)
    return name, [path for path in folder.known() if path.name in own]
