"""From SWE-smith rows to tasks of one repository: by a source tree, or by the branches of a clone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
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
from valve_plugin.tasks.aloud import issue_text
from valve_plugin.tasks.git import git, read_tree
from valve_plugin.tasks.load import Row, check
from valve_plugin.tasks.repository import Prepared, Repository
from valve_plugin.tasks.rows import Raw, normalize
from valve_plugin.tasks.source import File


class Branches(NamedTuple):
    """What a clone's branches say: the source all bugs are made in, and the rows with the bugs as the branches have
    them."""

    files: list[File]
    rows: list[Raw]
    refusals: list[str]


def from_branches(clone: Path, rows: Sequence[Raw]) -> Branches:
    """Read the state of each row from the branch that is named after it.

    SWE-smith's branch ends with the commit that removes the hidden tests; its parent has the bug and all tests, and
    the parent of that is the untouched source.

    Raises:
        TaskError: not a git repository, or no branch of any row is there.
    """
    repository = history.git_dir(clone)
    read: list[tuple[Raw, str, str]] = []
    refusals = []
    for row in rows:
        name = str(row.get("instance_id", ""))
        try:
            read.append((row, *_commits(repository, name, row)))
        except (TaskError, RecordError) as e:
            refusals.append(f"{name}: {e}")
    if not read:
        raise TaskError(f"{clone}: none of the {len(rows)} rows has its branch here: {refusals[0] if refusals else ''}")
    trees = Counter(_tree(repository, base) for _, base, _ in read)
    common = trees.most_common(1)[0][0]
    kept = []
    for row, base, bug in read:
        if _tree(repository, base) == common:
            kept.append({**row, "patch": tree_diff(repository, base, bug)})
        else:
            refusals.append(
                f"{row['instance_id']}: made in other source than most rows; import it into a set of its own"
            )
    return Branches(history.files_at(repository, common), kept, refusals)


def image_of(rows: Sequence[Raw]) -> str:
    """Return the container image that all rows name; empty: none, or several."""
    names = {str(row.get("image_name") or "") for row in rows}
    return names.pop() if len(names) == 1 else ""


def from_image(image: str, rows: Sequence[Raw], say: Callable[[str], None]) -> Branches:
    """Read the source from an image's /testbed, and the bugs from those of its branches that the rows are named after.

    SWE-smith's images have no such branches before they are fetched: then the rows' own patches count.

    Raises:
        SandboxError: there is no container engine or no such image here; says what to do.
        TaskError: /testbed is no git repository.
    """
    git_dir, files = images.files(image, Settings(), say)
    branched = [row for row in rows if history.resolve(git_dir, str(row.get("instance_id") or ""))]
    if not branched:
        return Branches(files, list(rows), [])
    read = from_branches(git_dir, branched)
    own = {str(row["instance_id"]): row for row in read.rows}
    refused = {str(row["instance_id"]) for row in branched} - own.keys()
    kept = [row for row in rows if str(row.get("instance_id")) not in refused]
    return Branches(files, [own.get(str(row.get("instance_id")), row) for row in kept], read.refusals)


def check_rows(rows: Sequence[Raw], repository: Repository) -> tuple[list[Task], list[str]]:
    """Return (usable tasks in order, refusals) of raw rows; see `worded` for those without a problem statement."""
    lines, refusals = [], []
    for number, raw in enumerate(rows, 1):
        try:
            lines.append(codec.canonical(normalize(raw, repository.name)))
        except RecordError as e:
            lines.append(b"")
            refusals.append(f"line {number}: {raw.get('instance_id', '')}: {e}")
    tasks, more = check(lines, repository, wordless=True)
    return tasks, [re.sub(r"\bline (\d+)", r"row \1", text) for text in (*refusals, *more)]


def check_states(prepared: Prepared, tasks: Sequence[Task]) -> tuple[list[Task], list[str]]:
    """Return (tasks whose bug can be made in the source, refusals of the others)."""
    good, refusals = [], []
    for task in tasks:
        try:
            state(prepared, task)
        except TaskError as e:
            refusals.append(str(e))
        else:
            good.append(task)
    return good, refusals


def worded(prepared: Prepared, tasks: Sequence[Task], sandbox: Sandbox) -> tuple[list[Task], list[str]]:
    """Return (tasks that all have a problem statement, refusals): where there is none, one from a failing test."""
    good, refusals = [], []
    for task in tasks:
        if not task.problem_statement.strip():
            bug = state(prepared, task).bug
            text = issue_text(prepared, bug, task.patch, task.fail_to_pass, sandbox, {})
            if not text:
                refusals.append(f"{task.instance_id}: no problem statement, and one from its tests would name the fix")
                continue
            task = replace(task, problem_statement=text)
        good.append(task)
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
