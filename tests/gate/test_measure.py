"""A/A gates for real: the current bank against itself, on the record, and nothing else changes."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.evolve.library import valve
from tests.gate.test_panel import TOY
from valve_plugin.bank.entries import Judged, Remeasured
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.errors import InfrastructureError, RecordError, StaleVerdictError
from valve_plugin.evidence.evaluations import read_measurements
from valve_plugin.gate.judge import measure

pytestmark = pytest.mark.usefixtures("installed")


def again(bank):
    return [e for e in BankStore.open(bank).entries() if isinstance(e, Remeasured)]


@pytest.mark.heavy
def test_measuring_again_changes_no_bank_no_score_and_no_count(bank, calc):
    before = BankStore.open(bank)
    done = valve("plan", "--measure", "3", "--workers", "2", "--bank", bank, "--tasks", calc, "--json", *TOY)
    store = BankStore.open(bank)
    assert (store.bank, store.queries_used()) == (before.bank, before.queries_used())
    assert store.current_outcomes() == before.current_outcomes()
    assert verify(bank) == []
    rollouts = [o for e in store.entries() for o in getattr(getattr(e, "result", None), "outcomes", ())]
    rollouts += [o for e in store.entries() if isinstance(e, Judged) for o in e.verdict.outcomes]
    cells = [(o.task_id, o.context_hash, o.ordinal) for o in rollouts]
    assert len(set(cells)) == len(cells), "every measurement draws anew"
    shown = json.loads(done.stdout)["measured"]
    needed = 1
    passes = [e.result.passes for e in again(bank)]
    now = sum(o.outcome == "resolved" for o in store.current_outcomes())
    assert shown["carried"]["gates"] == shown["panels"] == 3
    assert shown["carried"]["accepted"] == sum(p - now >= needed for p in passes)
    assert shown["fresh"]["gates"] == 1
    assert shown["measured"] == pytest.approx(sum(passes) / 3 / 8)
    assert len(read_measurements(store.entries()).epochs[-1].complete) >= 4, "complete panels inform the variance"
    head = store.head
    text = valve("plan", "--measure", "2", "--bank", bank, "--tasks", calc, *TOY).stdout
    assert "of 3 gates accepted a do-nothing proposal" in text
    assert BankStore.open(bank).head == head, "as many are there already"


def test_it_goes_on_where_it_stopped(bank, settings, monkeypatch, tmp_path):
    store = BankStore.open(bank)
    down = tmp_path / "down"
    o = store.current_outcomes()[5]
    ordinal = store.state.ordinals.get((o.task_id, o.context_hash), 0)
    down.write_text(f"panel {o.task_id[-2:]} {ordinal} {o.context_hash[:8]}\n")
    monkeypatch.setenv("TOY_DOWN", str(down))
    with pytest.raises(InfrastructureError, match="A/A measurement lacks 1 rollout of 8, 1 of them errored"):
        measure(settings(store), bank, 1)
    assert again(bank) == []
    down.unlink()
    seen = []
    measure(settings(store), bank, 1, lambda event: seen.append(event.name))
    assert seen.count("rollout_finished") == 8
    assert len(again(bank)) == 1
    measure(settings(store), bank, 1, lambda event: seen.append(event.name))
    assert len(again(bank)) == 1


def test_what_may_not_be_recorded(bank, settings):
    store = BankStore.open(bank)
    measure(settings(store), bank, 1)
    store.refresh()
    entry = again(bank)[0]
    stale = msgspec.structs.replace(entry, result=msgspec.structs.replace(entry.result, bank_hash="0" * 64))
    with pytest.raises(StaleVerdictError, match="was measured again"):
        store.append(stale)
    short = msgspec.structs.replace(entry.result, outcomes=entry.result.outcomes[1:])
    with pytest.raises(RecordError, match="an A/A measurement has 1 outcomes"):
        store.append(msgspec.structs.replace(entry, result=short))
