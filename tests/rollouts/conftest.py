"""The calc repository, prepared once per test session."""

from __future__ import annotations

import pytest

from tests.rollouts import calc
from valve_plugin.config import Settings
from valve_plugin.records import Task
from valve_plugin.tasks.repository import Prepared


@pytest.fixture(scope="session")
def calc_task(tmp_path_factory: pytest.TempPathFactory) -> tuple[Prepared, Task]:
    """The prepared repository and its task; needs no sandbox."""
    _, prepared, task = calc.taskset(tmp_path_factory.mktemp("calc"))
    return prepared, task


@pytest.fixture
def unsafe() -> Settings:
    """Settings that allow to run without a sandbox where there is none."""
    return Settings(unsafe_local=True)


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of the calc repository with SWE-smith's layout."""
    return calc.image(tmp_path_factory.mktemp("image"))
