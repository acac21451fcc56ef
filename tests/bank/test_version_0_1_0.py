"""A bank and a task set that version 0.1.0 wrote (a simulation: `valve demo --fast`) still open, verify and go on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.bank import build
from valve_plugin.bank.entries import EpochOpened, OwnerAct, Proposed
from valve_plugin.bank.scripted_bank import is_scripted
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.codec import digest
from valve_plugin.evidence.receipts import examine
from valve_plugin.tasks.task_set import load

OLD = Path(__file__).parent / "version_0_1_0"


@pytest.fixture
def bank(tmp_path: Path, data_dir: Path) -> BankStore:
    """A copy of the bank that may be written to."""
    return BankStore.open(Path(shutil.copytree(OLD / "bank", tmp_path / "bank")))


def test_it_opens_replays_and_verifies(bank: BankStore) -> None:
    assert (bank.bank.repo, bank.bank.version, len(bank.bank.items)) == ("Suor/funcy", 1, 1)
    assert (len(list(bank.entries())), bank.queries_used(), bank.warnings) == (13, 4, [])
    assert bank.at(0).items == ()
    assert verify(bank.dir) == []
    assert is_scripted(bank.dir)


def test_contexts_duplicates_and_certificates_are_recomputed(bank: BankStore) -> None:
    receipt = examine(bank.dir, str(OLD / "tasks"))
    assert receipt.findings == ()
    assert receipt.recomputed == {"verdicts": 4, "contexts": 35, "duplicates": 7, "certificates": 1}


def test_it_can_be_continued(bank: BankStore) -> None:
    panel = bank.panel()
    assert panel is not None
    lines = (bank.dir / "ledger.jsonl").read_bytes()
    bank.append(Proposed(proposal=build.proposal(1)))
    bank.append(EpochOpened(epoch=2, horizon=9, delta="0.05", panel_hash=panel.hash, reason="a fresh count"))
    assert (bank.dir / "ledger.jsonl").read_bytes().startswith(lines), "what was written stays byte for byte"
    assert verify(bank.dir) == []
    assert BankStore.open(bank.dir).bank == bank.bank


def test_its_hashes_go_on_as_they_began(bank: BankStore) -> None:
    before, keys = bank.bank.hash, tuple(item.key for item in bank.bank.items)
    after = digest({"repo": "Suor/funcy", "version": 2, "principles": [], "skills": []})
    bank.append(OwnerAct(act="remove", reason="outdated", removes=keys, bank_hash=before, bank_after=after))
    assert verify(bank.dir) == []
    assert BankStore.open(bank.dir).bank.schema_version == 1


def test_its_task_set_and_split_are_read() -> None:
    tasks = load(OLD / "tasks")
    assert len(tasks.tasks) == 32
    assert tasks.split is not None
    assert (len(tasks.split.holdout.tasks), len(tasks.split.panel.tasks)) == (8, 8)
