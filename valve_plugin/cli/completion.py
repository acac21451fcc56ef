"""What a shell completes of task sets: their names, and the ids of their tasks. Says nothing: a shell would show it."""

from __future__ import annotations

import typer

from valve_plugin.errors import ValveError


def sets() -> list[str]:
    """Return the names of the task sets in user data; none where it cannot be read."""
    from valve_plugin.tasks import folder

    try:
        return folder.names()
    except OSError:
        return []


def ids(ctx: typer.Context) -> list[str]:
    """Return the ids of the task set that is typed already, else of that of the repository at hand."""
    from valve_plugin.cli import task_sets
    from valve_plugin.tasks import folder
    from valve_plugin.tasks.load import load

    given = ctx.params.get("tasks")
    try:
        found = [folder.find(given)] if given else task_sets.here()[1]
        return [task.instance_id for path in found for task in load(path).tasks]
    except (ValveError, OSError):
        return []


def sets_and_ids(ctx: typer.Context) -> list[str]:
    """Return both, where either may stand."""
    return [*sets(), *ids(ctx)]
