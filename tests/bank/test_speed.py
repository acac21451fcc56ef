"""Reading a bank costs a few milliseconds of CPU, and imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.bank import build
from valve_plugin.bank.entries import Baseline, EpochOpened, PanelFixed, Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.records import Bank, Item, PanelResult, Proposal

HEAVY = ("jsonschema", "numpy", "litellm", "filelock", "asyncio", "subprocess", "valve_plugin.theory")


def large(path: Path, items: int, size: int) -> BankStore:
    """A bank of `items` items with bodies of `size` characters, ten an accept."""
    store = BankStore.create(path, build.REPO)
    panel = replace(build.PANEL, rho="0")  # a tie is enough
    store.append(PanelFixed(panel=panel))
    store.append(EpochOpened(epoch=1, horizon=10**6, delta="0.05", panel_hash=panel.hash, reason="large"))
    found = build.rollouts("none", "resolved")
    store.append(Baseline(epoch=1, result=PanelResult(bank_hash=Bank(repo=build.REPO).hash, outcomes=found)))
    for step in range(items // 10):
        new = tuple(
            replace(build.item(step * 10 + i), markdown="Look at both sides. " * (size // 20)) for i in range(10)
        )
        move = Proposal(task_id=f"t{step}", items=new)
        store.append(Proposed(proposal=move))
        verdict = build.judged(store.bank, move, step + 1, 4, build.rollouts(f"b{step}", "resolved"))
        store.append(verdict)
    return store


def test_a_bank_of_two_hundred_items(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PANEL", replace(build.PANEL, rho="0"))
    path = large(tmp_path / "bank", 200, 2000).dir
    spent = []
    for _ in range(9):
        start = time.process_time()
        bank = BankStore.open(path).bank
        spent.append(time.process_time() - start)
    assert len(bank.items) == 200
    assert isinstance(bank.items[0], Item)
    assert sorted(spent)[4] < 0.020  # seconds; about 0.004 where nothing else runs


def test_reading_imports_nothing_heavy(bank_dir: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from valve_plugin.bank.store import BankStore
from valve_plugin.records import Attempt, Context
store = BankStore.open(Path({str(bank_dir)!r}))
store.local.add_attempt(Attempt(id="a", task_id="t", ordinal=0, source="live", outcome="ungraded"), b"trajectory")
store.local.count_use(Context(text=""))
store.local.queue_push({{"kind": "extract"}})
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr
