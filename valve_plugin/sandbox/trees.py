"""File trees from untrusted sources (an agent, an image), which may be very deep and contain links anywhere.

Nothing here recurses, follows a symbolic link, or passes a long path to a system call: each folder is opened relative
to its parent.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_OPEN = 32
"""Maximum number of parent folders that stay open. File descriptors are limited, and rollouts share them."""


class Folder:
    """A folder that `walk` has reached."""

    def __init__(self, at: int | None, name: str, way: Sequence[str], *, unlock: bool) -> None:
        self.locked: int | None = None
        """The mode it had, where it had to be unlocked."""
        mode = os.stat(name, dir_fd=at, follow_symlinks=False).st_mode if unlock else 0
        if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
            with suppress(PermissionError):  # another user's; it may be readable anyway
                os.chmod(name, stat.S_IRWXU, dir_fd=at)
                self.locked = stat.S_IMODE(mode)
        self.name, self.way = name, way
        """`way`: names from the root to this folder. The list belongs to `walk` and changes in its next step."""
        self.folders: deque[str] = deque()
        """Subfolders, entered next in this order. The caller may remove names."""
        self.others: list[str] = []
        """Names of all other entries: files, links, pipes."""
        self.fd = os.open(name, _OPEN, dir_fd=at)
        try:
            self.identity = _identity(self.fd)
            with os.scandir(self.fd) as entries:
                for entry in sorted(entries, key=lambda e: e.name):
                    (self.folders if entry.is_dir(follow_symlinks=False) else self.others).append(entry.name)
        except BaseException:
            self.close()
            raise

    def path(self, name: str = "") -> str:
        """Return the path of this folder or of an entry, relative to the root. Only valid until the next step."""
        return "/".join((*self.way, name) if name else self.way)

    def status(self, name: str) -> os.stat_result:
        """Return the status of an entry, without following a link.

        Raises:
            OSError: it is gone.
        """
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

    def reopen(self, below: Folder) -> None:
        """Open this folder again, from a subfolder.

        Raises:
            OSError: the subfolder was moved.
        """
        if self.fd < 0:
            self.fd = os.open("..", _OPEN, dir_fd=below.fd)
            if _identity(self.fd) != self.identity:
                raise OSError(errno.ESTALE, "it was moved while it was read", self.name)

    def close(self) -> None:
        """Close the file descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def walk(
    root: Path | str,
    at: int | None = None,
    *,
    unlock: bool = False,
    relock: bool = False,
    on_skip: Callable[[str], object] | None = None,
    on_leave: Callable[[Folder, str], None] = lambda *_: None,
) -> Iterator[Folder]:
    """Yield a folder and all folders below it, each before its subfolders.

    Args:
        root: the folder; not a symbolic link.
        at: file descriptor of the folder to which `root` is relative; by default the working directory.
        unlock: first give the owner all permissions on each folder.
        relock: give each unlocked folder its permissions back when it is done.
        on_skip: called with the name of a folder that cannot be opened, which is skipped; by default it is an error.
        on_leave: called with (folder, name of a subfolder) after the subfolder is done.

    Raises:
        OSError: a folder cannot be opened, or was moved at the same time.
    """
    way: list[str] = []
    levels = [Folder(at, str(root), way, unlock=unlock)]
    try:
        yield levels[-1]
        while levels:
            here = levels[-1]
            if here.folders:
                name = here.folders.popleft()
                try:
                    below = Folder(here.fd, name, way, unlock=unlock)
                except OSError:
                    if on_skip is None:
                        raise
                    on_skip(name)
                    continue
                levels.append(below)
                way.append(name)
                if len(levels) > _MAX_OPEN:
                    levels[-1 - _MAX_OPEN].close()
                yield below
            elif len(levels) > 1:
                levels[-2].reopen(here)
                if relock and here.locked is not None:
                    os.fchmod(here.fd, here.locked)
                levels.pop().close()
                way.pop()
                on_leave(levels[-1], here.name)
            else:
                break
    finally:
        for level in levels:
            level.close()


def remove_tree(path: Path | str, at: int | None = None) -> None:
    """Remove a file or tree, as far as this process is allowed to. Never raises.

    Args:
        at: file descriptor of the folder to which `path` is relative; by default the working directory.
    """
    with suppress(OSError):
        if not stat.S_ISDIR(os.stat(path, dir_fd=at, follow_symlinks=False).st_mode):
            os.unlink(path, dir_fd=at)
            return
        for folder in walk(path, at, unlock=True, on_skip=lambda _: None, on_leave=remove_empty):
            for name in folder.others:
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder.fd)
        os.rmdir(path, dir_fd=at)


def remove_empty(folder: Folder, name: str) -> None:
    """Remove an entry of a folder, if it is an empty folder."""
    with suppress(OSError):
        os.rmdir(name, dir_fd=folder.fd)


@contextmanager
def open_below(root: Path, names: Iterable[str], *, make: bool = False) -> Iterator[int]:
    """Yield the file descriptor of a folder below `root`; no folder on the way may be a link.

    Raises:
        FileNotFoundError: one of them does not exist.
        NotADirectoryError: one of them is a symbolic link, a file, or not a name.
    """
    fd = os.open(root, _OPEN)
    try:
        for name in names:
            if name in ("", ".", ".."):
                raise NotADirectoryError(errno.ENOTDIR, "not a folder's name", name)
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=fd)
            below = os.open(name, _OPEN, dir_fd=fd)  # fails with ENOTDIR for a link
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def create_file(fd: int, name: str, mode: int) -> BinaryIO:
    """Create a file and open it for writing.

    Raises:
        FileExistsError: the name exists, perhaps as a link.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return open(os.open(name, flags, mode, dir_fd=fd), "wb")


def copy_tree(source: Path, target: Path) -> None:
    """Copy the folders, files and links of a tree into another one. Existing files are replaced.

    Raises:
        FileExistsError: a link or a folder is in the way; `filename` is its path.
    """
    for folder in walk(source):
        name = ""
        try:
            with open_below(target, folder.way, make=True) as fd:
                for name in folder.others:
                    status = folder.status(name)
                    if stat.S_ISLNK(status.st_mode):
                        os.symlink(os.readlink(name, dir_fd=folder.fd), name, dir_fd=fd)
                    elif stat.S_ISREG(status.st_mode):
                        with suppress(FileNotFoundError):
                            if stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                                os.unlink(name, dir_fd=fd)
                        read = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.fd)
                        with open(read, "rb") as old, create_file(fd, name, 0o600) as new:
                            shutil.copyfileobj(old, new)
                            os.fchmod(new.fileno(), stat.S_IMODE(status.st_mode))
                            new.flush()
                            os.utime(new.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))
        except (FileExistsError, NotADirectoryError) as e:
            raise FileExistsError(errno.EEXIST, "something else is in the way", folder.path(name)) from e
