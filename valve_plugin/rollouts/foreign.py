"""Trees that somebody else wrote, an agent or an image: as deep as they like, with links wherever they like.

Nothing here recurses, goes through a symbolic link, or needs a path that fits into a system call: each folder is
opened from the one above it, and left by `..`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_OPEN = 32
"""Folders of the way down that stay open. A process has few descriptors, and its rollouts share them."""


class Folder:
    """A folder that `walk` has come to."""

    def __init__(self, fd: int, name: str, way: Sequence[str]) -> None:
        self.fd, self.name, self._way = fd, name, way
        self.identity = _identity(os.fstat(fd))
        self.folders: deque[str] = deque()
        """Entered next, in this order, unless they are taken out."""
        self.others: list[str] = []
        """Everything else: files, links, pipes."""
        with os.scandir(fd) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                (self.folders if entry.is_dir(follow_symlinks=False) else self.others).append(entry.name)

    def path(self, name: str = "") -> str:
        """Return the path of this folder, or of an entry, relative to the root. Good until the next one is yielded."""
        return "/".join((*self._way, name) if name else self._way)

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
    root: Path, *, unlock: bool = False, skip: bool = False, left: Callable[[Folder, str], None] = lambda *_: None
) -> Iterator[Folder]:
    """Yield a folder and all below it, each before what it holds.

    Args:
        root: no symbolic link itself.
        unlock: give the owner of a folder every right on it first.
        skip: leave out what cannot be opened.
        left: called with a folder and the name of one in it, once all of that was yielded.

    Raises:
        OSError: a folder cannot be opened, or was moved meanwhile.
    """
    way: list[str] = []
    levels: list[Folder] = []
    try:
        levels.append(_entered(None, str(root), way, unlock))
        yield levels[-1]
        while levels:
            here = levels[-1]
            if here.folders:
                name = here.folders.popleft()
                try:
                    below = _entered(here, name, way, unlock)
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


def remove(path: Path) -> None:
    """Remove whatever is there, as far as this process may. Never raises for what it finds."""

    def empty(folder: Folder, name: str) -> None:
        with suppress(OSError):
            os.rmdir(name, dir_fd=folder.fd)

    with suppress(OSError):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            path.unlink()
            return
        for folder in walk(path, unlock=True, skip=True, left=empty):
            for name in folder.others:
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder.fd)
        path.rmdir()


def _entered(above: Folder | None, name: str, way: Sequence[str], unlock: bool) -> Folder:
    at = above.fd if above else None
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
