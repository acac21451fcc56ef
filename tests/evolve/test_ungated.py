"""Without validation: every proposal is taken, nothing is measured, and no bank changes over unnoticed."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from valve_plugin.bank.acts import act
from valve_plugin.bank.entries import Baseline, EpochOpened, Judged, PanelFixed, Proposed, Taken
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.cli import app


@pytest.fixture(scope="module")
def ungated(evolve, tmp_path_factory):
    """The bank of one ungated run. Do not change it."""
    bank = tmp_path_factory.mktemp("ungated") / "bank"
    evolve(bank, "--ungated")
    return bank


def test_every_proposal_is_taken_and_none_is_judged(ungated):
    store = BankStore.open(ungated)
    entries = list(store.entries())
    assert not [e for e in entries if isinstance(e, Judged | Baseline | EpochOpened)]
    proposals = [e.proposal for e in entries if isinstance(e, Proposed) and not e.proposal.empty]
    assert [e.proposal_id for e in entries if isinstance(e, Taken)] == [p.id for p in proposals]
    assert {i.name for i in store.bank.items} == {i.name for p in proposals for i in p.items}
    assert store.bank.version == len(proposals) > 3
    assert {a.source for a in store.local.attempts()} == {"evolve"}, "no panel rollout"
    assert verify(ungated) == []


def test_it_ends_the_same_with_more_workers_and_after_an_interruption(evolve, ungated, tmp_path):
    evolve(tmp_path / "bank", "--ungated", "--workers", "5", "--limit", "3")
    evolve(tmp_path / "bank", "--ungated")
    assert (tmp_path / "bank" / "ledger.jsonl").read_bytes() == (ungated / "ledger.jsonl").read_bytes()


def test_what_is_said_about_it(ungated):
    version = BankStore.open(ungated).bank.version

    def said(*words):
        return CliRunner().invoke(app, [*words, "--bank", str(ungated)]).stdout

    assert f"none: the bank reached version {version} without a gate" in said()
    facts = json.loads(said("certify", "--json"))
    assert (facts["taken"], facts["moves"], facts["assumptions"][0]["status"]) == (version, [], "unmet")
    assert said("bank", "log").count("without a gate") == version


@pytest.mark.heavy
def test_an_ungated_bank_is_gated_only_when_that_is_asked_for(evolve, tmp_path):
    bank = tmp_path / "bank"
    evolve(bank, "--ungated", "--limit", "2")
    refused = evolve(bank, check=False)
    assert refused.returncode == 2
    assert "reached version 2 without a gate" in refused.stderr
    evolve(bank, "--new-epoch", "--limit", "4")
    store = BankStore.open(bank)
    assert store.epoch().reason == "gated from version 2 on"
    kinds = [type(e) for e in store.entries()]
    assert kinds.index(EpochOpened) > max(i for i, kind in enumerate(kinds) if kind is Taken)
    assert kinds.index(Judged) > kinds.index(Baseline) > kinds.index(EpochOpened)
    act(store, "remove", "unsure", removes=[store.bank.items[0].key])
    evolve(bank, "--limit", "5")  # no --new-epoch: the owner's act has ended the other one
    store.refresh()
    assert (store.epoch().epoch, store.epoch().reason) == (2, "the bank's owner changed it")
    assert verify(bank) == []
    again = evolve(bank, "--ungated", check=False)
    assert again.returncode == 2
    assert "--ungated would add what was not" in again.stderr


def test_gated_and_ungated_runs_set_the_same_tasks_aside(ungated, whole):
    panels = [[e for e in BankStore.open(b).entries() if isinstance(e, PanelFixed)] for b in (ungated, whole)]
    assert panels[0] == panels[1], "so both see the same stream"


def test_what_makes_no_sense_is_said(evolve, tmp_path):
    both = evolve(tmp_path / "bank", "--ungated", "--new-epoch", check=False)
    assert both.returncode == 2
    assert "--new-epoch and --ungated" in both.stderr
