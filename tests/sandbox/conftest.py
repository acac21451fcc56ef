"""Workspaces and sandboxes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools import need
from valve_plugin.config import Settings
from valve_plugin.records import Task
from valve_plugin.sandbox.bubblewrap import Bubblewrap, Sandbox, UnsafeLocal, choose
from valve_plugin.sandbox.workspace import Workspace
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.tasks.states import open_task


@pytest.fixture(params=["bubblewrap", "unsafe-local"])
def any_sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """Either way of running commands without a container."""
    unsafe = request.param == "unsafe-local"
    need("prlimit" if unsafe else "bwrap")
    return UnsafeLocal() if unsafe else Bubblewrap()


@pytest.fixture
def sandbox() -> Sandbox:
    """Bubblewrap."""
    need("bwrap")
    return choose(Settings())


@pytest.fixture
def place(calc_task: tuple[PreparedRepository, Task]) -> Iterator[Workspace]:
    """An open workspace of the calc task."""
    with open_task(*calc_task) as workspace:
        yield workspace


@pytest.fixture
def pit(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed in any case: pytest recurses over what tests leave."""
    yield (tmp_path / "pit")
    subprocess.run(["rm", "-rf", str(tmp_path)], check=True)
