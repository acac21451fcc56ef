"""Private scratch folders, each with a lock that its owner holds.

The kernel releases a lock when its process ends, so the next process can remove the folders of killed processes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from valve_plugin.errors import InfrastructureError
from valve_plugin.files import make_private_dir
from valve_plugin.paths import data_dir
from valve_plugin.sandbox.trees import remove_tree

MAX_FOLDERS = 4096
"""Maximum number of numbered folders at the same time."""
_NEW_SECONDS = 60
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield an empty private directory in user data, whose name is a number that no other one in use has.

    It is removed at the end or, after a kill, by the next run.

    Raises:
        InfrastructureError: the user data directory cannot be written.
    """
    root = data_dir() / "workspaces"
    try:
        make_private_dir(root)
        for left in root.glob("*[0-9]"):  # of killed processes
            if (free := _lock_number(root, left.name)) is not None:
                _kill_bubblewrap(left)
                remove_tree(left)
                os.close(free)
        number, lock = _acquire(root)
        path = root / str(number)
        path.mkdir(mode=0o700)
    except OSError as e:
        raise InfrastructureError(f"{root}: cannot make a workspace: {e}") from e
    try:
        yield path
    finally:
        remove_tree(path)
        os.close(lock)


def in_use() -> bool:
    """Whether a process of this machine has a workspace open."""
    root = data_dir() / "workspaces"
    for path in root.glob("*[0-9]"):
        lock = _lock_number(root, path.name)
        if lock is None:
            return True
        os.close(lock)
    return False


def private_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Return a new private directory of this process, in the system's temporary directory.

    Directories of this user with the same prefix whose process is dead are removed.
    """
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            status = path.lstat()
            new = time.time() - status.st_mtime < _NEW_SECONDS  # it may have no lock yet
            if status.st_uid != os.getuid() or new or (lock := _lock(path, _DIRECTORY)) is None:
                continue
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)
    made = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    lock = _lock(Path(made.name), _DIRECTORY)
    if lock is not None:
        weakref.finalize(made, os.close, lock)
    return made


def _kill_bubblewrap(folder: Path) -> None:
    """Kill processes of bwrap that mention a folder whose owner was killed.

    If bwrap is killed while it starts its child, the child waits for ever. It has run no command yet.
    """
    import psutil

    for process in psutil.process_iter(["name", "cmdline"]):
        words: list[str] = process.info["cmdline"] or []
        if process.info["name"] == "bwrap" and any(word.startswith(f"{folder}{os.sep}") for word in words):
            with suppress(psutil.Error):
                process.kill()


def _acquire(root: Path) -> tuple[int, int]:
    """Return (number, file descriptor of its lock) of a folder that is free and does not exist."""
    for number in range(MAX_FOLDERS):
        lock = _lock_number(root, str(number))
        if lock is not None:
            remove_tree(root / str(number))
            if not os.path.lexists(root / str(number)):
                return number, lock
            os.close(lock)  # it cannot be removed, because it belongs to another user
    raise InfrastructureError(f"{root}: all {MAX_FOLDERS} workspaces are busy; is another run active?")


def _lock_number(root: Path, name: str) -> int | None:
    return _lock(root / f"{name}.lock", os.O_RDWR | os.O_CREAT)


def _lock(path: Path, flags: int) -> int | None:
    """Lock a file or directory; return its file descriptor, or None if another process holds the lock."""
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd
