"""An agent's copy of a task: one commit, no history, no hidden tests; and the patch it became.

Nothing the agent can write is trusted here: its `.git` is never read, symbolic links are never followed, and what
changed is found by comparing its files with the store's pristine tree.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from valve_plugin.bank.paths import data_dir
from valve_plugin.codec import digest_bytes
from valve_plugin.errors import TaskError
from valve_plugin.records import Task
from valve_plugin.rollouts.changes import changes
from valve_plugin.rollouts.foreign import copy, walk
from valve_plugin.rollouts.past import give_history
from valve_plugin.rollouts.slots import MOST, slot
from valve_plugin.rollouts.state import state
from valve_plugin.tasks.git import NO_PROGRAMS, amend, git
from valve_plugin.tasks.image import Image
from valve_plugin.tasks.repository import Prepared, interpreter_prefix

MAX_PATCH_BYTES = 10_000_000
_FIRST_UID = 1_900_000_000  # far above any real user


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Directories of one rollout; all are gone when its context manager ends."""

    path: Path
    """The working tree."""
    home: Path
    tmp: Path
    """Kept from command to command, private to this workspace."""
    uid: int
    """Owner of everything the agent makes."""
    store: Path | None = None
    commit: str = ""
    """The pristine commit the tree was made from."""
    readonly: tuple[Path, ...] = ()
    """What commands may read, at its own place: the test environment and its interpreter."""
    bin: Path | None = None
    """The test environment's commands, first on PATH."""
    source_roots: tuple[str, ...] = (".",)
    """Directories of the tree that are on the import path."""
    image: Image | None = None
    """The container image that commands run in, which brings its own environment."""
    place: str = "/testbed"
    """Where the tree appears inside a sandbox; a live run's own path, where editable installs point."""

    @property
    def root(self) -> Path:
        """The directory that holds all the others."""
        return self.path.parent


@contextmanager
def open(prepared: Prepared, task: Task, *, keep_history: bool = False) -> Iterator[Workspace]:  # noqa: A001 (a contract name)
    """Yield a fresh workspace of the task; it is removed at the end, or by the next run after a kill.

    Args:
        keep_history: with the history that the task's image has. It shows the fix.

    Raises:
        ConfigError: a history is asked for, and there is no image that has one.
        TaskError: the task's patch does not apply, or see `filled`.
        InfrastructureError: git or the disk failed.
    """
    states = state(prepared, task)
    with at_commit(prepared, states.tip) as workspace:
        if keep_history:
            give_history(workspace, states, task)
            _give(workspace.path, workspace.uid)
        yield workspace


@contextmanager
def at_commit(prepared: Prepared, commit: str) -> Iterator[Workspace]:
    """Yield a workspace that holds a commit of the store as its only one.

    Raises:
        TaskError: see `filled`.
    """
    with empty(prepared) as workspace:
        yield filled(workspace, prepared.store, commit)


@contextmanager
def empty(prepared: Prepared | None = None) -> Iterator[Workspace]:
    """Yield a workspace with an empty tree, for callers that fill it themselves."""
    with slot() as (number, root):
        uid = _own_uid(number) if os.geteuid() == 0 else os.getuid()
        places = {name: root / name for name in ("testbed", "home", "tmp")}
        for place in places.values():
            place.mkdir()
            _give(place, uid)
        _write_etc(root / "etc", uid)
        workspace = Workspace(path=places["testbed"], home=places["home"], tmp=places["tmp"], uid=uid)
        if prepared is not None:
            workspace = replace(workspace, image=prepared.image, source_roots=prepared.repository.source_roots)
        if prepared is not None and prepared.image is None:
            readonly = (prepared.venv, interpreter_prefix(prepared))
            workspace = replace(workspace, readonly=readonly, bin=prepared.python.parent)
        yield workspace


def filled(workspace: Workspace, store: Path, commit: str) -> Workspace:
    """Give an empty workspace the files of a store's commit, which becomes its only one.

    Raises:
        TaskError: the commit has a link or a folder where the image has a file that git does not track.
    """
    path, own = workspace.path, workspace.path / ".git"
    _repository(own, store, commit)
    quiet = ["-c", "core.logAllRefUpdates=false"]  # a reflog would say when
    git(*quiet, "reset", "-q", "--hard", git_dir=own, cwd=path)
    if workspace.image:
        _add_built(workspace.image, path)
    _give(path, workspace.uid)
    return replace(workspace, store=store, commit=commit)


