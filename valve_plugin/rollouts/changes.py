"""Which files of a tree are not as they were, after an agent had it.

All of it may be hostile: nothing is read before its size is known, and what no patch could hold is refused.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from valve_plugin.errors import TaskError
from valve_plugin.rollouts.foreign import Folder, walk
from valve_plugin.rollouts.limits import Limits
from valve_plugin.tasks.git import git, read_tree

MAX_PATH_BYTES = 2048
"""Longer ones fit into no system call once a workspace's own path is before them."""
MAX_FILES = 1_000_000
MAX_CHANGED_BYTES = 100_000_000
"""Contents of changed files together, which are held in memory. Ten times what their patch may have."""

_CHUNK = 1 << 20

Found = tuple[str, int]
"""(git mode, bytes) of one file."""


def changes(
    root: Path, store: Path, commit: str, built: Collection[str], index: Path
) -> dict[str, tuple[str, bytes] | None]:
    """Return (mode, content) of every file that is not as a commit has it, None for one that is gone.

    Args:
        root: the tree.
        built: paths that are left out unless the commit has them.
        index: a scratch index file.

    Raises:
        TaskError: too many files, too long a path, or too much to be a patch; that is the agent's doing.
        OSError: the tree cannot be read.
    """
    tracked = read_tree(store, commit)
    files = {path: found for path, found in _files(root).items() if path in tracked or path not in built}
    ignored = _ignored(root, [path for path in files if path not in tracked], store, index)
    kept = {path: found for path, found in files.items() if path not in ignored}
    _require("the files", kept.values(), Limits().disk_bytes)
    _require("the new files", [found for path, found in kept.items() if path not in tracked], MAX_CHANGED_BYTES)
    digest = hashlib.sha256 if len(commit) == 64 else hashlib.sha1
    changed = {p: f for p, f in kept.items() if p not in tracked or tracked[p] != (f[0], _oid(root / p, *f, digest))}
    _require("the changed files", changed.values(), MAX_CHANGED_BYTES)
    now = {path: (mode, b"".join(_chunks(root / path, mode))) for path, (mode, _) in changed.items()}
    return {path: None for path in tracked if path not in files} | now


def _files(root: Path) -> dict[str, Found]:
    """Return every file and link below a folder, leaving out what is inside a `.git`."""
    found: dict[str, Found] = {}
    for folder in walk(root, unlock=True):
        for name in [name for name in folder.folders if name.lower() == ".git"]:
            folder.folders.remove(name)
        for name in folder.others:
            status = folder.status(name)
            if not status.st_mode & stat.S_IRUSR:  # only a file or a pipe can have lost it
                os.chmod(name, stat.S_IMODE(status.st_mode) | stat.S_IRUSR, dir_fd=folder.fd)
            if name.lower() != ".git" and (mode := _mode(status.st_mode)):
                found[_path(folder, name)] = mode, status.st_size
            elif name == ".gitignore":
                os.unlink(name, dir_fd=folder.fd)  # git would open a pipe, and wait
        if folder.folders:
            _path(folder, folder.folders[-1])
        if len(found) > MAX_FILES:
            raise TaskError(f"there are more than {MAX_FILES:,} files; that is no patch")
    return found


def _path(folder: Folder, name: str) -> str:
    path = folder.path(name)
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise TaskError(f"the path {path[:40]}… has over {MAX_PATH_BYTES:,} bytes; no tree of a repository is so deep")
    return path


def _mode(mode: int) -> str:
    """Return git's mode of a file; empty: git takes no notice of such."""
    if stat.S_ISLNK(mode):
        return "120000"
    return ("100755" if mode & stat.S_IXUSR else "100644") if stat.S_ISREG(mode) else ""


def _oid(path: Path, mode: str, size: int, digest: Callable[[bytes], Any]) -> str:
    """Return how git names a file's content."""
    content = digest(b"blob %d\0" % size)
    for chunk in _chunks(path, mode):
        content.update(chunk)
    return str(content.hexdigest())


def _chunks(path: Path, mode: str) -> Iterator[bytes]:
    if mode == "120000":
        yield os.fsencode(os.readlink(path))
        return
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _require(what: str, found: Collection[Found], most: int) -> None:
    size = sum(size for _, size in found)
    if size > most:
        raise TaskError(f"{what} have {size:,} bytes, expected at most {most:,}")


def _ignored(root: Path, paths: list[str], store: Path, index: Path) -> set[str]:
    if not paths:
        return set()
    data = "\0".join(paths).encode("utf-8", "surrogateescape")
    env = {"GIT_WORK_TREE": str(root), "GIT_INDEX_FILE": str(index)}
    out = git("check-ignore", "-z", "--stdin", "--no-index", git_dir=store, cwd=root, env=env, data=data, ok=(0, 1))
    return set(out.decode("utf-8", "surrogateescape").split("\0"))
