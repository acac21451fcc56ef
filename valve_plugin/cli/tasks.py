"""`valve tasks`: make, check and look at task sets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from valve_plugin.cli import output, resume, task_sets, tasks_make
from valve_plugin.cli.options import Commands, Json, argument, flag, option
from valve_plugin.cli.runs import UnsafeLocal
from valve_plugin.cli.task_sets import load
from valve_plugin.errors import ConfigError, TaskError

if TYPE_CHECKING:
    from valve_plugin.records import Task
    from valve_plugin.tasks.task_set import TaskSet
    from valve_plugin.tasks.verify import Verification


commands = Commands(
    "tasks",
    "valve tasks generate --n 20    # verified bugs in the repository you are in",
    "valve tasks verify owner/name  # before relying on anybody's tasks",
    "valve tasks list               # what there is of it",
    help="Make, check and look at task sets.",
    no_args_is_help=True,
)


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
    if tasks and all_:
        raise ConfigError(f"--all lists every task set, {tasks} is one; give one of them")
    if all_:
        _list_all(json)
    else:
        _list_one(tasks, json)


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
@resume.advise_on_stop()
def verify(
    tasks: task_sets.Given = "",
    times: Annotated[int, option("--times", "N", "Runs of each.", min=1)] = 3,
    limit: Annotated[int | None, option("--limit", "N", "Only the first N tasks. Default: all.", min=1)] = None,
    unsafe_local: UnsafeLocal = False,
    json: Json = False,
) -> None:
    """Check that every task can be trusted.

    Runs the tests several times with the fix (all required ones must pass) and without it (all FAIL_TO_PASS must
    fail). `gold` counts runs with the fix that passed, `empty fails` runs without it that failed, as they should.
    Also looks for the fix and the hidden tests in the workspace and the test environment, and for lines of the fix in
    the issue text. Exit code 1 when anything was found.
    """
    from valve_plugin.cli.stage import Meter, Stage
    from valve_plugin.config import Settings
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
            meter.tick(_line(result), style="red" if result.findings else "")
    if json:
        output.emit_json({"repository": found.repository.name, "times": times, "tasks": results})
    else:
        _report(results)
        command = "" if found.split else task_sets.split_command(tasks, len(found.tasks))
        if command and not any(result.findings for result in results):
            output.note(f"next: {command}")
    if any(result.findings for result in results):
        raise typer.Exit(output.FINDING)


def pick(taskset: TaskSet, wanted: str) -> Task:
    """Return the task with this id, or the only one whose id holds this text.

    Raises:
        ConfigError: none (with the nearest ids), or several.
    """
    from difflib import get_close_matches

    if wanted in taskset.by_id:
        return taskset.by_id[wanted]
    found = [task for name, task in taskset.by_id.items() if wanted in name]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"{len(found)} tasks have {wanted!r} in their id, the first {found[0].instance_id}; say more")
    near = get_close_matches(wanted, taskset.by_id, n=1, cutoff=0.3)
    hint = f"did you mean {near[0]}?" if near else "`valve tasks list TASKS` shows them"
    raise ConfigError(f"no task {wanted!r} among the {len(taskset.tasks)} of {taskset.repository.name}; {hint}")


def files(task: Task) -> list[str]:
    """Return the files a task's bug changes."""
    lines = task.patch.splitlines()
    names = [line[4:].split("\t")[0] for line in lines if line.startswith(("--- ", "+++ "))]
    return list(dict.fromkeys(name.removeprefix("a/").removeprefix("b/") for name in names if name != "/dev/null"))


def _list_all(json: bool) -> None:
    from valve_plugin.paths import data_dir
    from valve_plugin.tasks import task_set

    rows: list[dict[str, Any]] = []
    for path in task_set.known_folders():
        try:
            found = task_set.load(path)
        except TaskError as e:
            output.note(f"valve: {e}", style="yellow")
            continue
        about = {"repository": found.repository.name, "tasks": len(found.tasks), "split": found.split is not None}
        rows.append({**about, "made_by": task_set.made_by(path), "path": str(path)})
    if json:
        output.emit_json(rows)
    elif rows:
        shown = [[*(("yes" if v else "no") if isinstance(v, bool) else v for v in row.values())] for row in rows]
        output.table(["REPOSITORY", "TASKS", "SPLIT", "MADE BY", "PATH"], shown)
    else:
        output.say(f"no task set in {data_dir() / 'tasks'}; `valve tasks generate` makes one of the current repository")


def _list_one(tasks: str, json: bool) -> None:
    from valve_plugin.tasks import split as splits

    found = load(tasks)
    drawn = splits.parts(found.split) if found.split else {}
    part = {task.instance_id: name for name, members in drawn.items() for task in members}
    if json:
        listed = [
            {"instance_id": t.instance_id, "files": files(t), "fail_to_pass": len(t.fail_to_pass),
             "pass_to_pass": len(t.pass_to_pass), "part": part.get(t.instance_id, "")}
            for t in found.tasks
        ]  # fmt: skip
        output.emit_json({"repository": found.repository.name, "source": found.repository.source, "tasks": listed})
        return
    rows = [
        [t.instance_id, len(t.fail_to_pass), len(t.pass_to_pass), part.get(t.instance_id, ""), ", ".join(files(t))]
        for t in found.tasks
    ]
    output.table(["TASK", "FAIL", "PASS", "PART", "CHANGES"], rows, prose=("CHANGES",))
    changed = {name for t in found.tasks for name in files(t)}
    output.note(f"{output.plural(len(found.tasks), 'task')} over {output.plural(len(changed), 'file')}")
    if unused := splits.unused(found.split, len(found.tasks)):
        output.note(unused, style="yellow")


def _line(result: Verification) -> str:
    counts = f"gold {result.gold}/{result.times}, empty fails {result.empty}/{result.times}  {result.instance_id}"
    return counts + (f": {result.findings[0].kind}" if result.findings else "")


def _report(results: list[Verification]) -> None:
    for result in results:
        for finding in result.findings:
            output.say(f"{result.instance_id}: {finding.kind}: {finding.message}", style="red")
    bad = sum(bool(result.findings) for result in results)
    output.say(f"{len(results) - bad} of {output.plural(len(results), 'task')} verified, {bad} with findings")


commands.registered_commands += tasks_make.commands.registered_commands
