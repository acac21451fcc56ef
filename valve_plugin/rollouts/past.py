"""The history that SWE-smith's own containers leave in sight: source, bug, removal of the hidden tests, one after the
other. It shows the fix, so nothing but `keep_history` puts it there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from valve_plugin.errors import ConfigError
from valve_plugin.records import Task
from valve_plugin.rollouts.foreign import copy, remove
from valve_plugin.tasks import history
from valve_plugin.tasks.git import git

if TYPE_CHECKING:
    from valve_plugin.rollouts.state import State
    from valve_plugin.rollouts.workspace import Workspace


def give_history(workspace: Workspace, states: State, task: Task) -> None:
    """Put the git of the task's image in the place of a workspace's own, on the task's branch.

    Where the image has no such branch (SWE-smith fetches it over the network), it is made as SWE-smith makes it.

    Raises:
        ConfigError: the workspace has no image.
    """
    if workspace.image is None or workspace.store is None:
        raise ConfigError(
            f"{task.instance_id}: keep_history needs a container image that has a history; leave it out, or "
            "import the task with its image"
        )
    own = workspace.path / ".git"
    remove(own)
    own.mkdir()
    copy(workspace.image.git, own)
    tip = history.resolve(own, task.instance_id)
    if not tip or _tree(workspace, tip) != _tree(workspace, states.tip, store=True):
        tip = _made(workspace, states)
    branch = f"refs/heads/{task.instance_id}"
    git("update-ref", "--no-deref", branch, tip, git_dir=own)
    git("symbolic-ref", "HEAD", branch, git_dir=own)
    git("read-tree", tip, git_dir=own)


def _made(workspace: Workspace, states: State) -> str:
    own = workspace.path / ".git"
    quiet = ["-c", "core.logAllRefUpdates=false", "fetch", "-q", "--no-auto-gc", "--no-write-fetch-head"]
    local = {"GIT_ALLOW_PROTOCOL": "file"}
    git(*quiet, str(workspace.store), states.bug, states.tip, git_dir=own, env=local)
    commit = git("rev-parse", "HEAD", git_dir=own).decode().strip()
    for state, message in ((states.bug, b"Bug Patch\n"), (states.tip, b"Remove F2P Tests\n")):
        words = ["commit-tree", f"{state}^{{tree}}", "-p", commit]
        commit = git(*words, git_dir=own, data=message).decode().strip()
    return commit


def _tree(workspace: Workspace, commit: str, *, store: bool = False) -> str:
    where = workspace.store if store else workspace.path / ".git"
    return git("rev-parse", f"{commit}^{{tree}}", git_dir=where).decode().strip()
