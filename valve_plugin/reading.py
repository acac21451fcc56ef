"""Files that somebody else may have put there: a device never ends, a pipe waits for ever, a `.env` sets variables."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


def leave_dotenv() -> None:
    """Keep litellm, once it is imported, from a `.env` in or above a working directory, or an environment in a clone.

    A repository would say with it which server gets the keys and the issues. LITELLM_MODE=DEV, if set, lets it.
    """
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")


def regular(path: Path, most: int, *, start_only: bool = False) -> bytes:
    """Return the bytes of a regular file, or of the one a link leads to.

    Args:
        most: the bytes it may have.
        start_only: of a larger one, return the start.

    Raises:
        OSError: unreadable, no regular file (EINVAL), or larger (EFBIG).
    """
    fd = os.open(path, _FLAGS)
    with open(fd, "rb", buffering=0) as file:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        data = file.read(min(info.st_size, most) + 1) if info.st_size else file.read(most + 1)
    if len(data) > most and not start_only:
        raise OSError(errno.EFBIG, f"{info.st_size} bytes, expected at most {most}; is this the right file?")
    return data[:most]
