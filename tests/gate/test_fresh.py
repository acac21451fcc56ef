"""The fresh protocol: only tasks whose context changes are run, and what an accept ran is measured anew."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from valve_plugin.bank.entries import Baseline, EpochOpened, Judged
from valve_plugin.bank.replay import Replay
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.evidence.certify import certify_ledger
from valve_plugin.evidence.evaluations import read_measurements
from valve_plugin.evidence.receipts import examine
from valve_plugin.evidence.summary import version_scores
from valve_plugin.theory.gate_rule import FRESH_QUERIES

ONE_SKILL = ("-c", "top_skills=1", "-c", "top_principles=0")
FRESH = ("-c", "protocol=fresh", "-c", "screen=0", *ONE_SKILL, "--limit", "8", "--seed", "2")


@pytest.fixture(scope="module")
def fresh(evolve, tmp_path_factory):
    bank = tmp_path_factory.mktemp("fresh") / "bank"
    evolve(bank, *FRESH)
    return bank


def test_its_terms_are_declared_with_panel_and_epoch(fresh):
    store = BankStore.open(fresh)
    assert store.panel().pairing == "deployed"
    assert store.epoch().conditions.fresh == FRESH_QUERIES


def test_what_an_accept_ran_is_measured_anew_and_nothing_else(fresh):
    state, accepted, anew_again = Replay(), set(), 0
    for entry in BankStore.open(fresh).entries():
        if isinstance(entry, Baseline):
            anew = {o.task_id for o in entry.result.outcomes}
            assert anew == (accepted or {t.instance_id for t in state.panel.tasks})
            assert {(o.task_id, o.context_hash, o.ordinal) for o in entry.result.outcomes}.isdisjoint(
                (task, context, n) for (task, context), first in state.ordinals.items() for n in range(first)
            ), "on rollouts that never ran before"
            anew_again += bool(accepted)
            accepted = set()
        before = state.known
        state.feed(entry)
        if isinstance(entry, Judged) and entry.verdict.decision == "accept":
            accepted = {o.task_id for o in entry.verdict.outcomes}
            assert state.known == tuple(o for o in before if o.task_id not in accepted)
    assert anew_again, "the run shows an accept; choose another seed if not"


def test_everything_is_recomputed_and_only_the_horizon_caps_accepts(fresh, calc, tmp_path):
    assert verify(fresh) == []
    named = Path(shutil.copytree(fresh, tmp_path / "bank"))
    (named / "valve.toml").write_text("top_skills = 1\ntop_principles = 0\n")  # what the run was given
    receipt = examine(named, str(calc))
    assert receipt.findings == ()
    assert receipt.recomputed["verdicts"]
    store = BankStore.open(fresh)
    found = read_measurements(store.entries())
    assert found.epochs[0].accepts
    (cap,) = certify_ledger(found).caps
    assert (cap.carried, cap.most, cap.useless) == (False, store.epoch().horizon, None)
    full = len(store.panel().tasks) * store.panel().rollouts
    assert {score.rollouts for score in version_scores(store.entries())} == {full}
    assert {len(c.outcomes) for c in found.epochs[0].complete} == {full}


def test_any_number_of_workers_and_a_second_start_give_the_same_ledger(fresh, evolve, tmp_path):
    part = [*FRESH[:-3], "4", *FRESH[-2:]]
    evolve(tmp_path / "bank", *part, "--workers", "3")
    evolve(tmp_path / "bank", *FRESH, "--workers", "2")
    assert [type(e) for e in BankStore.open(tmp_path / "bank").entries() if isinstance(e, EpochOpened)]
    ledgers = [(b / "ledger.jsonl").read_bytes() for b in (fresh, tmp_path / "bank")]
    assert ledgers[0] == ledgers[1]


@pytest.mark.heavy
def test_a_declared_number_of_useless_accepts_is_kept_by_a_bet_on_new_rollouts(evolve, calc, tmp_path):
    bank = tmp_path / "bank"
    evolve(bank, *FRESH, "-c", "horizon=20", "-c", "false_accepts=10")
    store = BankStore.open(bank)
    assert (store.epoch().conditions.bet, store.epoch().conditions.fresh) == (2, 1)
    judged = [e.verdict for e in store.entries() if isinstance(e, Judged)]
    assert any(v.net[1] >= v.needed and v.decision == "reject" for v in judged), "the margin alone would accept"
    assert verify(bank) == []
    (bank / "valve.toml").write_text("top_skills = 1\ntop_principles = 0\n")
    assert examine(bank, str(calc)).findings == ()
    (cap,) = certify_ledger(read_measurements(store.entries())).caps
    assert cap.useless == 10
    served = set()
    for entry in store.entries():
        if isinstance(entry, Judged):
            now = set(entry.verdict.order) - {o.task_id for o in entry.verdict.reused}
            assert not served & now, "no outcome serves twice"
            served |= now
        elif isinstance(entry, Baseline):
            served -= {o.task_id for o in entry.result.outcomes}
    done = evolve(bank, *FRESH, "-c", "false_accepts=1", check=False)
    assert done.returncode == 2
    assert "false_accepts is 1" in done.stderr
