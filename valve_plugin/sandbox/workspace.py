"""An agent's workspace: a working copy of one commit without history, at a constant path; and its patch.

Files that the agent can write are not trusted: `.git` is never read, symbolic links are never followed, sizes are
checked before reading, and changes are found by comparing the files with the original tree in the store.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from valve_plugin.codec import digest_bytes
from valve_plugin.errors import TaskError
from valve_plugin.paths import data_dir
from valve_plugin.sandbox.engine import Image
from valve_plugin.sandbox.git import PLAIN_CONFIG, File, borrow_objects, diff_trees, git, import_files, read_tree
from valve_plugin.sandbox.scratch import MAX_FOLDERS, scratch_folder
from valve_plugin.sandbox.supervisor import ProcessLimits
from valve_plugin.sandbox.trees import Folder, copy_tree, walk

TESTBED = "/testbed"
"""Path of a task's working tree inside a sandbox."""
HOME = "/home/agent"
"""The home directory of an agent inside a sandbox."""
TMP = "/tmp"  # noqa: S108 (inside; private to the workspace)
MAX_PATH_BYTES = 2048
"""Longer paths, together with that of the workspace, do not fit into a system call."""
MAX_FILES = 1_000_000
MAX_CHANGED_BYTES = 100_000_000
"""Total size of changed files, which are kept in memory: ten times the size limit of a patch."""

MAX_IGNORE_BYTES = 4_000_000
"""Total size of the .gitignore files; git holds 35 times as much in memory for them."""

_FIRST_UID = 1_900_000_000  # far above any real user
_CHUNK = 1 << 20  # bytes
_HOST_ERRORS = frozenset({errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that no content of a tree can cause."""
_IGNORE_CPU_SECONDS = 20  # for the patterns of .gitignore
_FileInfo = tuple[str, int]
"""(git mode, bytes) of one file."""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Directories of one rollout; they are removed when its context manager ends."""

    root: Path
    """The directory that contains all others."""
    uid: int
    """Owner of all files that the agent makes."""
    store: Path | None = None
    commit: str = ""
    """The original commit of the tree."""
    readonly: tuple[Path, ...] = ()
    """Paths that commands may read: the test environment and its interpreter."""
    bin: Path | None = None
    """Directory with the test environment's commands; it comes first on PATH."""
    source_roots: tuple[str, ...] = (".",)
    """Directories of the tree on the import path."""
    image: Image | None = None
    """The container image in which commands run; it has its own environment."""
    place: str = TESTBED
    """Path of the tree inside a sandbox. In a live run it is the original path, to which editable installs point."""
    user: str = "agent"
    """Who runs its commands: the name of the user, of the host and of the home directory."""

    @property
    def path(self) -> Path:
        """The working tree."""
        return self.root / "testbed"

    @property
    def home(self) -> Path:
        """Home directory; like `tmp` it is private to this workspace and kept between commands."""
        return self.root / "home"

    @property
    def tmp(self) -> Path:
        """Temporary files."""
        return self.root / "tmp"

    @property
    def own(self) -> str:
        """Path of the home directory inside a sandbox."""
        return f"/home/{self.user}"

    def variables(self, tree: str, home: str = "", tmp: str = TMP) -> dict[str, str]:
        """Return all environment variables of a command that sees the three directories at these paths."""
        path = [*([str(self.bin)] if self.bin else []), "/usr/local/bin", "/usr/bin", "/bin"]
        return {
            "PATH": ":".join(path),
            "PYTHONPATH": ":".join(os.path.normpath(f"{tree}/{root}") for root in self.source_roots),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "HOME": home or self.own,
            "TMPDIR": tmp,
            "USER": self.user,
            "LOGNAME": self.user,
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "TERM": "dumb",
            "PAGER": "cat",
            **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "agent"),
            **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "agent@localhost"),
            # The tree has an owner of its own, which git does not trust if commands run without a sandbox.
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        }


