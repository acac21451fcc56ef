"""What can be seen of a running command from outside, without it taking part."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TAIL = 4096  # bytes


class Glance(NamedTuple):
    """What is known at one moment."""

    output: bytes
    """What it wrote since the last glance."""
    cpu_seconds: float
    """Of all its processes together, so far."""
    wants_cpu: Callable[[], bool]
    """Whether any of its threads runs, or would if the machine had time for it."""
    last_words: Callable[[], str]
    """The last line in a file that one of its processes has as its output (pytest's capture is one); empty: none."""


Tap = Callable[[Glance], None]
"""Told a few times a second; what it raises ends the command."""


def wants_cpu(pid: int) -> bool:
    """True when a thread of a process or its descendants is running, ready to run, or waiting for a disk.

    Without /proc nothing is known: False.
    """
    for process in _family(pid):
        for thread in Path(f"/proc/{process}/task").glob("*/stat"):
            with suppress(OSError, IndexError):
                if thread.read_text(errors="replace").rpartition(")")[2].split()[0] in "RD":
                    return True
    return False


def last_words(pid: int) -> str:
    """Return the last line in a regular file that a descendant writes its standard output or error to."""
    for process in reversed(list(_family(pid))):  # whoever came last
        for descriptor in (1, 2):
            with suppress(OSError):
                if said := _last_line(f"/proc/{process}/fd/{descriptor}"):
                    return said
    return ""


def _last_line(path: str) -> str:
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening anything else might wait, or take what is not ours
        return ""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        lines = file.read(_TAIL).decode("utf-8", "replace").splitlines()
    return next((line for line in reversed(lines) if line.strip()), "")


def _family(pid: int) -> Iterator[int]:
    import psutil

    yield pid
    with suppress(psutil.Error):
        yield from (child.pid for child in psutil.Process(pid).children(recursive=True))
