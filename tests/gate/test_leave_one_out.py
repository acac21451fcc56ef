"""Leave-one-out for real: a report that changes neither bank nor score, whose rollouts no gate ever uses."""

from __future__ import annotations

import json
import shutil

import pytest
from msgspec import UNSET
from msgspec.structs import replace
from typer.testing import CliRunner

from tests.gate.test_panel import TOY
from valve_plugin.bank.entries import Baseline, Entry, Judged, LeftOut
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.cli import app
from valve_plugin.codec import canonical, convert
from valve_plugin.errors import RecordError, StaleVerdictError
from valve_plugin.evidence.certify import ledger_assumptions
from valve_plugin.evidence.evaluations import read_measurements
from valve_plugin.evidence.items import removal_losses
from valve_plugin.evidence.receipts import examine

pytestmark = pytest.mark.usefixtures("installed")


@pytest.fixture
def run(bank, calc, monkeypatch):
    monkeypatch.setenv("TOY_SECONDS", "0")

    def invoke(*arguments):
        return CliRunner().invoke(app, [*arguments, "--bank", str(bank), "--tasks", str(calc), *TOY])

    return invoke


def readings(bank):
    return [e for e in BankStore.open(bank).entries() if isinstance(e, LeftOut)]


def read_status(bank):
    rows = ledger_assumptions(read_measurements(BankStore.open(bank).entries()), None, {})
    return [row.status for row in rows if row.name == "panel read"]


@pytest.mark.heavy
def test_a_report_of_every_item_and_of_nothing_else(bank, calc, run):
    before = BankStore.open(bank)
    assert read_status(bank) == []
    done = run("panel", "items", "--workers", "2", "--json")
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    store = BankStore.open(bank)
    assert (store.bank, store.queries_used()) == (before.bank, before.queries_used())
    assert store.current_outcomes() == before.current_outcomes()
    assert [e.without for e in readings(bank)] == [i.key for i in store.bank.items]
    assert any(e.outcomes for e in readings(bank)), "some item changes some context"
    assert verify(bank) == []
    assert examine(bank, str(calc)).findings == ()
    assert read_status(bank) == ["met"]
    carried = {o.task_id: 0 for o in store.current_outcomes()}
    for o in store.current_outcomes():
        carried[o.task_id] += o.outcome == "resolved"
    for row, entry in zip(shown["items"], readings(bank), strict=True):
        assert list(store.entries())[row["line"] - 1] == entry
        lost = sum(carried[t] for t in {o.task_id for o in entry.outcomes})
        lost -= sum(o.outcome == "resolved" for o in entry.outcomes)
        panel = store.panel()
        assert row["loss"] == pytest.approx(100 * lost / panel.rollouts / len(panel.tasks))
        assert row["low"] <= row["loss"] <= row["high"]
    assert run("panel", "items").stdout.splitlines()[0].split("\t") == [
        "KIND", "NAME", "LOSS", "INTERVAL", "MOVED", "LINE",
    ]  # fmt: skip
    head = store.head
    run("panel", "items")
    assert BankStore.open(bank).head == head, "what is on record is not measured again"


def test_a_gate_about_retiring_it_runs_fresh_rollouts_and_the_certificate_says_who_looked(bank, run):
    assert run("panel", "items").exit_code == 0
    item = next(e.without for e in readings(bank) if e.outcomes)
    seen = {(o.task_id, o.context_hash, o.ordinal) for e in readings(bank) for o in e.outcomes}
    run("bank", "retire", f"{item[0]}/{item[1]}")
    verdict = [e for e in BankStore.open(bank).entries() if isinstance(e, Judged)][-1].verdict
    assert verdict.outcomes
    assert seen.isdisjoint((o.task_id, o.context_hash, o.ordinal) for o in verdict.outcomes)
    assert read_status(bank) == ["unmet"]


def test_it_goes_on_where_it_stopped(bank, calc, run, monkeypatch, tmp_path):
    """A lost rollout ends it with what is complete on record; the next run measures the rest."""
    whole = shutil.copytree(bank, tmp_path / "whole")
    assert CliRunner().invoke(app, ["panel", "items", "--bank", str(whole), "--tasks", str(calc), *TOY]).exit_code == 0
    last = [e for e in readings(whole) if e.outcomes][-1].outcomes[-1]
    down = tmp_path / "down"
    down.write_text(f"panel {last.task_id[-2:]} {last.ordinal} {last.context_hash[:8]}\n")
    monkeypatch.setenv("TOY_DOWN", str(down))
    lost = run("panel", "items")
    assert lost.exit_code == 3, lost.output
    assert len(readings(bank)) < len(readings(whole))
    down.unlink()
    assert run("panel", "items").exit_code == 0
    assert (bank / "ledger.jsonl").read_bytes() == (whole / "ledger.jsonl").read_bytes()


def test_solvers_are_never_mixed(bank, calc, run):
    """Another step limit is another solver: refused where that is known; of an older ledger, one solver's are shown."""
    assert run("panel", "items").exit_code == 0
    store = BankStore.open(bank)
    head, rows = store.head, removal_losses(store)
    refused = run("panel", "items", "-c", "step_limit=7")
    assert (refused.exit_code, "measured with another solver" in refused.output) == (2, True), refused.output
    assert BankStore.open(bank).head == head, "and nothing was run"
    other = ["evolve", str(calc), "--bank", str(bank), *TOY, "-c", "step_limit=7"]
    gated = CliRunner().invoke(app, other)
    assert (gated.exit_code, "measured with another solver" in gated.output) == (2, True), gated.output
    assert BankStore.open(bank).head == head, "a better model is no gain of the bank's"
    store.append(replace(readings(bank)[0], solver="0" * 64))
    assert len(removal_losses(store)) == 1 < len(rows)
    assert run("panel", "items").exit_code == 0
    assert BankStore.open(bank).head != head


def test_an_older_ledger_says_no_solver(bank, run):
    assert all(e.solver is not UNSET for e in BankStore.open(bank).entries() if isinstance(e, Baseline))
    old = {"type": "left_out", "epoch": 1, "without": ["skill", "x"], "bank_hash": "0" * 64, "outcomes": []}
    assert convert(old, Entry, where="an older ledger").solver is UNSET
    assert b"solver" not in canonical(convert(old, Entry, where="an older ledger"))


def test_what_may_not_be_recorded(bank, run):
    run("panel", "items")
    store = BankStore.open(bank)
    entry = next(e for e in readings(bank) if len(e.outcomes) > 1)
    with pytest.raises(StaleVerdictError, match="was measured again"):
        store.append(replace(entry, bank_hash="0" * 64))
    with pytest.raises(RecordError, match="has no skill 'nothing'"):
        store.append(replace(entry, without=("skill", "nothing")))
    with pytest.raises(RecordError, match="a measurement without an item has 1 outcomes"):
        store.append(replace(entry, outcomes=entry.outcomes[1:]))
    lost = replace(entry.outcomes[0], outcome="errored")
    with pytest.raises(RecordError, match="errored"):
        store.append(replace(entry, outcomes=(lost, *entry.outcomes[1:])))
    assert removal_losses(store)
