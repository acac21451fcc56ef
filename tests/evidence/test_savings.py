"""What early stopping saved: the same ledger with and without it, and figures that add up."""

from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evolve import library
from tests.evolve.test_ledger import ledger, verdicts
from valve_plugin.bank.store import BankStore
from valve_plugin.evidence.summary import Savings, gate_savings, total_savings


@pytest.mark.heavy
def test_whole_panels_give_the_same_ledger_and_save_nothing(evolve, whole, tmp_path):
    done = evolve(tmp_path / "bank", "--no-early-stop", "--json", "--limit", "3")
    assert ledger(whole).startswith(ledger(tmp_path / "bank"))
    gates = json.loads(done.stdout)["gate_rollouts"]
    judged = verdicts(BankStore.open(tmp_path / "bank"))
    assert {"accept", "reject"} == {v.decision for v in judged}, "both; choose another limit if not"
    every = sum(v.n_tasks * v.rollouts for v in judged)
    assert gates == {"ran": every, "saved": 0, "saved_usd": 0.0, "cut_short": 0}


def test_evolve_tells_each_gate_and_the_sum(evolve, whole, tmp_path):
    bank = shutil.copytree(whole, tmp_path / "bank")
    told = json.loads(evolve(bank, "--json", TOY_USD="0.5").stdout)
    each = {p["proposal_id"]: p["gate_rollouts"] for p in told["proposals"] if p["gate_rollouts"]}
    known = gate_savings(BankStore.open(bank).entries(), BankStore.open(bank).local.read_telemetry("gates"))
    assert each == {id_: gate.facts() for id_, gate in known.items()}
    assert any(gate["saved"] for gate in each.values())
    for name, value in told["gate_rollouts"].items():
        assert value == sum(gate[name] for gate in each.values())
    assert all(p["gate_rollouts"] is None for p in told["proposals"] if p["outcome"] in ("empty", "pending"))


def test_each_gate_says_what_it_saved(whole):
    lines = json.loads(library.valve("bank", "log", "--bank", whole, "--json").stdout)
    judged = [line for line in lines if "verdict" in line]
    assert all(line["rollouts_saved"] == 0 for line in judged if line["verdict"]["decision"] == "accept")
    stopped = [line for line in judged if line["rollouts_saved"]]
    assert stopped
    assert all(f"{line['rollouts_saved']} of 8 rollouts saved" in line["words"] for line in stopped)


def test_one_worker_starts_nothing_behind_the_verdict(whole):
    store = BankStore.open(whole)
    ran = [r for r in store.local.read_telemetry("rollouts") if r["source"] == "panel"]
    gates = gate_savings(store.entries(), store.local.read_telemetry("gates"))
    assert any(v.ran < 8 for v in verdicts(store)), "some were decided early"
    assert (
        sum(v.ran for v in verdicts(store)) == total_savings(list(gates.values())).ran == len(ran) - 8
    )  # the baseline


told = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"proposal_id": st.sampled_from("abc"), "ran": st.integers(-9, 99), "cost_usd": st.floats()}
        ),
        st.dictionaries(st.text(max_size=3), st.one_of(st.none(), st.text(max_size=3), st.integers()), max_size=3),
    ),
    max_size=5,
)


def test_telemetry_gives_the_cost_and_only_what_the_ledger_allows(whole):
    entries = list(BankStore.open(whole).entries())
    plain = gate_savings(entries, ())
    stopped = next(p for p, gate in plain.items() if gate.rollouts)
    ran = plain[stopped].ran
    gate = gate_savings(entries, [{"proposal_id": stopped, "ran": ran, "cost_usd": 0.5 * ran}])[stopped]
    assert gate == Savings(ran, 8, 0.5 * (8 - ran))
    cut = {"proposal_id": stopped, "ran": ran, "cost_usd": 0.5 * ran, "cut": 1, "cut_usd": 0.25}
    assert gate_savings(entries, [cut])[stopped] == Savings(ran, 8, 0.5 * (8 - ran) - 0.25, 1), (
        "what was paid is not saved"
    )
    assert str(gate) == f"{8 - ran} of 8 rollouts saved, about ${0.5 * (8 - ran):.2f}"

    @given(told)
    def any_telemetry(told):
        for proposal, gate in gate_savings(entries, told).items():
            assert plain[proposal].ran <= gate.ran <= gate.of

    any_telemetry()
    assert total_savings(list(plain.values())).of == sum(gate.of for gate in plain.values())
