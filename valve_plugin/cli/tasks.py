"""`valve tasks`: make, check and look at task sets."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from valve_plugin.cli import again, around, completion, output, task_sets, tasks_generate, tasks_import, tasks_mine
from valve_plugin.cli.options import Json, examples
from valve_plugin.cli.session import UnsafeLocal
from valve_plugin.cli.task_sets import load
from valve_plugin.errors import ConfigError, TaskError

if TYPE_CHECKING:
    from valve_plugin.records import Task
    from valve_plugin.tasks.load import TaskSet
    from valve_plugin.tasks.verify import Verified


def register(app: typer.Typer) -> None:
    """Add `valve tasks` and its commands."""
    group = typer.Typer(
        help="Make, check and look at task sets.",
        epilog=examples(
            "valve tasks generate --n 20    # verified bugs in the repository you are in",
            "valve tasks verify owner/name  # before relying on anybody's tasks",
            "valve tasks list               # what there is of it",
        ),
        no_args_is_help=True,
    )
    group.command(
        "list",
        epilog=examples(
            "valve tasks list                      # the tasks of the repository you are in",
            "valve tasks list examples/deepdiff    # those of another set",
            "valve tasks list --all                # the task sets in user data",
            "valve tasks list owner/name --json | jq -r '.tasks[].instance_id'",
        ),
    )(list_)
    group.command(
        "show",
        epilog=examples(
            "valve tasks show func_pm_ctrl_invert_if__abc    # any unique part of an id; of the repository you are in",
            "valve tasks show examples/deepdiff TASK         # of another task set",
            "valve tasks show owner/name TASK --patch        # with the bug itself",
        ),
    )(show)
    group.command(
        "verify",
        epilog=examples(
            "valve tasks verify                                  # the task set of the repository you are in",
            "valve tasks verify owner/name                       # every task, three times with and without its fix",
            "valve tasks verify tasks/ --times 1 --limit 5       # a first impression",
            "valve tasks verify tasks/ --json | jq '.tasks[] | select(.findings != [])'",
        ),
    )(verify)
    tasks_generate.add(group)
    tasks_import.add(group)
    tasks_mine.add(group)
    app.add_typer(group, name="tasks")


def list_(
    tasks: task_sets.Given = "",
    all_: Annotated[bool, typer.Option("--all", help="List the task sets in user data instead.")] = False,
    json: Json = False,
) -> None:
    """List a set's tasks, or with --all the task sets in user data."""
    if tasks and all_:
        raise ConfigError(f"--all lists every task set, {tasks} is one; give one of them")
    if all_:
        _list_all(json)
    else:
        _list_one(tasks, json)


def show(
    tasks: Annotated[
        str, typer.Argument(metavar="TASKS", help=task_sets.ABOUT, autocompletion=completion.sets_and_ids)
    ] = "",
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="Instance id, or a part that only one has. One word alone is this.",
            autocompletion=completion.ids,
        ),
    ] = "",
    patch: Annotated[bool, typer.Option("--patch", help="Also print the patch that introduces the bug.")] = False,
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
    output.markdown(found.problem_statement)
    if patch:
        output.say()
        output.verbatim(found.patch)


