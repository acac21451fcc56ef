"""Files: safe reading, writing that survives a kill at any moment, compression, and locks.

Another user may have put a device or a pipe at a path; reading one might never end, so they are refused.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from valve_plugin import errors

_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_READ = os.O_RDONLY | _CLOEXEC | getattr(os, "O_NONBLOCK", 0)
_APPEND = os.O_WRONLY | os.O_APPEND | _CLOEXEC | _NO_FOLLOW
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOEXEC

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
_HOST_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Errors of the host: the same command works again when they are fixed."""
_GZIP = 31  # zlib window bits for a gzip file; unlike the gzip module, without a time stamp
_MAX_PACKED, _MAX_UNPACKED = 1 << 28, 1 << 30


@contextmanager
def bank_errors(path: Path, action: str) -> Iterator[None]:
    """Turn an OSError about `path` into a BankError with the path, the action and what to do."""
    try:
        yield
    except errors.ValveError:
        raise
    except OSError as e:
        way_out = _WAY_OUT.get(e.errno or 0, "")
        error = errors.BankError(f"{path}: cannot {action}: {e.strerror or e}" + (f"; {way_out}" if way_out else ""))
        if e.errno in _HOST_ERRORS:
            error.exit_code = errors.InfrastructureError.exit_code
        raise error from e


def read_limited(path: Path, max_bytes: int, what: str) -> bytes:
    """Return the bytes of a regular file in a directory of valve's; links are not followed.

    Raises:
        BankNotFoundError: there is no such file.
        BankCorruptError: larger than `max_bytes`.
        BankError: unreadable, a symbolic link, or not a regular file.
    """
    with bank_errors(path, f"read {what}"):
        try:
            return _read(path, _READ | _NO_FOLLOW, max_bytes)
        except FileNotFoundError as e:
            raise errors.BankNotFoundError(f"{path}: there is no {what}") from e
        except OSError as e:
            if e.errno == errno.EINVAL:
                raise errors.BankError(
                    f"{path}: {what} is not a regular file; put a file there or choose another --bank"
                ) from e
            if e.errno == errno.EFBIG:
                raise errors.BankCorruptError(f"{path}: {what} has {e.strerror}") from e
            raise


def read_regular(path: Path, most: int, *, start_only: bool = False) -> bytes:
    """Return the bytes of any regular file; links are followed.

    Args:
        most: largest size, in bytes.
        start_only: return the start of a larger file instead of an error.

    Raises:
        OSError: unreadable, not a regular file (EINVAL), or larger (EFBIG).
    """
    return _read(path, _READ, most, start_only=start_only)


def read_text(path: Path, limit: int = 1_000_000) -> str:
    """Return the start of any file as text, at most `limit` bytes, or an empty string if it cannot be read."""
    try:
        return read_regular(path, limit, start_only=True).decode("utf-8", "replace")
    except OSError:
        return ""


