"""Numbered scratch directories. Whoever holds a slot's lock owns it; a lock dies with its process, so what a killed
process left behind is removed by the next one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from valve_plugin.bank.paths import data_dir
from valve_plugin.errors import InfrastructureError
from valve_plugin.rollouts.foreign import remove

MOST = 4096
"""Slots there can be at once."""


@contextmanager
def slot() -> Iterator[tuple[int, Path]]:
    """Yield (number, empty private directory) of a slot nobody else holds; the directory is removed at the end.

    Raises:
        InfrastructureError: the user data directory cannot be written.
    """
    root = data_dir() / "workspaces"
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        reap(root)
        number, lock = _acquire(root)
        path = root / str(number)
        path.mkdir(mode=0o700)
    except OSError as e:
        raise InfrastructureError(f"{root}: cannot make a workspace: {e}") from e
    try:
        yield number, path
    finally:
        remove(path)
        os.close(lock)


def reap(root: Path) -> None:
    """Remove what dead processes left behind."""
    for path in root.glob("*[0-9]"):
        lock = _try_lock(root / f"{path.name}.lock")
        if lock is not None:
            remove(path)
            os.close(lock)


def _acquire(root: Path) -> tuple[int, int]:
    for number in range(MOST):
        lock = _try_lock(root / f"{number}.lock")
        if lock is not None:
            remove(root / str(number))
            if not os.path.lexists(root / str(number)):
                return number, lock
            os.close(lock)  # what is there cannot be removed: somebody else's
    raise InfrastructureError(f"{root}: all {MOST} workspaces are in use or not ours; are other runs going?")


def _try_lock(path: Path) -> int | None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd
