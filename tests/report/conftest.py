"""Runs and pages of these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.banks import sample
from tests.report.browser import chromium
from tests.report.runs import Maker
from valve_plugin.report.build import build_run
from valve_plugin.report.run import RunReport


@pytest.fixture(scope="session")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for banks, with a user data folder of its own while they are made."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VALVE_DATA", str(folder / "user-data"))
        yield folder


@pytest.fixture(scope="session")
def small(runs_dir: Path) -> RunReport:
    """Two gates on two tasks, an accept and a reject that stopped early; no rollout is kept."""
    return build_run(sample(runs_dir / "small"))


@pytest.fixture
def grown(tmp_path: Path, data_dir: Path) -> Maker:
    """Twelve stream tasks, every second mixed, on a panel of 20; some proposals were accepted."""
    maker = Maker(tmp_path / "bank", 20, seed=3)
    maker.stream(12, 2)
    assert maker.store.bank.version
    return maker


@pytest.fixture(scope="session")
def long(runs_dir: Path) -> RunReport:
    """Thirty stream tasks, versions 0 and the last read on the holdout, the last bank measured three times more."""
    maker = Maker(runs_dir / "long", 8, seed=3, panel_kept=True)
    maker.stream(30, 2)
    maker.evaluate(0, 12)
    maker.evaluate(maker.store.bank.version, 15)
    for _ in range(3):
        maker.measure()
    return build_run(maker.store)


@pytest.fixture
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found
