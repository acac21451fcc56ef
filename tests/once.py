"""What several tests start from, made by the first test process that asks for it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

root: Path | None = None
"""A directory of all processes of this test session; set where it starts."""


def once(name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` filled, in this process or in another of the same session. Do not change it."""
    assert root is not None, "no test session has begun"
    folder, done = root / name, root / f"{name}.done"
    root.mkdir(exist_ok=True)
    with FileLock(root / f"{name}.lock"):
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # half made
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
