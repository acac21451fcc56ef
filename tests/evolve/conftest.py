"""A small real repository, prepared once, and ways to evolve a bank on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.evolve import library
from valve_plugin.tasks.load import load
from valve_plugin.tasks.repository import prepare


@pytest.fixture(scope="session")
def calc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The task set about the little library, ready for rollouts."""
    folder = library.write(tmp_path_factory.mktemp("calc"))
    prepare(load(folder).repository)
    return folder


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with the toy plugin as an installed distribution: put it on PYTHONPATH."""
    return library.toy_site(tmp_path_factory.mktemp("site"))


Evolve = Callable[..., "library.Done"]


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
def whole(evolve: Evolve, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bank of one whole, uninterrupted run with one worker. Do not change it."""
    bank = tmp_path_factory.mktemp("whole") / "bank"
    evolve(bank)
    return bank
