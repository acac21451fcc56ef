"""From SWE-smith rows to tasks of one repository: by a source tree, or by the branches of a clone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import asdict, replace

from valve_plugin import codec
from valve_plugin.config import Settings
from valve_plugin.errors import RecordError, TaskError
from valve_plugin.records import Task
from valve_plugin.rollouts.protect import test_files
from valve_plugin.rollouts.sandbox import Sandbox
from valve_plugin.rollouts.state import state
from valve_plugin.rollouts.workspace import tree_diff
from valve_plugin.tasks import history
from valve_plugin.tasks import image as images
from valve_plugin.tasks.aloud import issue
from valve_plugin.tasks.git import git, read_tree
from valve_plugin.tasks.load import Row, check_numbered
from valve_plugin.tasks.repository import Prepared, Repository
from valve_plugin.tasks.rows import Raw, Rows, normalize
from valve_plugin.tasks.source import File

Refused = dict[int, str]
"""Why rows cannot be used, by their numbers."""


class Branches(NamedTuple):
    """What a clone's branches say: the source all bugs are made in, and the rows with the bugs as the branches have
    them."""

    files: list[File]
    rows: Rows
    refusals: Refused


def from_branches(clone: Path, rows: Rows) -> Branches:
    """Read the state of each row from the branch that is named after it.

    SWE-smith's branch ends with the commit that removes the hidden tests; its parent has the bug and all tests, and
    the parent of that is the untouched source.

    Raises:
        TaskError: not a git repository, or no branch of any row is there.
    """
    repository = history.git_dir(clone)
    read: dict[int, tuple[str, str]] = {}
    refusals: Refused = {}
    for number, row in rows.items():
        name = str(row.get("instance_id", ""))
        try:
            read[number] = _commits(repository, name, row)
        except (TaskError, RecordError) as e:
            refusals[number] = f"{name}: {e}"
    if not read:
        first = next(iter(refusals.values()), "")
        raise TaskError(f"{clone}: none of the {len(rows)} rows has its branch here: {first}")
    trees = Counter(_tree(repository, base) for base, _ in read.values())
    common = trees.most_common(1)[0][0]
    kept: Rows = {}
    for number, (base, bug) in read.items():
        if _tree(repository, base) == common:
            kept[number] = {**rows[number], "patch": tree_diff(repository, base, bug)}
        else:
            name = rows[number]["instance_id"]
            refusals[number] = f"{name}: made in other source than most rows; import it into a set of its own"
    return Branches(history.files_at(repository, common), kept, refusals)


def image_of(rows: Rows) -> str:
    """Return the container image that all rows name; empty: none, or several."""
    names = {str(row.get("image_name") or "") for row in rows.values()}
    return names.pop() if len(names) == 1 else ""


def from_image(image: str, rows: Rows, say: Callable[[str], None]) -> Branches:
    """Read the source from an image's /testbed, and the bugs from those of its branches that the rows are named after.

    SWE-smith's images have no such branches before they are fetched: then the rows' own patches count.

    Raises:
        SandboxError: there is no container engine or no such image here; says what to do.
        TaskError: /testbed is no git repository.
    """
    git_dir, files = images.files(image, Settings(), say)
    branched = {n: row for n, row in rows.items() if history.resolve(git_dir, str(row.get("instance_id") or ""))}
    if not branched:
        return Branches(files, rows, {})
    read = from_branches(git_dir, branched)
    kept = {number: read.rows.get(number, row) for number, row in rows.items() if number not in read.refusals}
    return Branches(files, kept, read.refusals)


def check_rows(rows: Rows, repository: Repository, what: str) -> tuple[dict[int, Task], Refused]:
    """Return (usable tasks, refusals) of raw rows; see `worded` for those without a problem statement.

    Args:
        what: their numbers count.
    """
    lines: dict[int, bytes] = {}
    refusals: Refused = {}
    for number, raw in rows.items():
        try:
            lines[number] = codec.canonical(normalize(raw, repository.name))
        except RecordError as e:
            refusals[number] = f"{raw.get('instance_id', '')}: {e}"
    tasks, more = check_numbered(lines.items(), repository, wordless=True, what=what)
    return tasks, refusals | more


def check_states(prepared: Prepared, tasks: dict[int, Task]) -> tuple[dict[int, Task], Refused]:
    """Return (tasks whose bug can be made in the source, refusals of the others)."""
    good: dict[int, Task] = {}
    refusals: Refused = {}
    for number, task in tasks.items():
        try:
            state(prepared, task)
        except TaskError as e:
            refusals[number] = str(e)
        else:
            good[number] = task
    return good, refusals


def worded(prepared: Prepared, tasks: dict[int, Task], sandbox: Sandbox) -> tuple[dict[int, Task], Refused]:
    """Return (tasks that all have a problem statement, refusals): where there is none, one from a failing test."""
    good: dict[int, Task] = {}
    refusals: Refused = {}
    for number, task in tasks.items():
        if task.problem_statement.strip():
            good[number] = task
            continue
        bug = state(prepared, task).bug
        made, why = issue(prepared, bug, task.patch, task.fail_to_pass, sandbox, {})
        if made:
            good[number] = replace(task, problem_statement=made.text(task.fail_to_pass, task.patch))
        else:
            refusals[number] = f"{task.instance_id}: no problem statement, and none can be made from its tests: {why}"
    return good, refusals


def to_row(task: Task) -> Row:
    """Return a task as a line of a task file."""
    fields: dict[str, Any] = asdict(task)
    return Row(**fields)


def _commits(repository: Path, name: str, row: Raw) -> tuple[str, str]:
    """Return (base, bug) of a row's branch.

    Raises:
        TaskError: no such branch, or it is not made as SWE-smith makes them.
    """
    tip = history.resolve(repository, name) if name else ""
    if not tip:
        raise TaskError("the clone has no branch of that name; git fetch it, or give --source")
    chain = git("rev-list", "--first-parent", "-3", tip, git_dir=repository).decode().split()
    hidden = test_files(normalize(row, "x")["FAIL_TO_PASS"])
    removed = [path for path in hidden if path not in read_tree(repository, tip)]
    bug = 1 if removed else 0
    if len(chain) < bug + 2:
        raise TaskError(f"its branch has {len(chain)} commits, expected the source, the bug, and the tests' removal")
    return chain[bug + 1], chain[bug]


def _tree(repository: Path, commit: str) -> str:
    return git("rev-parse", f"{commit}^{{tree}}", git_dir=repository).decode().strip()
