"""The two commits of a task in the store, with and without its hidden tests; their workspaces; which paths are tests.

Test files are taken from the state with the hidden tests, never from a submitted patch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from valve_plugin.errors import ConfigError, TaskError
from valve_plugin.records import Record, Task
from valve_plugin.sandbox.environment import base_prefix
from valve_plugin.sandbox.git import apply_patch, diff_trees, git, git_line, read_tree, resolve_commit, write_tree
from valve_plugin.sandbox.scratch import scratch_folder
from valve_plugin.sandbox.trees import copy_tree, remove_tree
from valve_plugin.sandbox.workspace import TESTBED, Workspace, chown_tree, open_workspace
from valve_plugin.tasks.repository import PreparedRepository

_FEW_TESTS = 100
"""To start pytest takes as long as so many tests."""


class States(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Commit ids of a task. The commits have no parent, so they show no history."""

    bug: str
    """Commit with the bug and all tests."""
    bug_tree: str
    """Tree id of `bug`."""
    tip: str
    """Commit with the bug, without the files of FAIL_TO_PASS tests. The agent gets this one."""


def task_states(prepared: PreparedRepository, task: Task) -> States:
    """Return the states of a task. They are made on first use and kept as refs of the store.

    Raises:
        TaskError: the patch does not apply to the base, changes nothing, or a FAIL_TO_PASS file does not exist.
    """
    refs = [f"refs/valve/{task.content_hash}/{name}" for name in ("bug", "tip")]
    known = git("for-each-ref", "--format=%(objectname) %(tree)", *refs, git_dir=prepared.store).decode().split()
    if len(known) == 4:
        return States(bug=known[0], bug_tree=known[1], tip=known[2])
    with scratch_folder() as scratch:
        index = scratch / "index"
        patch = task.patch.removesuffix("\n") + "\n"  # git takes none without the last newline
        bug_tree = apply_patch(prepared.store, prepared.base, patch, index)
        if bug_tree is None:
            raise TaskError(
                f"{task.instance_id}: its patch does not apply to {prepared.name}; check that row and source match"
            )
        if bug_tree == git_line("rev-parse", f"{prepared.base}^{{tree}}", git_dir=prepared.store):
            raise TaskError(f"{task.instance_id}: its patch changes nothing")
        entries = read_tree(prepared.store, bug_tree)
        hidden = test_files(task.fail_to_pass)
        if missing := [path for path in hidden if path not in entries]:
            raise TaskError(f"{task.instance_id}: no such test file: {', '.join(missing[:3])}")
        tip_tree = write_tree(prepared.store, {p: e for p, e in entries.items() if p not in hidden}, index)
    bug, tip = (commit_tree(prepared, tree) for tree in (bug_tree, tip_tree))
    git("update-ref", refs[0], bug, git_dir=prepared.store)
    git("update-ref", refs[1], tip, git_dir=prepared.store)
    return States(bug=bug, bug_tree=bug_tree, tip=tip)


def commit_tree(prepared: PreparedRepository, tree: str) -> str:
    """Return the id of a commit of this tree without a parent; equal trees give equal ids."""
    return git_line("commit-tree", tree, git_dir=prepared.store, data=b"Initial commit\n")


def changed_files(prepared: PreparedRepository, one: str, other: str) -> list[str]:
    """Return the paths that differ between two commits or trees, sorted."""
    before, after = read_tree(prepared.store, one), read_tree(prepared.store, other)
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def gold_patch(prepared: PreparedRepository, task: Task) -> str:
    """Return the fix: the reverse of the bug patch, as an agent would submit it at the tip."""
    return diff_trees(prepared.store, task_states(prepared, task).bug, prepared.base)


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


def open_commit(
    prepared: PreparedRepository, commit: str, place: str = TESTBED, user: str = "agent"
) -> AbstractContextManager[Workspace]:
    """Open a workspace whose git repository holds only this commit of the store.

    Args:
        place: this and what follows: see `Workspace`; an image has its own.

    Raises:
        TaskError: the commit has a link or a folder where the image has an untracked file.
        InfrastructureError: git or the disk failed.
    """
    return open_workspace(
        prepared.store,
        commit,
        readonly=() if prepared.image else (prepared.venv, base_prefix(prepared.venv)),
        bin=None if prepared.image else prepared.python.parent,
        source_roots=prepared.repository.source_roots,
        image=prepared.image,
        place=TESTBED if prepared.image else place,
        user="agent" if prepared.image else user,
    )


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
        quiet = ["-c", "core.logAllRefUpdates=false", "fetch", "-q", "--no-auto-gc", "--no-write-fetch-head"]
        local = {"GIT_ALLOW_PROTOCOL": "file"}
        git(*quiet, str(workspace.store), states.bug, states.tip, git_dir=own, env=local)
        tip = git_line("rev-parse", "HEAD", git_dir=own)
        for source, message in ((states.bug, b"Bug Patch\n"), (states.tip, b"Remove F2P Tests\n")):
            tip = git_line("commit-tree", f"{source}^{{tree}}", "-p", tip, git_dir=own, data=message)
    branch = f"refs/heads/{task.instance_id}"
    git("update-ref", "--no-deref", branch, tip, git_dir=own)
    git("symbolic-ref", "HEAD", branch, git_dir=own)
    git("read-tree", tip, git_dir=own)
    chown_tree(workspace.path, workspace.uid)


# Files that configure a test run, in any directory. The rest of setup.cfg and pyproject.toml does not change a run in
# an environment that is already installed.
CONFIG_NAMES = frozenset(
    (
        "conftest.py",
        "pytest.ini",
        ".pytest.ini",
        "pytest.toml",
        ".pytest.toml",
        "tox.ini",
        "setup.cfg",
        "pyproject.toml",
    )
)
TEST_PATTERNS = ("test_*.py", "*_test.py")


def is_protected(path: str, test_roots: Sequence[str]) -> bool:
    """Whether a relative path (with `/`) is a test file, is below a test root, or configures tests."""
    pure = PurePosixPath(path)
    if pure.name in CONFIG_NAMES or any(fnmatchcase(pure.name, p) for p in TEST_PATTERNS):
        return True
    ancestors = {str(p) for p in (pure, *pure.parents)} - {"."}
    return any(str(PurePosixPath(root)) in ancestors for root in test_roots)


def first_paths(task: Task, test_roots: Sequence[str]) -> list[str]:
    """Return what runs first to grade a task: the files with FAIL_TO_PASS tests; all tests where these are few."""
    files, others = test_files(task.fail_to_pass), test_files(task.pass_to_pass)
    few = len(task.fail_to_pass) + len(task.pass_to_pass) <= _FEW_TESTS
    return list(test_roots) if few and not set(others) <= set(files) else files


def test_files(test_ids: Sequence[str]) -> list[str]:
    """Return the paths of the files with these tests, sorted and without repetition."""
    return sorted({test_id.split("::", 1)[0] for test_id in test_ids})
