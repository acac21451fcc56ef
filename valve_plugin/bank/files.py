"""Reading that refuses surprises and writing that survives a kill at any instant."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from valve_plugin.errors import BankCorruptError, BankError, BankNotFoundError, InfrastructureError, ValveError

_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_APPEND = os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)

_WAY_OUT = {
    errno.EACCES: "make it accessible to this user, or choose another place with --bank",
    errno.EPERM: "make it accessible to this user, or choose another place with --bank",
    errno.ENOENT: "nothing can be made there: choose another place with --bank",
    errno.EROFS: "it is on a read-only file system: choose another place with --bank",
    errno.ENOSPC: "free some disk space and try again",
    errno.EDQUOT: "free some of your disk quota and try again",
    errno.ELOOP: "it is a symbolic link: put the file itself there",
    errno.ENOTDIR: "a file stands where a directory is expected: choose another place with --bank",
}


_OF_THE_HOST = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Nobody used anything wrongly: the same command works again when the host is well."""


@contextmanager
def naming(path: Path, action: str) -> Iterator[None]:
    """Turn an OSError about `path` into a BankError that names it, what was tried and the way out."""
    try:
        yield
    except ValveError:
        raise
    except OSError as e:
        way_out = _WAY_OUT.get(e.errno or 0, "")
        error = BankError(f"{path}: cannot {action}: {e.strerror or e}" + (f"; {way_out}" if way_out else ""))
        if e.errno in _OF_THE_HOST:
            error.exit_code = InfrastructureError.exit_code
        raise error from e


def read_limited(path: Path, max_bytes: int, what: str) -> bytes:
    """Return a regular file's bytes.

    Raises:
        BankNotFoundError: there is no such file.
        BankCorruptError: larger than `max_bytes`.
        BankError: unreadable, a symbolic link, or not a regular file.
    """
    with naming(path, f"read {what}"):
        try:
            fd = os.open(path, _READ)
        except FileNotFoundError as e:
            raise BankNotFoundError(f"{path}: there is no {what}") from e
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise BankError(f"{path}: {what} is not a regular file; put a file there or choose another --bank")
            _require_size(path, info.st_size, max_bytes, what)
            with open(fd, "rb", buffering=0, closefd=False) as file:
                data: bytes = file.readall()  # `read(max_bytes)` would reserve that much memory first
            _require_size(path, len(data), max_bytes, what)
            return data
        finally:
            os.close(fd)


def _require_size(path: Path, size: int, max_bytes: int, what: str) -> None:
    if size > max_bytes:
        raise BankCorruptError(
            f"{path}: {what} has {size} bytes, expected at most {max_bytes}, so it is hardly the right file"
        )


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file so that at any instant, whatever is killed, it holds either the old or all of the new bytes."""
    with naming(path, "write"), _written_beside(path, data) as new:
        os.replace(new, path)


def write_new(path: Path, data: bytes) -> bool:
    """Create a file as atomically as `write_atomic`; False, and nothing changed, when it exists already."""
    with naming(path, "write"), _written_beside(path, data) as new:
        try:
            os.link(new, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links: take the name, then fill it
            try:
                os.close(os.open(path, _NEW, 0o666))
            except FileExistsError:
                return False
            os.replace(new, path)
    return True


def append_durable(path: Path, line: bytes) -> None:
    """Append to an existing file and return once it is on disk; on failure the file is as before.

    Callers hold a lock: the file is cut back to its former size when the write fails half-way.
    """
    with naming(path, "append"):
        fd = os.open(path, _APPEND)
        try:
            size = os.fstat(fd).st_size
            try:
                _write_all(fd, line)
                os.fsync(fd)
            except BaseException:
                os.ftruncate(fd, size)
                raise
        finally:
            os.close(fd)


def append_shared(path: Path, line: bytes) -> None:
    """Append one line to a log that many processes write at once without a lock. Survives kills, not power cuts.

    Each record starts on a line of its own, so one torn by a kill spoils only itself; blank lines mean nothing.
    """
    with naming(path, "append"):
        fd = os.open(path, _APPEND | os.O_CREAT, 0o666)
        try:
            _write_all(fd, b"\n" + line + b"\n")
        finally:
            os.close(fd)


def cut(path: Path, size: int) -> None:
    """Cut a file to its first `size` bytes, durably."""
    with naming(path, "cut"):
        fd = os.open(path, _APPEND)
        try:
            os.ftruncate(fd, size)
            os.fsync(fd)
        finally:
            os.close(fd)


def make_dir(path: Path, mode: int = 0o777) -> None:
    """Create a directory (with `mode`) and its parents, durably; fine when it exists."""
    missing = [d for d in (path, *path.parents) if not d.exists()]
    with naming(path, "create"):
        path.mkdir(mode, parents=True, exist_ok=True)
        for directory in missing:
            sync_dir(directory.parent)


def sync_dir(path: Path) -> None:
    """Make the names in a directory durable, where the platform can."""
    with suppress(PermissionError):  # a directory one may write but not read
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@contextmanager
def _written_beside(path: Path, data: bytes) -> Iterator[Path]:
    """A durable temporary file beside `path` (hidden, named *.tmp) that is gone afterwards, whatever happens."""
    new = path.with_name(f".{path.name[:200]}.{os.urandom(6).hex()}.tmp")
    fd = os.open(new, _NEW, 0o666)
    try:
        try:
            _write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        yield new
        with suppress(FileNotFoundError):
            new.unlink()
        sync_dir(path.parent)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
