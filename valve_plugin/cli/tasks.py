"""`valve tasks`: make, check and look at task sets; `valve split`: which tasks evaluate, judge and are learned from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from valve_plugin.cli import output, task_sets, tasks_make
from valve_plugin.cli.options import Commands, Count, Json, argument, flag, option
from valve_plugin.cli.runs import UnsafeLocal
from valve_plugin.cli.stage import Meter, Stage
from valve_plugin.cli.status import with_model
from valve_plugin.cli.task_sets import load
from valve_plugin.codec import pretty
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError, TaskError
from valve_plugin.files import write_atomic
from valve_plugin.paths import data_dir
from valve_plugin.records import Task
from valve_plugin.tasks.syntax import patch_changes
from valve_plugin.words import meant, quote

if TYPE_CHECKING:
    from valve_plugin.tasks.task_set import TaskSet

commands = Commands(
    "tasks",
    "valve tasks generate --n 20    # verified bugs in the repository you are in",
    "valve tasks verify owner/name  # before relying on anybody's tasks",
    "valve tasks list               # what there is of it",
    help="Make, check and look at task sets.",
    no_args_is_help=True,
)

splitting = Commands()


def register(app: typer.Typer) -> None:
    """Add `valve tasks` and `valve split`."""
    app.add_typer(commands)
    app.registered_commands += splitting.registered_commands


@commands.add(
    "list",
    "valve tasks list                      # the tasks of the repository you are in",
    "valve tasks list --all                # the task sets in user data",
    "valve tasks list owner/name --json | jq -r '.tasks[].instance_id'",
)
def list_(
    tasks: task_sets.Given = "",
    all_: Annotated[bool, flag("--all", "List the task sets in user data instead.")] = False,
    json: Json = False,
) -> None:
    """List a set's tasks, or with --all the task sets in user data."""
    from valve_plugin.tasks import split as splits
    from valve_plugin.tasks import task_set

    if tasks and all_:
        raise ConfigError(f"--all lists every task set, {tasks} is one; give one of them")
    if all_:
        sets = []
        for path in task_set.known_folders():
            try:
                one = task_set.load(path)
            except TaskError as e:
                output.warn(str(e))
                continue
            about = {"repository": one.repository.name, "tasks": len(one.tasks), "split": one.split is not None}
            sets.append({**about, "made_by": task_set.made_by(path), "path": str(path)})
        if json:
            output.emit_json(sets)
        elif sets:
            shown = [[*(("yes" if v else "no") if isinstance(v, bool) else v for v in row.values())] for row in sets]
            output.table(["REPOSITORY", "TASKS", "SPLIT", "MADE BY", "PATH"], shown)
        else:
            where = f"no task set in {data_dir() / 'tasks'}"
            output.say(f"{where}; `valve tasks generate` makes one of the current repository")
        return
    found = load(tasks)
    drawn = splits.parts(found.split) if found.split else {}
    part = {task.instance_id: name for name, members in drawn.items() for task in members}
    rows = [
        {"instance_id": t.instance_id, "files": files(t), "fail_to_pass": len(t.fail_to_pass),
         "pass_to_pass": len(t.pass_to_pass), "part": part.get(t.instance_id, "")}
        for t in found.tasks
    ]  # fmt: skip
    if json:
        output.emit_json({"repository": found.repository.name, "source": found.repository.source, "tasks": rows})
        return
    columns = ("instance_id", "fail_to_pass", "pass_to_pass", "part")
    cells = [[*(row[name] for name in columns), ", ".join(files(t))] for row, t in zip(rows, found.tasks, strict=True)]
    output.table(["TASK", "FAIL", "PASS", "PART", "CHANGES"], cells, prose=("CHANGES",))
    changed = {name for t in found.tasks for name in files(t)}
    output.note(f"{output.plural(len(found.tasks), 'task')} over {output.plural(len(changed), 'file')}")
    if unused := splits.unused(found.split, len(found.tasks)):
        output.note(unused, style="yellow")


