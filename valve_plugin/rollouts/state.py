"""A task's two states in the repository's store: the bug with its tests, and what the agent gets."""

from __future__ import annotations

from pathlib import Path

from valve_plugin.errors import InfrastructureError, TaskError
from valve_plugin.records import Record, Task
from valve_plugin.rollouts.protect import test_files
from valve_plugin.rollouts.slots import slot
from valve_plugin.tasks.git import git, read_tree, write_tree
from valve_plugin.tasks.repository import Prepared


class State(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Commit ids, neither with a parent: nothing but its own files can be reached from one."""

    bug: str
    """Bug applied, all tests there."""
    bug_tree: str
    """Tree id of `bug`."""
    tip: str
    """Bug applied, files with FAIL_TO_PASS tests removed: what the agent gets."""


def state(prepared: Prepared, task: Task) -> State:
    """Return the states of a task, made on first use and kept as refs of the store.

    Raises:
        TaskError: the patch does not apply to the base, changes nothing, or a FAIL_TO_PASS file does not exist.
    """
    refs = [f"refs/valve/{task.content_hash}/{name}" for name in ("bug", "tip")]
    known = git("for-each-ref", "--format=%(objectname) %(tree)", *refs, git_dir=prepared.store).decode().split()
    if len(known) == 4:
        return State(bug=known[0], bug_tree=known[1], tip=known[2])
    with slot() as (_, scratch):
        index = scratch / "index"
        bug_tree = apply(prepared, prepared.base, task.patch, index)
        if bug_tree is None:
            raise TaskError(f"{task.instance_id}: its patch does not apply to {prepared.name}; wrong row or source?")
        if bug_tree == git("rev-parse", f"{prepared.base}^{{tree}}", git_dir=prepared.store).decode().strip():
            raise TaskError(f"{task.instance_id}: its patch changes nothing")
        entries = read_tree(prepared.store, bug_tree)
        hidden = test_files(task.fail_to_pass)
        if missing := [path for path in hidden if path not in entries]:
            raise TaskError(f"{task.instance_id}: no such test file: {', '.join(missing[:3])}")
        tip_tree = write_tree(prepared.store, {p: e for p, e in entries.items() if p not in hidden}, index)
    bug, tip = (commit_tree(prepared, tree) for tree in (bug_tree, tip_tree))
    git("update-ref", refs[0], bug, git_dir=prepared.store)
    git("update-ref", refs[1], tip, git_dir=prepared.store)
    return State(bug=bug, bug_tree=bug_tree, tip=tip)


def commit_tree(prepared: Prepared, tree: str) -> str:
    """Return a commit of a tree, without a parent; always the same one for equal trees."""
    return git("commit-tree", tree, git_dir=prepared.store, data=b"Initial commit\n").decode().strip()


def apply(prepared: Prepared, commit: str, patch: str, index: Path) -> str | None:
    """Return the tree of `commit` with the patch applied, or None when it does not apply.

    Args:
        index: a scratch index file, overwritten.
    """
    env = {"GIT_INDEX_FILE": str(index)}
    git("read-tree", commit, git_dir=prepared.store, env=env)
    options = ["--cached", "--whitespace=nowarn"]
    try:
        data = patch.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None
    for fallback in ([], ["--3way"]):  # the second finds moved places by the blob ids that the patch names
        try:
            git("apply", *options, *fallback, git_dir=prepared.store, env=env, data=data)
        except InfrastructureError:
            git("read-tree", commit, git_dir=prepared.store, env=env)
        else:
            return git("write-tree", git_dir=prepared.store, env=env).decode().strip()
    return None


def gold_patch(prepared: Prepared, task: Task) -> str:
    """Return the fix: the bug patch reversed, as the patch an agent would submit at the tip."""
    from valve_plugin.rollouts.workspace import tree_diff

    return tree_diff(prepared.store, state(prepared, task).bug, prepared.base)