def _add_built(image: Image, path: Path) -> None:
    try:
        copy(image.built, path)
    except FileExistsError as e:
        raise TaskError(
            f"{image.name}: its /testbed has {e.filename!r}, which git does not track, and this tree has a link or a "
            "folder on that path; expected a patch that leaves it free"
        ) from e


def _repository(own: Path, store: Path, commit: str) -> None:
    """Write a repository that holds a store's commit and nothing else: what `git clone` makes, by one process."""
    _skeleton(own, sha256=len(commit) == 64)
    pack = ["pack-objects", "-q", "--revs", "--window=0", "--threads=1", str(own / "objects/pack/pack")]
    git(*pack, git_dir=store, data=f"{commit}\n".encode())
    (own / "refs/heads/main").write_text(f"{commit}\n")


def _skeleton(path: Path, *, sha256: bool) -> None:
    """Write an empty repository, as `git init` would."""
    for folder in ("objects/info", "objects/pack", "refs/heads", "refs/tags"):
        (path / folder).mkdir(parents=True)
    core = f"[core]\n\trepositoryformatversion = {sha256:d}\n\tfilemode = true\n\tbare = false\n"
    (path / "config").write_text(core + ("[extensions]\n\tobjectformat = sha256\n" if sha256 else ""))
    (path / "HEAD").write_text("ref: refs/heads/main\n")


def diff(workspace: Workspace) -> str:
    """Return the patch from the pristine tree to what the files are now, new and binary files included.

    Ignored files are left out as `git add` would; whatever became of the workspace's own `.git` does not matter.

    Raises:
        TaskError: the tree is too large or too deep, or the patch larger than 10 MB; that is the agent's doing, not
            the host's.
    """
    assert workspace.store is not None, "this workspace was not made from a task"
    with tempfile.TemporaryDirectory(prefix="valve-diff-", dir=workspace.root) as scratch:
        built = workspace.image.built_files if workspace.image else frozenset()  # its build's leavings, not the agent's
        changed = changes(workspace.path, workspace.store, workspace.commit, built, Path(scratch) / "index")
        if not changed:
            return ""
        beside = Path(scratch) / "git"  # the store stays as it is; what is new lives as long as this takes
        _skeleton(beside, sha256=len(workspace.commit) == 64)
        shutil.copytree(workspace.store / "info", beside / "info")
        env = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": str(workspace.store / "objects")}
        amend(beside, workspace.commit, changed, env)
        return tree_diff(beside, workspace.commit, "refs/heads/main", env)


def tree_diff(store: Path, old: str, new: str, env: Mapping[str, str] | None = None) -> str:
    """Return the patch between two trees as text that applies byte for byte.

    A text file that is not UTF-8 cannot be quoted in a string: then every file is written in git's binary form.

    Raises:
        TaskError: it is larger than 10 MB.
    """
    command = ["diff-tree", "-p", "-r", "--binary", "--full-index", "--no-renames", *NO_PROGRAMS, old, new]
    patch = git(*command, git_dir=store, env=env)
    if len(patch) <= MAX_PATCH_BYTES:
        try:
            return patch.decode("utf-8")
        except UnicodeDecodeError:
            with tempfile.NamedTemporaryFile("w", suffix=".attributes") as attributes:
                attributes.write("* -diff\n")
                attributes.flush()
                patch = git("-c", f"core.attributesFile={attributes.name}", *command, git_dir=store, env=env)
    if len(patch) > MAX_PATCH_BYTES:
        raise TaskError(f"the patch has {len(patch):,} bytes, expected at most {MAX_PATCH_BYTES:,}")
    return patch.decode("utf-8")


def _write_etc(folder: Path, uid: int) -> None:
    """Write what the sandbox's /etc says about its only user and its only host."""
    folder.mkdir()
    (folder / "passwd").write_text(f"agent:x:{uid}:{uid}::/home/agent:/bin/sh\n")
    (folder / "group").write_text(f"agent:x:{uid}:\n")
    (folder / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")


def _own_uid(number: int) -> int:
    """Return a uid that no other live workspace on this machine has, so that limits count its processes only."""
    block = int(digest_bytes(os.fsencode(data_dir()))[:8], 16) % 60_000  # other data directories count from 0 as well
    return _FIRST_UID + block * MOST + number


def _give(path: Path, uid: int) -> None:
    """Make `uid` the owner of a tree, where this process may."""
    if os.geteuid() != 0:
        return
    os.chown(path, uid, uid)
    for folder in walk(path):
        for name in (*folder.folders, *folder.others):
            os.chown(name, uid, uid, dir_fd=folder.fd, follow_symlinks=False)