@commands.add(
    "show",
    "valve tasks show func_pm_ctrl_invert_if__abc    # any unique part of an id; of the repository you are in",
    "valve tasks show owner/name TASK --patch        # with the bug itself",
)
def show(
    tasks: Annotated[str, argument("TASKS", task_sets.ABOUT)] = "",
    task: Annotated[str, argument("TASK", "Instance id, or a part that only one has. One word alone is this.")] = "",
    patch: Annotated[bool, flag("--patch", "Also print the patch that introduces the bug.")] = False,
    json: Json = False,
) -> None:
    """Show one task: its issue, its tests, and with --patch its bug."""
    if not tasks:
        raise ConfigError("TASK is missing: an instance id, or a part that only one has; `valve tasks list` shows them")
    found = pick(load(tasks if task else ""), task or tasks)
    if json:
        output.emit_json(found)
        return
    output.say(found.instance_id, style="bold")
    output.say(f"repository    {found.repo}")
    output.say(f"changes       {', '.join(files(found))}")
    output.say(f"FAIL_TO_PASS  {output.plural(len(found.fail_to_pass), 'test')}")
    for test in found.fail_to_pass[:10]:
        output.say(f"              {test}")
    if len(found.fail_to_pass) > 10:
        output.say(f"              and {len(found.fail_to_pass) - 10} more; --json has them all")
    output.say(f"PASS_TO_PASS  {output.plural(len(found.pass_to_pass), 'test')}")
    output.say()
    output.say(found.problem_statement)
    if patch:
        output.say()
        output.verbatim(found.patch)


@commands.add(
    "verify",
    "valve tasks verify                                  # the task set of the repository you are in",
    "valve tasks verify owner/name                       # every task, three times with and without its fix",
    "valve tasks verify tasks/ --times 1 --limit 5       # a first impression",
)
@output.advise_on_stop()
def verify(
    tasks: task_sets.Given = "",
    times: Annotated[int, option("--times", "N", "Runs of each.", min=1)] = 3,
    limit: Annotated[Count, option("--limit", "N", "Only the first N tasks. Default: all.", min=1)] = None,
    unsafe_local: UnsafeLocal = False,
    json: Json = False,
) -> None:
    """Check that every task can be trusted.

    Runs the tests several times with the fix (all required ones must pass) and without it (all FAIL_TO_PASS must
    fail). `gold` counts runs with the fix that passed, `empty fails` runs without it that failed, as they should.
    Also looks for the fix and the hidden tests in the workspace and the test environment, and for lines of the fix in
    the issue text. Exit code 1 when anything was found.
    """
    from valve_plugin.sandbox import bubblewrap
    from valve_plugin.tasks.image import place_in_image
    from valve_plugin.tasks.repository import prepare
    from valve_plugin.tasks.verify import Verifier

    found = load(tasks)
    settings = Settings(unsafe_local=unsafe_local)
    verifiers: dict[str, Verifier] = {}
    meter, results = Meter(len(found.tasks[:limit])), []
    with Stage() as going:
        prepared = prepare(found.repository, going)
        for task in found.tasks[:limit]:
            where = place_in_image(prepared, task, settings, going)
            box = bubblewrap.choose(settings, where.image)
            going.on(f"verifying {task.instance_id}")
            result = verifiers.setdefault(box.name, Verifier(where, box, times, going)).verify(task)
            results.append(result)
            counts = f"gold {result.gold}/{result.times}, empty fails {result.empty}/{result.times}"
            why = f": {result.findings[0].kind}" if result.findings else ""
            meter.tick(f"{counts}  {result.instance_id}{why}", style="red" if why else "")
    if json:
        output.emit_json({"repository": found.repository.name, "times": times, "tasks": results})
    else:
        for result in results:
            for finding in result.findings:
                output.say(f"{result.instance_id}: {finding.kind}: {finding.message}", style="red")
        bad = sum(bool(result.findings) for result in results)
        output.say(f"{len(results) - bad} of {output.plural(len(results), 'task')} verified, {bad} with findings")
        command = "" if found.split else task_sets.split_command(tasks, len(found.tasks))
        if command and not bad:
            output.note(f"next: {command}")
    if any(result.findings for result in results):
        raise typer.Exit(output.FINDING)


def pick(taskset: TaskSet, wanted: str) -> Task:
    """Return the task with this id, or the only one whose id holds this text.

    Raises:
        ConfigError: none (with the nearest ids), or several.
    """
    if wanted in taskset.by_id:
        return taskset.by_id[wanted]
    found = [task for name, task in taskset.by_id.items() if wanted in name]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{len(found)} tasks have {wanted!r} in their id, the first {found[0].instance_id}; say more")
    hint = meant(wanted, taskset.by_id, near=0.3) or "`valve tasks list TASKS` shows them"
    raise ConfigError(f"no task {wanted!r} among the {len(taskset.tasks)} of {taskset.repository.name}; {hint}")


def files(task: Task) -> list[str]:
    """Return the files a task's bug changes."""
    return list(dict.fromkeys(change.path for change in patch_changes(task.patch)))


@splitting.add(
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


commands.registered_commands += tasks_make.commands.registered_commands
