"""Banks to try things on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bank import build
from valve_plugin.bank.entries import Entry
from valve_plugin.bank.store import BankStore


@pytest.fixture
def accept() -> list[Entry]:
    """A whole ledger that ends in its only accept."""
    return build.accepted()


@pytest.fixture
def bank_dir(tmp_path: Path, data_dir: Path) -> Path:
    """A bank directory with that ledger, and user data of its own."""
    path = tmp_path / "bank"
    store = BankStore.create(path, build.REPO)
    for entry in build.accepted()[1:]:
        store.append(entry)
    assert store.warnings == []
    return path
