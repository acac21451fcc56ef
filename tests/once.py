"""What several tests start from, made by the first test process that asks for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` filled, in this process or in another of the same session. Do not change it."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder = root / "once" / name
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(root / "once" / f"{name}.lock"):
        done = root / "once" / f"{name}.done"
        if not done.exists():
            shutil.rmtree(folder)  # half made, if at all
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
