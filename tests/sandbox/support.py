"""What the tests of this room share: open workspaces, deep folders, and a look at the machine's processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

DEPTH = 1500


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work inside a folder, by relative paths."""
    before = os.open(".", os.O_RDONLY)
    os.chdir(folder)
    try:
        yield
    finally:
        os.fchdir(before)
        os.close(before)


def dig(folder: Path, depth: int = DEPTH, name: str = "a") -> None:
    """Make folders one in another, and a file of 64 KiB in the last."""
    with inside(folder):
        for _ in range(depth):
            os.mkdir(name)
            os.chdir(name)
        Path("x.py").write_bytes(b"#" * 65_536)


def within(seconds: float, holds: Callable[[], bool]) -> bool:
    """Wait until something holds; return whether it does."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.02)
    return holds()


def running(command: str) -> list[psutil.Process]:
    """Return the processes on this machine with exactly this command."""
    wanted = command.split()
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == wanted]
