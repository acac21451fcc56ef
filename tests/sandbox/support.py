"""What the tests of this room share: deep folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
