"""`valve bank retire`: the bank without the item is judged like any other move."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from tests.evolve.library import ASK
from valve_plugin.bank.entries import Judged, Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.cli import app


@pytest.fixture
def bank(whole, installed, tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_SECONDS", "0")
    return shutil.copytree(whole, tmp_path / "bank")


@pytest.mark.heavy
def test_the_gate_decides_and_the_ledger_says_so(bank, calc):
    store = BankStore.open(bank)
    item, before, used = store.bank.items[0], store.bank, store.queries_used()
    done = CliRunner().invoke(
        app, ["bank", "retire", item.name, "--bank", str(bank), "--tasks", str(calc), *ASK, "--json"]
    )
    facts = json.loads(done.stdout)
    store.refresh()
    *_, proposed, judged = store.entries()
    assert isinstance(proposed, Proposed)
    assert proposed.proposal.removed == (item.key,)
    assert isinstance(judged, Judged)
    assert store.queries_used() == used + 1, "it counts as a query"
    assert facts["proposals"][-1]["removes"] == [f"{item.kind}: {item.name}"]
    assert f"proposed  without {item.kind}: {item.name}" in done.stderr
    assert facts["retired"] == (judged.verdict.decision == "accept")
    assert done.exit_code == (0 if facts["retired"] else 1)
    left = {i.key for i in store.bank.items}
    assert left == {i.key for i in before.items} - ({item.key} if facts["retired"] else set())
    unchanged = {o.context_hash for o in judged.verdict.reused}
    assert unchanged.isdisjoint(o.context_hash for o in judged.verdict.outcomes), "only changed contexts are run again"
    assert verify(bank) == []
