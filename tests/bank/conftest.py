"""Banks to try things on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bank import build
from valve_plugin.bank.entries import Entry
from valve_plugin.bank.store import BankStore


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    """Do not wait for the disk: a kill loses nothing that the kernel has, and these tests write thousands of files.

    That the waiting is asked for, and in the right order, is tested in test_files.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


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
