"""`valve split`: which tasks evaluate, which judge, which are learned from."""

from __future__ import annotations

from typing import Annotated, Literal

from valve_plugin.cli import output, task_sets
from valve_plugin.cli.options import Commands, Json, option
from valve_plugin.cli.stage import Stage
from valve_plugin.cli.status import with_model
from valve_plugin.shell_words import quote

commands = Commands()


@commands.add(
    "split",
    "valve split                                      # the repository you are in: 100, then 50, then the rest",
    "valve split tasks/ --holdout 8 --panel 20        # a small one, of 40 tasks",
    "valve split --by file                            # no file is changed by tasks of two parts",
)
def split(
    tasks: task_sets.Given = "",
    holdout: Annotated[int, option("--holdout", "N", "Tasks kept for evaluation.", min=1)] = 100,
    panel: Annotated[int, option("--panel", "N", "Tasks the gate judges by.", also="--panel-size", min=1)] = 50,
    holdout_seed: Annotated[int, option("--holdout-seed", "SEED", "Of the holdout.")] = 42,
    panel_seed: Annotated[int, option("--panel-seed", "SEED", "Of the panel.")] = 123,
    by: Annotated[
        Literal["function", "file", "bug"], option("--by", "WHAT", "What is in one part only: function, file or bug.")
    ] = "function",
    json: Json = False,
) -> None:
    """Draw holdout, panel and stream of a task set.

    Draws the holdout first, then the panel from the rest, then the stream in the order of the task set. No task, no
    bug and no changed function is in two of them; with --by file no changed file, with --by bug functions may be. A
    group that is larger than what is wanted is cut, and its rest left out. Writes split.json beside the tasks. `valve
    evolve` uses it and never learns from a holdout task. Drawing the same split again changes nothing; to draw another
    one, remove the file first.
    """
    from valve_plugin.codec import pretty
    from valve_plugin.errors import TaskError
    from valve_plugin.files import write_atomic
    from valve_plugin.tasks import split as splits
    from valve_plugin.tasks.repository import prepare_source
    from valve_plugin.tasks.task_set import load

    where = task_sets.find_folder(tasks)
    found = load(where)
    path = (where if where.is_dir() else where.parent) / splits.FILE_NAME
    name = found.repository.name
    try:
        splits.check_number(name, len(found.tasks), holdout, panel)
        with Stage() as stage:
            stage.on(f"finding what {output.plural(len(found.tasks), 'task')} change")
            groups = splits.group_tasks(prepare_source(found.repository, stage), found.tasks, by)
        made = splits.draw(
            name, found.tasks, holdout=holdout, holdout_seed=holdout_seed, panel=panel, panel_seed=panel_seed,
            groups=groups,
        )  # fmt: skip
        same = found.split in (None, made)
    except TaskError:
        if found.split is None:
            raise
        same = False
    if found.split and not same:
        drawn = ", ".join(f"{name} {len(part)}" for name, part in splits.parts(found.split).items())
        unused = splits.unused(found.split, len(found.tasks))
        raise TaskError(
            f"{path} holds a split already: {drawn}. It is not drawn again, because choosing a version after seeing "
            f"its holdout voids certificates. If nothing depends on it, remove the file first{unused and f'. {unused}'}"
        )
    write_atomic(path, pretty(made))
    if json:
        output.emit_json(made)
        return
    output.say(f"holdout  {len(made.holdout.tasks):4}  seed {made.holdout.seed}")
    output.say(f"panel    {len(made.panel.tasks):4}  seed {made.panel.seed}")
    output.say(f"stream   {len(made.stream):4}  in the order of the task set")
    if made.left_out:
        output.say(f"left out {made.left_out:4}  the same bug as another, or of a group that did not fit")
    output.say(f"groups   {len(set(groups.heads.values())):4}  by {made.by}; each is in one part")
    output.say(str(path))
    output.note("next: " + with_model(f"valve evolve {quote(task_sets.display_name(where))}", ""))
    if len(made.panel.tasks) < splits.REFERENCE:
        output.note(splits.describe_gate(len(made.panel.tasks)))
