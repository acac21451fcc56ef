"""Workspaces with the files of a task, or of any commit in a repository's store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from valve_plugin.errors import ConfigError
from valve_plugin.records import Task
from valve_plugin.sandbox.environment import base_prefix
from valve_plugin.sandbox.git import git, git_line, resolve_commit
from valve_plugin.sandbox.trees import copy_tree, remove_tree
from valve_plugin.sandbox.workspace import Workspace, WorkspaceOptions, chown_tree, open_workspace
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.tasks.states import States, task_states


@contextmanager
def open_task(prepared: PreparedRepository, task: Task, *, keep_history: bool = False) -> Iterator[Workspace]:
    """Yield a fresh workspace of the task, without its hidden tests; it is removed at the end.

    Args:
        keep_history: include the git history of the task's image. It shows the fix.

    Raises:
        ConfigError: `keep_history` is set, but the task has no image.
        TaskError: the task's patch does not apply; also see `open_commit`.
        InfrastructureError: git or the disk failed.
    """
    states = task_states(prepared, task)
    with open_commit(prepared, states.tip) as workspace:
        if keep_history:
            _give_history(workspace, states, task)
        yield workspace


@contextmanager
def open_commit(prepared: PreparedRepository, commit: str) -> Iterator[Workspace]:
    """Yield a workspace whose git repository holds only this commit of the store.

    Raises:
        TaskError: the commit has a link or a folder where the image has an untracked file.
        InfrastructureError: git or the disk failed.
    """
    options: WorkspaceOptions = {"source_roots": prepared.repository.source_roots, "image": prepared.image}
    if prepared.image is None:
        options["readonly"] = (prepared.venv, base_prefix(prepared.venv))
        options["bin"] = prepared.python.parent
    with open_workspace(prepared.store, commit, **options) as workspace:
        yield workspace


def _give_history(workspace: Workspace, states: States, task: Task) -> None:
    """Replace a workspace's git directory by that of the task's image, on the task's branch.

    The branch has SWE-smith's commits: source, bug, removal of the hidden tests. If the image does not have it
    (SWE-smith fetches it over the network), the commits are made here.
    """
    if workspace.image is None:
        raise ConfigError(
            f"{task.instance_id}: keep_history needs the task's container image; leave it out, or import the task "
            "with its image"
        )
    own = workspace.path / ".git"
    remove_tree(own)
    own.mkdir()
    copy_tree(workspace.image.git, own)
    tip = resolve_commit(own, task.instance_id)
    tree = git_line("rev-parse", f"{states.tip}^{{tree}}", git_dir=workspace.store)
    if not tip or git_line("rev-parse", f"{tip}^{{tree}}", git_dir=own) != tree:
        tip = _commit_history(workspace, states)
    branch = f"refs/heads/{task.instance_id}"
    git("update-ref", "--no-deref", branch, tip, git_dir=own)
    git("symbolic-ref", "HEAD", branch, git_dir=own)
    git("read-tree", tip, git_dir=own)
    chown_tree(workspace.path, workspace.uid)


def _commit_history(workspace: Workspace, states: States) -> str:
    """Commit the bug and the removal of the hidden tests on top of the image's HEAD; return the last commit's id."""
    own = workspace.path / ".git"
    quiet = ["-c", "core.logAllRefUpdates=false", "fetch", "-q", "--no-auto-gc", "--no-write-fetch-head"]
    local = {"GIT_ALLOW_PROTOCOL": "file"}
    git(*quiet, str(workspace.store), states.bug, states.tip, git_dir=own, env=local)
    commit = git_line("rev-parse", "HEAD", git_dir=own)
    for source, message in ((states.bug, b"Bug Patch\n"), (states.tip, b"Remove F2P Tests\n")):
        commit = git_line("commit-tree", f"{source}^{{tree}}", "-p", commit, git_dir=own, data=message)
    return commit