@again.told()
def verify(
    tasks: task_sets.Given = "",
    times: Annotated[int, typer.Option("--times", min=1, metavar="N", help="Runs of each.")] = 3,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, metavar="N", help="Only the first N tasks. Default: all.")
    ] = None,
    unsafe_local: UnsafeLocal = False,
    json: Json = False,
) -> None:
    """Check that every task can be trusted.

    Runs the tests with the fix (all required ones must pass) and without it (none of FAIL_TO_PASS may), each
    several times: `gold` counts runs with the fix that passed, `empty fails` runs without it that failed, as they
    should. Looks for the fix and the hidden tests in the workspace and the test environment, and for lines
    of the fix in the issue text. Exit code 1 when anything was found.
    """
    from valve_plugin.cli.going_on import GoingOn
    from valve_plugin.cli.meter import Meter
    from valve_plugin.config import Settings
    from valve_plugin.rollouts import sandbox
    from valve_plugin.tasks.image import placed
    from valve_plugin.tasks.repository import prepare
    from valve_plugin.tasks.verify import Verifier

    found = load(tasks)
    settings = Settings(unsafe_local=unsafe_local)
    verifiers: dict[str, Verifier] = {}
    meter, results = Meter(len(found.tasks[:limit])), []
    with GoingOn() as going:
        prepared = prepare(found.repository, going)
        for task in found.tasks[:limit]:
            where = placed(prepared, task, settings, going)
            box = sandbox.choose(settings, where.image)
            going.on(f"verifying {task.instance_id}")
            result = verifiers.setdefault(box.name, Verifier(where, box, times, going)).verify(task)
            results.append(result)
            meter.tick(_line(result), style="red" if result.findings else "")
    if json:
        output.emit_json({"repository": found.repository.name, "times": times, "tasks": results})
    else:
        _report(results)
        if found.split is None and not any(result.findings for result in results):
            around.note_next(around.splitting(tasks, len(found.tasks)))
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
    from valve_plugin.bank.paths import data_dir
    from valve_plugin.tasks import folder
    from valve_plugin.tasks.load import load as read

    rows: list[dict[str, Any]] = []
    for path in folder.known():
        try:
            found = read(path)
        except TaskError as e:
            output.note(f"valve: {e}", style="yellow")
            continue
        about = {"repository": found.repository.name, "tasks": len(found.tasks), "split": found.split is not None}
        rows.append({**about, "made_by": folder.made_by(path), "path": str(path)})
    if json:
        output.emit_json(rows)
    elif rows:
        header = ["REPOSITORY", "TASKS", "SPLIT", "MADE BY", "PATH"]
        output.table(
            header,
            [[*list(r.values())[:2], "yes" if r["split"] else "no", *list(r.values())[3:]] for r in rows],
            can_wait=("MADE BY", "PATH"),
        )
    else:
        output.say(
            f"no task set in {data_dir() / 'tasks'}; make one of the repository you are in: valve tasks generate"
        )


def _list_one(tasks: str, json: bool) -> None:
    found = load(tasks)
    from valve_plugin.tasks import split as splits

    part = _parts(found)
    if json:
        listed = [
            {"instance_id": t.instance_id, "files": files(t), "fail_to_pass": len(t.fail_to_pass),
             "pass_to_pass": len(t.pass_to_pass), "part": part.get(t.instance_id, "")}
            for t in found.tasks
        ]  # fmt: skip
        output.emit_json({"repository": found.repository.name, "source": found.repository.source, "tasks": listed})
        return
    header = ["TASK", "FAIL", "PASS", "PART", "CHANGES"]
    output.table(
        header,
        [
            [t.instance_id, len(t.fail_to_pass), len(t.pass_to_pass), part.get(t.instance_id, ""), ", ".join(files(t))]
            for t in found.tasks
        ],
        can_wait=("CHANGES", "PASS", "FAIL"),
    )
    counts = Counter(name for t in found.tasks for name in files(t))
    output.note(f"{output.plural(len(found.tasks), 'task')} over {output.plural(len(counts), 'file')}")
    if unused := splits.unused(found.split, len(found.tasks)):
        output.note(unused, style="yellow")


def _parts(taskset: TaskSet) -> dict[str, str]:
    from valve_plugin.tasks import split as splits

    drawn = splits.parts(taskset.split) if taskset.split else {}
    return {task.instance_id: name for name, part in drawn.items() for task in part}


def _line(result: Verified) -> str:
    said = f"gold {result.gold}/{result.times}, empty fails {result.empty}/{result.times}  {result.instance_id}"
    return said + (f": {result.findings[0].kind}" if result.findings else "")


def _report(results: list[Verified]) -> None:
    bad = [result for result in results if result.findings]
    for result in bad:
        for finding in result.findings:
            output.say(f"{result.instance_id}: {finding.kind}: {finding.message}", style="red")
    good = len(results) - len(bad)
    output.say(f"{good} of {output.plural(len(results), 'task')} verified, {len(bad)} with findings")
