"""Private directories below the system's temporary one; what a killed process left goes with the next of its kind."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path

_NEWBORN_SECONDS = 60


def private(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Return a new directory, locked by this process; those of the same prefix whose process is dead are removed.

    A lock dies with its process, so a directory that nobody holds has no owner.
    """
    _sweep(prefix)
    made = tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    lock = _locked(made.name)
    if lock is not None:
        weakref.finalize(made, os.close, lock)
    return made


def _sweep(prefix: str) -> None:
    """Remove the directories of this user that nobody holds. A newborn may have no lock yet."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            status = path.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < _NEWBORN_SECONDS:
                continue
            lock = _locked(str(path))
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked(directory: str) -> int | None:
    """Lock a directory for this process; None: another holds it.

    Raises:
        OSError: it is no directory, or cannot be opened.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd
