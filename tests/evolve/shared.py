"""A small real repository, ways to evolve a bank on it, and what one run made: once for all test processes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.evolve import library
from tests.once import once
from valve_plugin.bank.paths import local_dir
from valve_plugin.tasks import environment
from valve_plugin.tasks.load import load
from valve_plugin.tasks.repository import prepare

Evolve = Callable[..., "library.Done"]


@pytest.fixture(scope="session")
def lean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that holds pytest and nothing else, to grade in."""

    def make(folder: Path) -> None:
        environment.create(folder / "venv", environment.find_python(""), ["pytest"], lambda _: None)

    return once(tmp_path_factory, "lean", make) / "venv"


@pytest.fixture(scope="session")
def calc(lean: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The task set about the little library, ready for rollouts. Do not change it."""
    folder = once(tmp_path_factory, "calc", lambda made: library.write(made, lean))
    prepare(load(folder).repository)
    return folder


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the toy plugin as an installed distribution: put it on PYTHONPATH."""
    return once(tmp_path_factory, "site", library.toy_site)


@pytest.fixture(scope="session")
def evolve(calc: Path, toy: Path) -> Evolve:
    """Evolve a bank with the toy plugin in a process of its own."""

    def run(bank: Path, *arguments: str, check: bool = True, **env: str) -> library.Done:
        path = os.pathsep.join([str(toy), os.environ.get("PYTHONPATH", "")])
        return library.valve(
            "evolve", *library.TOY, calc, "--bank", bank, *arguments, check=check, PYTHONPATH=path, **env
        )

    return run


@pytest.fixture(scope="session")
def evolved(evolve: Evolve, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`evolved(name, *arguments)`: the bank of such a run, with the user data about it. Do not change it."""

    def bank(name: str, *arguments: str) -> Path:
        def make(folder: Path) -> None:
            evolve(folder / "bank", *arguments)
            shutil.copytree(local_dir(folder / "bank"), folder / "local")

        made = once(tmp_path_factory, name, make)
        shutil.copytree(made / "local", local_dir(made / "bank"), dirs_exist_ok=True)
        return made / "bank"

    return bank


@pytest.fixture(scope="session")
def whole(evolved: Callable[..., Path]) -> Path:
    """The bank of one whole, uninterrupted run with one worker. Do not change it."""
    return evolved("whole")
