"""A small real repository, prepared once, and ways to evolve a bank on it."""

from __future__ import annotations

import os
import shutil
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
    site = tmp_path_factory.mktemp("site")
    info = site / "toy-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(Path(__file__).with_name("toy.py"), site)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[minisweagent.plugins]\ntoy = toy\n")
    return site


Evolve = Callable[..., "library.Done"]


@pytest.fixture(scope="session")
def evolve(calc: Path, toy: Path) -> Evolve:
    """Evolve a bank with the toy plugin in a process of its own."""

    def run(bank: Path, *arguments: str, check: bool = True, **env: str) -> library.Done:
        path = os.pathsep.join([str(toy), os.environ.get("PYTHONPATH", "")])
        return library.valve(*ARGUMENTS, calc, "--bank", bank, *arguments, check=check, PYTHONPATH=path, **env)

    return run


@pytest.fixture(scope="session")
def whole(evolve: Evolve, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bank of one whole, uninterrupted run with one worker. Do not change it."""
    bank = tmp_path_factory.mktemp("whole") / "bank"
    evolve(bank)
    return bank


ARGUMENTS = (
    "evolve", "--panel-size", "4", "--rollouts", "2", "--unsafe-local",
    "-c", 'plugins=["valve","toy"]', "-c", "model=toy", "-c", "embedding=hashing", "-c", "rho=0.1",
)  # fmt: skip
