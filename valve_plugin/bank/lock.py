"""One writer at a time: operating system locks, which a process drops when it dies, however it dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from valve_plugin.bank.files import naming
from valve_plugin.errors import BankBusyError, BankError


@contextmanager
def locked(path: Path, timeout: float, busy: str) -> Iterator[None]:
    """Hold the lock file `path`, waiting at most `timeout` seconds.

    Raises:
        BankBusyError: with the text `busy`, when another process or thread keeps it.
        BankError: the lock file cannot be made.
    """
    from filelock import FileLock, Timeout  # 50 ms to import, and only writers need it

    if path.is_symlink():  # not every version of filelock refuses to create or empty what it points to
        raise BankError(f"{path}: is a symbolic link, expected a lock file; delete it")
    lock = FileLock(str(path), timeout=timeout)
    with naming(path, "lock"):
        try:
            lock.acquire()
        except Timeout as e:
            raise BankBusyError(busy) from e
    try:
        yield
    finally:
        lock.release()
