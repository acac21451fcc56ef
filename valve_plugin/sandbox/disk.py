"""The disk space that a command's files fill, with a name or without one."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from valve_plugin.sandbox.trees import walk

_BLOCK = 4096  # bytes; names use space as well
_HIDDEN_CHECKS = 8  # two seconds; a descriptor is on its way for less than one, and whoever takes it is seen with it
_DELETED = re.compile(rb"^(?:\S+ +){5}/(?!dev/).* \(deleted\)$", re.MULTILINE)  # in /proc/PID/maps; /dev is no disk
_QUEUED = re.compile(rb"^scm_fds:\s*[1-9]", re.MULTILINE)  # in /proc/PID/fdinfo/FD; Linux 5.10


class DiskWatch:
    """Watches whether a command's files fill more of the disk than they may."""

    def __init__(self, root: Path, limit: int) -> None:
        """Watch the folder `root`; `limit` is in bytes."""
        self.root, self.limit = root, limit
        self.filled, self.hidden = _filled(root), 0

    def exceeded(self, pids: Sequence[int] | None = None) -> bool:
        """Whether the folder's files, and those without a name that processes hold open, are too large.

        A process can hold a file where it is not among its descriptors: mapped, by a thread with descriptors of its
        own, or in the queue of a socket. That is looked for only while the disk is fuller than at the start by the
        limit. What cannot be counted then, again and again, is taken to be what the disk is fuller by, closed folders
        included.

        Args:
            pids: the processes; None when they have ended. Then closed folders are opened and closed again.
        """
        closed: list[str] = []
        named = disk_bytes(self.root, unlock=pids is None and os.geteuid() != 0, on_skip=closed.append)
        processes = [(pid, threads(pid)) for pid in pids or ()]
        if named + _held(f"/proc/{pid}/fd" for pid, _ in processes)[0] > self.limit:
            return True
        if _filled(self.root) - self.filled <= self.limit:
            self.hidden = 0
            return False
        mapped = [f"/proc/{tids[-1]}/map_files" for _, tids in processes if tids]
        held, sockets = _held([*(f"/proc/{tid}/fd" for _, tids in processes for tid in tids), *mapped])
        if named + held > self.limit:
            return True
        hidden = closed or any(map(_on_its_way, sockets)) or (os.geteuid() and any(map(_deleted, mapped)))
        self.hidden = self.hidden + 1 if hidden else 0
        return self.hidden > _HIDDEN_CHECKS


def disk_bytes(root: Path, *, unlock: bool = False, on_skip: Callable[[str], object] = lambda _: None) -> int:
    """Return the disk space of a directory's files in bytes, without following links.

    A file with several names counts once, as does one that is moved at the same time; each name uses at least a block.

    Args:
        unlock: also of folders that their owner has closed; they are opened for that.
        on_skip: called with the name of a folder that cannot be opened.
    """
    total, seen = 0, set[int]()
    with suppress(OSError):  # a folder was moved at the same time: the next check counts it
        for folder in walk(root, unlock=unlock, relock=True, on_skip=on_skip):
            for name in (*folder.others, *folder.folders):
                with suppress(OSError):
                    status = folder.status(name)
                    total += max(status.st_blocks * 512 * (status.st_ino not in seen), _BLOCK)
                    seen.add(status.st_ino)
    return total


def _filled(root: Path) -> int:
    """Return how many bytes of a folder's file system are in use, by anybody."""
    status = os.statvfs(root)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def threads(pid: int) -> list[int]:
    """Return the threads of a process, each with a folder in /proc as well; the first one may have ended."""
    with suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def _held(folders: Iterable[str]) -> tuple[int, list[str]]:
    """Look at what processes hold, as far as this user may see it.

    Args:
        folders: in /proc, of links to files.

    Returns:
        (disk space of files without a name, folders and names of sockets)
    """
    files: dict[tuple[int, int], int] = {}
    sockets: dict[int, str] = {}
    for folder in folders:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):
                    status = entry.stat()
                    if stat.S_ISREG(status.st_mode) and not status.st_nlink:
                        files[status.st_dev, status.st_ino] = status.st_blocks * 512
                    elif stat.S_ISSOCK(status.st_mode):
                        sockets[status.st_ino] = entry.path
    return sum(files.values()), list(sockets.values())


def _on_its_way(socket: str) -> bool:
    """Whether a descriptor was sent to a socket and not yet received."""
    with suppress(OSError):
        return bool(_QUEUED.search(Path(socket.replace("/fd/", "/fdinfo/")).read_bytes()))
    return False


def _deleted(mapped: str) -> bool:
    """Whether a file without a name is mapped; without root its size is not known."""
    with suppress(OSError):
        return bool(_DELETED.search(Path(mapped).with_name("maps").read_bytes()))
    return False
