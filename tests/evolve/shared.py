"""A small real repository, ways to evolve a bank on it, and what one run made: once for all test processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.evolve import library
from tests.lean import lean
from tests.once import once
from valve_plugin.paths import local_dir
from valve_plugin.tasks.repository import prepare
from valve_plugin.tasks.task_set import load

Evolve = Callable[..., "library.Done"]


@pytest.fixture(scope="session")
def calc() -> Path:
    """The task set about the little library, ready for rollouts. Do not change it."""
    folder = once("calc", lambda made: library.write(made, lean()))
    prepare(load(folder).repository)
    return folder


@pytest.fixture(scope="session")
def toy() -> Path:
    """Directory with the toy plugin as an installed distribution: put it on PYTHONPATH."""
    return once("site", library.toy_site)


@pytest.fixture(scope="session")
def evolve(calc: Path, toy: Path) -> Evolve:
    """Evolve a bank with the toy plugin and these variables."""

    def run(bank: Path, *arguments: str, check: bool = True, **env: str) -> library.Done:
        words = ["evolve", *library.TOY, str(calc), "--bank", str(bank), *arguments]
        path = os.pathsep.join([str(toy), os.environ.get("PYTHONPATH", "")])
        apart = "TOY_CLOCK" in env  # it takes effect when the plugin is imported, and for good
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(toy))
            return library.valve(*words, check=check, apart=apart, PYTHONPATH=path, **env)

    return run


@pytest.fixture
def installed(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy plugin is installed, here and in the processes started from here."""
    monkeypatch.syspath_prepend(str(toy))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(toy), os.environ.get("PYTHONPATH", "")]))


@pytest.fixture(scope="session")
def evolved(evolve: Evolve) -> Callable[..., Path]:
    """`evolved(name, *arguments)`: the bank of such a run, with the user data about it. Do not change it."""

    def bank(name: str, *arguments: str) -> Path:
        def make(folder: Path) -> None:
            evolve(folder / "bank", *arguments)
            shutil.copytree(local_dir(folder / "bank"), folder / "local")

        made = once(name, make)
        shutil.copytree(made / "local", local_dir(made / "bank"), dirs_exist_ok=True)
        return made / "bank"

    return bank


@pytest.fixture
def whole(evolved: Callable[..., Path]) -> Path:
    """The bank of one whole, uninterrupted run with one worker. Do not change it."""
    return evolved("whole")
