"""The small repository and the toy plugin of the evolution tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from valve_plugin import config
from valve_plugin.bank.store import BankStore


@pytest.fixture
def bank(whole: Path, tmp_path: Path) -> Path:
    """A copy of the evolved bank, free to change."""
    return Path(shutil.copytree(whole, tmp_path / "bank"))


@pytest.fixture
def settings(calc: Path) -> Callable[[BankStore], config.Settings]:
    """Settings of a run with the toy plugin."""

    def of(store: BankStore, **changes: object) -> config.Settings:
        given = {"plugins": ["valve", "toy"], "model": "toy", "unsafe_local": True, "tasks": str(calc), **changes}
        return store.settings(given)

    return of
