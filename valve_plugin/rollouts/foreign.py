"""Trees that somebody else wrote, an agent or an image: as deep as they like, with links wherever they like.

Nothing here recurses, goes through a symbolic link, or needs a path that fits into a system call: each folder is
opened from the one above it, and left by `..`.
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
_MOST_OPEN = 32
"""Folders of the way down that stay open. A process has few descriptors, and its rollouts share them."""


class Folder:
    """A folder that `walk` has come to."""

    def __init__(self, fd: int, name: str, way: Sequence[str]) -> None:
        self.fd, self.name, self.way = fd, name, way
        """`way`: names from the root to here; the walk's own list, good until it goes on."""
        self.identity = _identity(os.fstat(fd))
        self.folders: deque[str] = deque()
        """Entered next, in this order, unless they are taken out."""
        self.others: list[str] = []
        """Everything else: files, links, pipes."""
        with os.scandir(fd) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                (self.folders if entry.is_dir(follow_symlinks=False) else self.others).append(entry.name)

    def path(self, name: str = "") -> str:
        """Return the path of this folder, or of an entry, relative to the root, while `way` is good."""
        return "/".join((*self.way, name) if name else self.way)

    def status(self, name: str) -> os.stat_result:
        """Return what an entry itself is, not what it links to.

        Raises:
            OSError: it has gone.
        """
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False)

    def reopen(self, below: Folder) -> None:
        """Come back from a folder below.

        Raises:
            OSError: that has been moved elsewhere meanwhile.
        """
        if self.fd < 0:
            self.fd = os.open("..", _OPEN, dir_fd=below.fd)
            if _identity(os.fstat(self.fd)) != self.identity:
                raise OSError(errno.ESTALE, "it was moved while it was read", self.name)

    def close(self) -> None:
        """Give the descriptor back."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


def walk(
    root: Path | str,
    at: int | None = None,
    *,
    unlock: bool = False,
    skip: bool = False,
    left: Callable[[Folder, str], None] = lambda *_: None,
) -> Iterator[Folder]:
    """Yield a folder and all below it, each before what it holds.

    Args:
        root: no symbolic link itself.
        at: descriptor of the folder that `root` is relative to; None: the working directory.
        unlock: give the owner of a folder every right on it first.
        skip: leave out what cannot be opened.
        left: called with a folder and the name of one in it, once all of that was yielded.

    Raises:
        OSError: a folder cannot be opened, or was moved meanwhile.
    """
    way: list[str] = []
    levels: list[Folder] = []
    try:
        levels.append(_entered(at, str(root), way, unlock))
        yield levels[-1]
        while levels:
            here = levels[-1]
            if here.folders:
                name = here.folders.popleft()
                try:
                    below = _entered(here.fd, name, way, unlock)
                except OSError:
                    if skip:
                        continue
                    raise
                levels.append(below)
                way.append(name)
                if len(levels) > _MOST_OPEN:
                    levels[-1 - _MOST_OPEN].close()
                yield below
            else:
                _leave(levels, way, left)
    finally:
        for level in levels:
            level.close()


def remove(path: Path | str, at: int | None = None) -> None:
    """Remove whatever is there, as far as this process may. Never raises for what it finds.

    Args:
        at: descriptor of the folder that `path` is relative to; None: the working directory.
    """

    def empty(folder: Folder, name: str) -> None:
        with suppress(OSError):
            os.rmdir(name, dir_fd=folder.fd)

    with suppress(OSError):
        if not stat.S_ISDIR(os.stat(path, dir_fd=at, follow_symlinks=False).st_mode):
            os.unlink(path, dir_fd=at)
            return
        for folder in walk(path, at, unlock=True, skip=True, left=empty):
            for name in folder.others:
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder.fd)
        os.rmdir(path, dir_fd=at)


@contextmanager
def beneath(root: Path, names: Iterable[str], *, make: bool = False) -> Iterator[int]:
    """Yield the descriptor of a folder below a root that real folders lead to.

    Args:
        names: of the folders, from the root down.
        make: those that are not there.

    Raises:
        FileNotFoundError: one of them is not there.
        NotADirectoryError: one of them is a symbolic link, a file, or no name.
    """
    fd = os.open(root, _OPEN)
    try:
        for name in names:
            if name in ("", ".", ".."):
                raise NotADirectoryError(errno.ENOTDIR, "no name of a folder", name)
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=fd)
            below = os.open(name, _OPEN, dir_fd=fd)  # ENOTDIR for a link: it has to be a folder itself
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def new_file(fd: int, name: str, mode: int) -> BinaryIO:
    """Open a file for writing that is not there yet, not even as a link.

    Raises:
        FileExistsError: there is something of that name.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return open(os.open(name, flags, mode, dir_fd=fd), "wb")


def copy(source: Path, target: Path) -> None:
    """Copy the folders, files and links of a tree into another, where files give way to files.

    Raises:
        FileExistsError: something else is in the way; says where.
    """
    for folder in walk(source):
        name = ""
        try:
            with beneath(target, folder.way, make=True) as fd:
                for name in folder.others:
                    _copy_entry(folder, name, fd)
        except (FileExistsError, NotADirectoryError) as e:
            raise FileExistsError(errno.EEXIST, "something else is in the way", folder.path(name)) from e


def _copy_entry(folder: Folder, name: str, fd: int) -> None:
    status = folder.status(name)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(name, dir_fd=folder.fd), name, dir_fd=fd)
    elif stat.S_ISREG(status.st_mode):
        with suppress(FileNotFoundError):
            if stat.S_ISREG(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=fd)
        read = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.fd)
        with open(read, "rb") as old, new_file(fd, name, 0o600) as new:
            shutil.copyfileobj(old, new)
            os.fchmod(new.fileno(), stat.S_IMODE(status.st_mode))
            new.flush()
            os.utime(new.fileno(), ns=(status.st_atime_ns, status.st_mtime_ns))


def _entered(at: int | None, name: str, way: Sequence[str], unlock: bool) -> Folder:
    if unlock and stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
        with suppress(PermissionError):  # somebody else's; it may be open all the same
            os.chmod(name, stat.S_IRWXU, dir_fd=at)
    fd = os.open(name, _OPEN, dir_fd=at)
    try:
        return Folder(fd, name, way)
    except BaseException:
        os.close(fd)
        raise


def _leave(levels: list[Folder], way: list[str], left: Callable[[Folder, str], None]) -> None:
    below = levels.pop()
    try:
        if levels:
            way.pop()
            levels[-1].reopen(below)
            left(levels[-1], below.name)
    finally:
        below.close()


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