@contextmanager
def open_workspace(
    store: Path | None = None,
    commit: str = "",
    *,
    readonly: tuple[Path, ...] = (),
    bin: Path | None = None,  # noqa: A002 (the field of `Workspace`)
    source_roots: tuple[str, ...] = (".",),
    image: Image | None = None,
    place: str = TESTBED,
    user: str = "agent",
) -> Iterator[Workspace]:
    """Yield a fresh workspace. It is removed at the end or, after a kill, by the next run.

    Args:
        store: a git directory, or None for an empty tree.
        commit: the commit to check out; it becomes the only commit of the workspace.
        readonly: this and what follows: see `Workspace`.

    Raises:
        TaskError: the commit has a link or a folder where the image has an untracked file.
        InfrastructureError: git or the disk failed.
    """
    with scratch_folder() as root:
        uid = os.getuid()
        if os.geteuid() == 0:  # no other live workspace on this machine has it, so that limits count only its processes
            # Other data directories count from 0 as well.
            block = int(digest_bytes(os.fsencode(data_dir()))[:8], 16) % 60_000
            uid = _FIRST_UID + block * MAX_FOLDERS + int(root.name)
        workspace = Workspace(
            root=root, uid=uid, store=store, commit=commit, readonly=readonly, bin=bin, source_roots=source_roots,
            image=image, place=place, user=user,
        )  # fmt: skip
        own = (workspace.path, workspace.home, workspace.tmp)
        for folder in (*own, root / "etc"):
            folder.mkdir()
        (root / "etc" / "passwd").write_text(f"{user}:x:{uid}:{uid}::{workspace.own}:/bin/sh\n")
        (root / "etc" / "group").write_text(f"{user}:x:{uid}:\n")
        (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
        for file in (root / "etc").iterdir():
            file.chmod(0o644)  # it is read as `uid`
        if store:
            _check_out(workspace, store)
        for folder in own:
            chown_tree(folder, uid)
        yield workspace


def _check_out(workspace: Workspace, store: Path) -> None:
    """Check out the workspace's commit, with a git repository that contains only this commit."""
    own, commit = workspace.path / ".git", workspace.commit
    _create_empty(own)
    # In the new repository, because git writes a pack there before it renames it, and the store may be on another disk.
    pack = ["pack-objects", "-q", "--revs", "--window=0", "--threads=1", str(own / "objects/pack/pack")]
    git(*pack, git_dir=own, data=f"{commit}\n".encode(), env=borrow_objects(store))
    (own / "refs/heads/main").write_text(f"{commit}\n")
    # A reflog would hold the time.
    git("-c", "core.logAllRefUpdates=false", "reset", "-q", "--hard", git_dir=own, cwd=workspace.path)
    if image := workspace.image:
        try:
            copy_tree(image.built, workspace.path)
        except FileExistsError as e:
            raise TaskError(
                f"{image.name}: its /testbed has the untracked file {e.filename!r}, but this tree has a link or a "
                "folder there; expected a patch that does not use this path"
            ) from e


def _create_empty(path: Path) -> None:
    for folder in ("objects/info", "objects/pack", "refs/heads", "refs/tags"):
        (path / folder).mkdir(parents=True)
    (path / "config").write_text(PLAIN_CONFIG)
    (path / "HEAD").write_text("ref: refs/heads/main\n")


def chown_tree(path: Path, uid: int) -> None:
    """Make `uid` the owner of a tree. Does nothing if this process is not root."""
    if os.geteuid() != 0:
        return
    os.chown(path, uid, uid)
    for folder in walk(path):
        for name in (*folder.folders, *folder.others):
            os.chown(name, uid, uid, dir_fd=folder.fd, follow_symlinks=False)


def diff(workspace: Workspace) -> str:
    """Return the patch from the original tree to the present files, including new and binary files.

    Ignored files are left out, as with `git add`. The workspace's own `.git` is not used.

    Raises:
        TaskError: the tree is too large or too deep, cannot be read, or the patch is larger than 10 MB. The agent is at
            fault.
    """
    store, commit = workspace.store, workspace.commit
    assert store is not None, "this workspace was not made from a commit"
    with tempfile.TemporaryDirectory(prefix="valve-diff-", dir=workspace.root) as scratch:
        try:
            changed, removed = _changes(workspace, store, Path(scratch) / "index")
        except OSError as e:
            if e.errno in _HOST_ERRORS:
                raise
            raise TaskError(f"the tree cannot be read: {e}") from e
        if not changed and not removed:
            return ""
        beside = Path(scratch) / "git"  # a temporary repository for new objects; the store is not changed
        _create_empty(beside)
        shutil.copytree(store / "info", beside / "info")
        env = borrow_objects(store)
        # Not a branch: newer versions of git use the attributes in the tree of HEAD.
        after = import_files(beside, changed, "refs/valve/after", parent=commit, removed=removed, env=env)
        return diff_trees(beside, commit, after, env=env)


def _changes(workspace: Workspace, store: Path, index: Path) -> tuple[list[File], list[str]]:
    """Return (new and changed files, paths of removed files), compared with the commit."""
    root, commit = workspace.path, workspace.commit
    tracked = read_tree(store, commit)
    built = workspace.image.built_files if workspace.image else ()  # left by the image's build, not by the agent
    files = {path: info for path, info in _list_files(root).items() if path in tracked or path not in built}
    patterns = [info for path, info in files.items() if path.rpartition("/")[2] == ".gitignore"]
    _require("the .gitignore files", patterns, MAX_IGNORE_BYTES)
    ignored = _ignored(root, [path for path in files if path not in tracked], store, index)
    kept = {path: info for path, info in files.items() if path not in ignored}
    _require("the files", kept.values(), ProcessLimits().disk_bytes)
    _require("the new files", [info for path, info in kept.items() if path not in tracked], MAX_CHANGED_BYTES)
    changed = {
        path: info
        for path, info in kept.items()
        if path not in tracked or tracked[path] != (info[0], _blob_id(root / path, *info))
    }
    _require("the changed files", changed.values(), MAX_CHANGED_BYTES)
    contents = [(path, mode, b"".join(_read(root / path, mode))) for path, (mode, _) in changed.items()]
    return contents, [path for path in tracked if path not in files]


def _list_files(root: Path) -> dict[str, _FileInfo]:
    """Return all files and links below a folder, except inside `.git`."""
    found: dict[str, _FileInfo] = {}
    for folder in walk(root, unlock=True):
        for name in [name for name in folder.folders if name.lower() == ".git"]:
            folder.folders.remove(name)
        for name in folder.others:
            status = folder.status(name)
            if not status.st_mode & stat.S_IRUSR:  # only a file or a pipe can have lost it
                os.chmod(name, stat.S_IMODE(status.st_mode) | stat.S_IRUSR, dir_fd=folder.fd)
            mode = "120000" if stat.S_ISLNK(status.st_mode) else ""  # empty: a kind of file that git ignores
            if stat.S_ISREG(status.st_mode):
                mode = "100755" if status.st_mode & stat.S_IXUSR else "100644"
            if name.lower() != ".git" and mode:
                found[_path(folder, name)] = mode, status.st_size
            elif name == ".gitignore":
                os.unlink(name, dir_fd=folder.fd)  # git would open a pipe, and wait
        if folder.folders:
            _path(folder, folder.folders[-1])
        if len(found) > MAX_FILES:
            raise TaskError(f"the tree has more than {MAX_FILES:,} files; too many for a patch")
    return found


def _path(folder: Folder, name: str) -> str:
    path = folder.path(name)
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise TaskError(f"the path {path[:40]}… has more than {MAX_PATH_BYTES:,} bytes; too long for a repository")
    return path


def _ignored(root: Path, paths: list[str], store: Path, index: Path) -> set[str]:
    if not paths:
        return set()
    # After "./", git does not read a name like `:(glob)x` as a pattern.
    data = "".join(f"./{path}\0" for path in paths).encode("utf-8", "surrogateescape")
    env = {"GIT_WORK_TREE": str(root), "GIT_INDEX_FILE": str(index)}
    words = ["check-ignore", "-z", "--stdin", "--no-index"]
    out = git(*words, git_dir=store, cwd=root, env=env, data=data, ok=(0, 1), cpu_seconds=_IGNORE_CPU_SECONDS)
    return {path.removeprefix("./") for path in out.decode("utf-8", "surrogateescape").split("\0")}


def _require(what: str, files: Collection[_FileInfo], limit: int) -> None:
    size = sum(size for _, size in files)
    if size > limit:
        raise TaskError(f"{what} have {size:,} bytes, expected at most {limit:,}")


def _blob_id(path: Path, mode: str, size: int) -> str:
    content = hashlib.sha1(b"blob %d\0" % size)  # noqa: S324 (a name in git's store, no protection)
    for chunk in _read(path, mode):
        content.update(chunk)
    return content.hexdigest()


def _read(path: Path, mode: str) -> Iterator[bytes]:
    if mode == "120000":
        yield os.fsencode(os.readlink(path))
        return
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            yield chunk
