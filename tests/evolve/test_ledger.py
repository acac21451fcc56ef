"""What a run writes depends on nothing but its tasks, its settings and the model: not on workers, kills or failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.evolve import library
from valve_plugin.bank.entries import Baseline, Judged, Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.codec import digest_bytes
from valve_plugin.evidence.receipts import examine
from valve_plugin.evidence.summary import proposal_results

EMPTY = digest_bytes(b"")[:8]
"""Hash of no block at all."""


def verdicts(store):
    return [entry.verdict for entry in store.entries() if isinstance(entry, Judged)]


def ledger(bank: Path) -> bytes:
    return (bank / "ledger.jsonl").read_bytes()


def test_the_ledger_is_the_same_for_any_number_of_workers(evolve, whole, tmp_path):
    evolve(tmp_path / "bank", "--workers", "5")
    assert ledger(tmp_path / "bank") == ledger(whole)
    store = BankStore.open(whole)
    decisions = [v.decision for v in verdicts(store)]
    assert {"accept", "reject"} == set(decisions), "the run exercises both; choose another seed if it does not"
    assert verify(whole) == []
    evolve(tmp_path / "bank")
    assert ledger(tmp_path / "bank") == ledger(whole), "a finished run has nothing to add"
    other = evolve(tmp_path / "bank", "--panel-size", "5", check=False)
    assert (other.returncode, "panel_size is 5, but the panel of" in other.stderr) == (2, True)


def test_a_rejection_stops_at_the_shortest_decisive_prefix(whole):
    judged = verdicts(BankStore.open(whole))
    rejected = [v for v in judged if v.decision == "reject"]
    assert any(len(v.outcomes) < v.n_tasks * v.rollouts for v in rejected)
    for v in judged:
        lost = v.n_tasks * v.rollouts - v.needed - v.current_passes  # passes that may be lost before it is over
        unresolved = sum(o.outcome == "unresolved" for o in v.outcomes)
        assert unresolved == lost + 1 if v.decision == "reject" else len(v.outcomes) == v.n_tasks * v.rollouts


@pytest.mark.heavy
def test_a_failure_of_the_host_pauses_and_is_no_failure_of_the_agent(evolve, whole, tmp_path):
    down = tmp_path / "down"
    down.write_text(f"evolve 02 1 {EMPTY}\n")  # the second attempt at one task of the stream
    paused = evolve(tmp_path / "bank", check=False, TOY_DOWN=str(down))
    assert paused.returncode == 3
    assert "the provider is down" in paused.stderr
    assert "start it again" in paused.stderr
    down.unlink()
    evolve(tmp_path / "bank", TOY_DOWN=str(down))
    assert ledger(tmp_path / "bank") == ledger(whole)


@pytest.mark.heavy
def test_a_baseline_is_complete_or_it_is_none(evolve, whole, tmp_path):
    down = tmp_path / "down"
    first = BankStore.open(whole).panel().tasks[1].instance_id
    down.write_text(f"panel {first[-2:]} 1 {EMPTY}\n")
    paused = evolve(tmp_path / "bank", check=False, TOY_DOWN=str(down))
    assert paused.returncode == 3
    assert "it must be complete" in paused.stderr
    assert not any(isinstance(e, Baseline) for e in BankStore.open(tmp_path / "bank").entries())
    down.unlink()
    evolve(tmp_path / "bank")
    assert ledger(tmp_path / "bank") == ledger(whole)


@pytest.mark.heavy
def test_an_undecided_verdict_changes_nothing_and_its_query_goes_on(evolve, whole, tmp_path):
    """Errored rollouts leave a gate open; retrying only them decides the same query as if nothing had happened."""
    done = BankStore.open(whole)
    accepted = next(v for v in verdicts(done) if v.decision == "accept")
    lost = accepted.outcomes[0]
    down = tmp_path / "down"
    down.write_text(f"panel {lost.task_id[-2:]} {lost.ordinal} {lost.context_hash[:8]}\n")
    paused = evolve(tmp_path / "bank", check=False, TOY_DOWN=str(down))
    assert paused.returncode == 3
    assert "hangs on 1 errored rollout;" in paused.stderr
    store = BankStore.open(tmp_path / "bank")
    opened = verdicts(store)[-1]
    assert opened.decision == "indecisive"
    version = store.bank.version
    paused = evolve(tmp_path / "bank", check=False, TOY_DOWN=str(down))
    store.refresh()
    assert (paused.returncode, store.bank.version) == (3, version)
    assert verdicts(store)[-1] == opened, "nothing new, nothing written"
    evolve(tmp_path / "bank")
    store.refresh()
    assert (store.bank, store.queries_used()) == (done.bank, done.queries_used())
    assert [v for v in verdicts(store) if v.decision != "indecisive"] == verdicts(done)
    assert verify(tmp_path / "bank") == []


def test_a_proposal_is_on_record_before_it_is_judged_also_an_empty_one(evolve, tmp_path):
    evolve(tmp_path / "bank", "--seed", "4", "--limit", "6")
    entries = list(BankStore.open(tmp_path / "bank").entries())
    proposed = [e.proposal for e in entries if isinstance(e, Proposed)]
    judged = [e.verdict.proposal_id for e in entries if isinstance(e, Judged)]
    assert judged == [p.id for p in proposed if not p.empty]
    assert all(p.reason for p in proposed if p.empty)


@pytest.mark.heavy
def test_the_horizon_is_declared_and_holds(evolve, tmp_path):
    stopped = evolve(tmp_path / "bank", "-c", "horizon=2", check=False)
    assert stopped.returncode == 2
    assert "epoch 1 has used all 2 gate queries of its horizon" in stopped.stderr
    assert BankStore.open(tmp_path / "bank").queries_used() == 2
    again = evolve(tmp_path / "bank", check=False)
    assert again.returncode == 2
    evolve(tmp_path / "bank", "--new-epoch", "--limit", "5")
    store = BankStore.open(tmp_path / "bank")
    assert (store.epoch().epoch, sum(isinstance(e, Baseline) for e in store.entries())) == (2, 2)
    assert verify(tmp_path / "bank") == []


@pytest.mark.heavy
def test_limits_hold_and_a_longer_run_goes_on(evolve, whole, tmp_path):
    evolve(tmp_path / "bank", "--limit", "4")
    short = ledger(tmp_path / "bank")
    evolve(tmp_path / "bank", "-c", "max_mixed=1")
    assert ledger(tmp_path / "bank") == short
    evolve(tmp_path / "bank")
    assert ledger(tmp_path / "bank") == ledger(whole)
    assert ledger(whole).startswith(short)


def test_deployed_pairing_judges_what_changes_and_sets_aside_what_changes_nothing(evolve, calc, tmp_path):
    evolve(tmp_path / "bank", "-c", "pairing=deployed", "-c", "top_skills=1", "-c", "top_principles=0")
    assert verify(tmp_path / "bank") == []
    store = BankStore.open(tmp_path / "bank")
    judged = verdicts(store)
    assert all(v.deployed == v.n_tasks for v in judged if v.decision == "accept")
    proposals = [e.proposal for e in store.entries() if isinstance(e, Proposed)]
    aside = [p for p in proposals if "not judged: no panel task" in p.reason]
    results = {row.proposal.id: row.outcome for row in proposal_results(store.entries())}
    assert aside, "a note that no panel task retrieves is set aside"
    assert {results[p.reason.split()[0]] for p in aside} == {"not judged"}
    assert store.queries_used() == len(judged), "it uses no query"
    assert all(v.ran for v in judged if v.current_passes + v.needed <= v.n_tasks * v.rollouts)
    (tmp_path / "bank" / "valve.toml").write_text("top_skills = 1\ntop_principles = 0\n")  # what the run was given
    assert examine(tmp_path / "bank", str(calc)).findings == ()
    (tmp_path / "bank" / "valve.toml").write_text("top_skills = 10\ntop_principles = 10\n")
    assert any("was set aside, but" in f.message for f in examine(tmp_path / "bank", str(calc)).findings)


def test_a_bank_of_another_repository_is_refused(evolve, tmp_path):
    BankStore.create(tmp_path / "bank", "someone/else")
    done = evolve(tmp_path / "bank", check=False)
    assert done.returncode == 2
    assert "is the bank of someone/else, the tasks are about acme/core" in done.stderr
    assert "make the tasks with --repo someone/else" in done.stderr


def test_a_panel_that_leaves_nothing_is_refused(evolve, tmp_path):
    bank = tmp_path / "bank"
    done = evolve(bank, "--panel-size", "14", check=False)
    assert done.returncode == 2
    assert "nothing would be left to learn from" in done.stderr
    assert "such as --panel-size 7" in done.stderr
    assert not bank.exists(), "refused before a bank is made"


def test_no_model_is_said_before_anything_runs(calc, tmp_path):
    done = library.valve("evolve", calc, "--bank", tmp_path / "bank", check=False)
    assert done.returncode == 2
    assert "no model is named" in done.stderr
    assert not (tmp_path / "bank").exists()
