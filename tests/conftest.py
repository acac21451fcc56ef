"""Set-up shared by all tests: nothing outside temporary directories is read or written."""

from __future__ import annotations

import functools
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import typer

from tests import calc as library
from tests.evolve.shared import calc, evolve, evolved, installed, toy, whole  # noqa: F401 (fixtures)
from tests.tools import TEST_ALL
from valve_plugin.config import Settings
from valve_plugin.records import Task
from valve_plugin.tasks.repository import PreparedRepository

# Wall-clock deadlines per example say more about the machine's load than about the code.
hypothesis.settings.register_profile("valve", deadline=None, print_blob=True, max_examples=100 if TEST_ALL else 25)
hypothesis.settings.load_profile("valve")

_GIT_CONFIG = """
[user]
    name = Test
    email = test@example.org
[init]
    defaultBranch = main
[commit]
    gpgsign = false
"""


def pytest_configure() -> None:
    """A shell's background job ignores Ctrl-C, and so would all that tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked `heavy` unless VALVE_TEST_ALL=1; then give them time, also on a busy machine.

    Files that have some come first, so that no test process is left alone with a long one at the end.
    """
    skip = pytest.mark.skip(reason="heavy: set VALVE_TEST_ALL=1 to run it")
    sizes, heavy = Counter(item.path for item in items), set[Path]()
    for item in items:
        if item.get_closest_marker("heavy"):
            heavy.add(item.path)
            item.add_marker(pytest.mark.timeout(1200) if TEST_ALL else skip, append=False)
    items.sort(key=lambda item: (item.path not in heavy, -sizes[item.path], item.path))


@pytest.fixture(scope="session", autouse=True)
def _own_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the person's settings, user data and git identity out of the tests, and the tests out of theirs."""
    home = tmp_path_factory.mktemp("person")
    above = home.parent.parent if "PYTEST_XDIST_WORKER" in os.environ else home.parent
    (home / "gitconfig").write_text(_GIT_CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith(("VALVE_", "GIT_", "MSWEA_")) and n != "VALVE_TEST_ALL"]:
            patch.delenv(name)
        # Else each of the hundreds of processes that tests start would compile this package anew: half of its start.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setattr("tests.once.root", above / "once")
        # Making every command of `valve` takes longer than most of them; a test that runs one needs them once.
        patch.setattr("typer.testing._get_command", functools.cache(typer.main.get_command))
        patch.setenv("VALVE_DATA", str(home / "data"))
        patch.setenv("GIT_CONFIG_GLOBAL", str(home / "gitconfig"))
        patch.setenv("GIT_CONFIG_NOSYSTEM", "1")
        patch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(home / "mini"))
        patch.setenv("MSWEA_SILENT_STARTUP", "1")
        patch.setenv("MSWEA_CONFIGURED", "true")
        yield


@pytest.fixture(scope="session", autouse=True)
def _quick() -> Iterator[None]:
    """Do not wait for the disk: a kill loses nothing that the kernel has, and tests write thousands of files.

    That the waiting is asked for, and in the right order, is tested in tests/test_files.py.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user data directory of this test's own."""
    directory = tmp_path / "user-data"
    monkeypatch.setenv("VALVE_DATA", str(directory))
    return directory


@pytest.fixture(scope="session")
def calc_task(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreparedRepository, Task]:
    """The prepared repository and its task; needs no sandbox."""
    _, prepared, task = library.taskset(tmp_path_factory.mktemp("calc"))
    return prepared, task


@pytest.fixture
def unsafe() -> Settings:
    """Settings that allow to run without a sandbox where there is none."""
    return Settings(unsafe_local=True)


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of the calc repository with SWE-smith's layout."""
    return library.image(tmp_path_factory.mktemp("image"))
