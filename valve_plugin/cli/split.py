"""`valve split`: which tasks evaluate, which judge, which are learned from."""

from __future__ import annotations

from typing import Annotated

import typer

from valve_plugin.cli import around, output, task_sets
from valve_plugin.cli.options import Json, examples
from valve_plugin.shell_words import quote


def register(app: typer.Typer) -> None:
    """Add `valve split`."""
    app.command(
        "split",
        epilog=examples(
            "valve split                                      # the repository you are in: 100, then 50, then the rest",
            "valve split owner/name                           # another task set",
            "valve split tasks/ --holdout 8 --panel 20        # a small one, of 40 tasks",
            "valve split tasks/ --holdout-seed 7 --json",
        ),
    )(split)


def split(
    tasks: task_sets.Given = "",
    holdout: Annotated[int, typer.Option("--holdout", min=1, metavar="N", help="Tasks kept for evaluation.")] = 100,
    panel: Annotated[
        int, typer.Option("--panel", "--panel-size", min=1, metavar="N", help="Tasks the gate judges by.")
    ] = 50,
    holdout_seed: Annotated[int, typer.Option("--holdout-seed", metavar="SEED", help="Of the holdout.")] = 42,
    panel_seed: Annotated[int, typer.Option("--panel-seed", metavar="SEED", help="Of the panel.")] = 123,
    json: Json = False,
) -> None:
    """Draw holdout, panel and stream of a task set.

    The holdout first, then the panel out of what is left, then the stream in the order of the task set; no task,
    and no bug, is in two of them. Writes split.json beside the tasks, which `valve evolve` then follows: no
    holdout task is ever learned from. Drawing the same again changes nothing; drawing another one takes
    removing the file first.
    """
    from valve_plugin.codec import pretty
    from valve_plugin.errors import TaskError
    from valve_plugin.tasks import sizes
    from valve_plugin.tasks import split as splits
    from valve_plugin.tasks.load import load

    where = task_sets.place(tasks)
    found = load(where)
    path = (where if where.is_dir() else where.parent) / splits.FILE_NAME
    try:
        made = splits.draw(
            found.repository.name,
            found.tasks,
            holdout=holdout,
            holdout_seed=holdout_seed,
            panel=panel,
            panel_seed=panel_seed,
        )
        same = found.split in (None, made)
    except TaskError:
        if found.split is None:
            raise
        same = False
    if found.split and not same:
        drawn = ", ".join(f"{name} {len(part)}" for name, part in splits.parts(found.split).items())
        unused = splits.unused(found.split, len(found.tasks))
        raise TaskError(
            f"{path} holds a split already: {drawn}. It is not drawn again, since a version chosen after seeing its "
            f"holdout voids certificates; remove the file where nothing rests on it{unused and f'. {unused}'}"
        )
    from valve_plugin.bank.files import write_atomic

    write_atomic(path, pretty(made))
    if json:
        output.emit_json(made)
        return
    output.say(f"holdout  {len(made.holdout.tasks):4}  seed {made.holdout.seed}")
    output.say(f"panel    {len(made.panel.tasks):4}  seed {made.panel.seed}")
    output.say(f"stream   {len(made.stream):4}  in the order of the task set")
    if made.left_out:
        output.say(f"left out {made.left_out:4}  the same bug as a drawn one")
    output.say(str(path))
    around.note_next(around.with_model(f"valve evolve {quote(around.called(where))}", ""))
    if len(made.panel.tasks) < sizes.REFERENCE:
        output.note(sizes.worth(len(made.panel.tasks)))