def _read(path: Path, flags: int, most: int, *, start_only: bool = False) -> bytes:
    fd = os.open(path, flags)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        with open(fd, "rb", buffering=0, closefd=False) as file:
            if start_only:
                return file.read(most)
            size = info.st_size
            if size <= most:
                data: bytes = file.readall()  # `read(most)` would reserve that much memory first
                size = len(data)  # it may have grown, and files in /proc have no size
    finally:
        os.close(fd)
    if size > most:
        raise OSError(errno.EFBIG, f"{size} bytes, expected at most {most}, so it is hardly the right file")
    return data


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file atomically: after a kill at any moment it has either all old or all new bytes."""
    with bank_errors(path, "write"), _temporary_file(path, data) as new:
        os.replace(new, path)


def write_new(path: Path, data: bytes) -> bool:
    """Create a file atomically; return False, and change nothing, if it exists."""
    with bank_errors(path, "write"), _temporary_file(path, data) as new:
        try:
            os.link(new, path)
        except FileExistsError:
            return False
    return True


def append_durable(path: Path, line: bytes) -> None:
    """Append to an existing file and return once it is on disk; on failure the file is as before.

    Callers hold a lock: the file is cut back to its former size when the write fails half-way.
    """
    with bank_errors(path, "append"):
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
    with bank_errors(path, "append"):
        fd = _create(path, _APPEND | os.O_CREAT)
        try:
            _write_all(fd, b"\n" + line + b"\n")
        finally:
            os.close(fd)


def truncate(path: Path, size: int) -> None:
    """Cut a file to its first `size` bytes, durably."""
    with bank_errors(path, "cut"):
        fd = os.open(path, _APPEND)
        try:
            os.ftruncate(fd, size)
            os.fsync(fd)
        finally:
            os.close(fd)


def make_dir(path: Path, mode: int = 0o777) -> None:
    """Create a directory and its parents (with `mode`), durably; fine when it exists."""
    missing = [d for d in (path, *path.parents) if not d.exists()]
    with bank_errors(path, "create"):
        for directory in reversed(missing):
            directory.mkdir(mode, exist_ok=True)
            if (given := stat.S_IMODE(directory.stat().st_mode)) & 0o700 != 0o700:
                directory.chmod(given | 0o700)  # the umask closes it to its owner, too
        path.mkdir(mode, exist_ok=True)  # raises where something else is there
        for directory in missing:
            sync_dir(directory.parent)


def make_private_dir(path: Path) -> None:
    """Create a directory and its missing parents for this user only; close one that exists and is open to others.

    New files of this module in such a directory are private as well.
    """
    make_dir(path, 0o700)
    with bank_errors(path, "close"), suppress(PermissionError):  # another user's
        if not _is_private(path):
            path.chmod(0o700)


def _is_private(folder: Path) -> bool:
    """Whether only its owner may use a directory."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    return mode & 0o700 == 0o700 and not mode & 0o077


def _create(path: Path, flags: int) -> int:
    """Open a file, new ones with the rights that the directory has; return its descriptor."""
    return os.open(path, flags, 0o600 if _is_private(path.parent) else 0o666)


def sync_dir(path: Path) -> None:
    """Make the names in a directory durable, where the platform can."""
    with suppress(PermissionError):  # a directory one may write but not read
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@contextmanager
def _temporary_file(path: Path, data: bytes) -> Iterator[Path]:
    """Yield a durable temporary file beside `path` (hidden, named *.tmp), which is always removed afterwards."""
    new = path.with_name(f".{path.name[:200]}.{os.urandom(6).hex()}.tmp")
    fd = _create(new, _NEW)
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


def pack(data: bytes) -> bytes:
    """Return gzip bytes that depend on nothing but `data`."""
    packer = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    return packer.compress(data) + packer.flush()


def unpack(path: Path, what: str) -> bytes:
    """Read a file that `pack` made.

    Raises:
        BankNotFoundError: there is no such file.
        BankError: it is damaged, truncated, or unpacks to more than a gigabyte.
    """
    unpacker = zlib.decompressobj(_GZIP)
    try:
        data = unpacker.decompress(read_limited(path, _MAX_PACKED, what), _MAX_UNPACKED)
    except zlib.error as e:
        raise errors.BankError(f"{path}: damaged {what}: {e}; delete it") from e
    if not unpacker.eof:
        raise errors.BankError(f"{path}: truncated, or unpacks to more than {_MAX_UNPACKED} bytes; delete it")
    return data


@contextmanager
def hold_lock(path: Path, timeout: float, busy: str) -> Iterator[None]:
    """Hold the lock file `path`, waiting at most `timeout` seconds.

    Raises:
        BankBusyError: with the text `busy`, when another process or thread keeps it.
        BankError: the lock file cannot be made.
    """
    from filelock import FileLock, Timeout  # 50 ms to import, and only writers need it

    if path.is_symlink():  # not every version of filelock refuses to create or empty what it points to
        raise errors.BankError(f"{path}: is a symbolic link, expected a lock file; delete it")
    lock = FileLock(str(path), timeout=timeout)
    with bank_errors(path, "lock"):
        try:
            lock.acquire()
        except Timeout as e:
            raise errors.BankBusyError(busy) from e
    try:
        yield
    finally:
        lock.release()
