"""Certificates from ledgers: what is said, and what it is said to rest on."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.cli.banks import AFTER, BAD, TASKS, judge, outcomes, sample
from tests.evidence.test_evaluations import reading
from valve_plugin.bank import moves
from valve_plugin.bank.entries import Baseline, EpochOpened, OwnerAct, Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import digest
from valve_plugin.evidence.certify import Certificate, certify_gain, certify_ledger
from valve_plugin.evidence.evaluations import Measurements, read_measurements
from valve_plugin.records import PanelResult
from valve_plugin.theory import certificates


@pytest.fixture
def bank(tmp_path: Path, data_dir: Path) -> BankStore:
    return sample(tmp_path / "bank")


def certified(bank: BankStore, variance: float | None = None) -> Certificate:
    return certify_ledger(read_measurements(bank.entries()), variance)


@given(st.floats(-1, 1), st.integers(2, 400), st.floats(0.01, 1), st.floats(0.001, 0.3))
def test_a_bound_that_leaves_nearly_everything_open_certifies_nothing(
    measured: float, tasks: int, variance: float, delta: float
) -> None:
    bound = certify_gain(measured, tasks, delta, variance)
    useless = bound.value <= -0.9 or (bound.value <= -0.5 and bound.value <= measured - 0.5)
    assert bound.vacuous == useless
    assert not (bound.vacuous and bound.value > 0)
    if measured > 0.01 and tasks >= certificates.smallest_n(measured, -math.log(delta), variance):
        assert not bound.vacuous, "enough tasks by the card's own count"


def statuses(found: Certificate) -> dict[str, str]:
    return {a.name: a.status for a in found.assumptions}


def test_the_ledger_is_read_for_what_is_complete(bank: BankStore) -> None:
    found = read_measurements(bank.entries())
    (epoch,) = found.epochs
    assert [(c.version, c.passes) for c in epoch.complete] == [(0, (3, 0)), (1, (3, 2))]
    assert [(a.version, a.number, a.gain) for a in epoch.accepts] == [(1, 1, Fraction(1, 3))]
    assert (epoch.queries, epoch.horizon) == (2, 5)
    assert found.sources == {"bug-x", "bug-y", "bug-z"}


def test_an_accept_carries_the_theorys_certificate(bank: BankStore) -> None:
    (move,) = certified(bank, 0.0001).moves
    expected = certificates.accepted_move(1 / 3, 2, 5, 1, 0.05 / 2, 0.0001)
    assert (move.floor, move.loss, move.vacuous) == (expected.value, max(0, -expected.value), expected.vacuous)
    assert (move.accept, move.version, move.epoch, move.query, move.horizon) == (1, 1, 1, 1, 5)


def test_caps_come_from_the_first_measurement(bank: BankStore) -> None:
    (cap,) = certified(bank).caps
    assert (cap.accepted, cap.most, cap.start) == (1, 25, 0.5)


def test_every_assumption_is_listed(bank: BankStore) -> None:
    found = certified(bank)
    assert statuses(found) == {
        "disjoint": "met",
        "tasks like yours": "unknown",
        "panel age": "unknown",
        "horizon": "met",
        "judged = deployed": "unmet",  # the sample's accept recorded that no task gets the judged context
        "holdout sealed": "unknown",
    }
    assert found.gain is found.drawdown is None


def test_a_given_variance_below_the_estimate_is_unmet(bank: BankStore) -> None:
    found = read_measurements(bank.entries())
    assert statuses(certify_ledger(found, variance=0.01))["variance"] == "unmet"
    assert statuses(certify_ledger(found, variance=0.9))["variance"] == "unknown"


def test_learning_from_a_panel_task_is_unmet(bank: BankStore) -> None:
    bank.append(Proposed(proposal=replace(BAD, task_id=TASKS[0])))
    assert statuses(certified(bank))["disjoint"] == "unmet"


def test_a_panel_used_again_goes_on_counting(bank: BankStore) -> None:
    _accept_more(bank, open_epoch=True)
    found = certified(bank)
    second = found.moves[1]
    assert (second.accept, second.horizon, second.epoch, second.query) == (2, 12, 2, 1)
    assert second.delta == pytest.approx(0.05 / 6)
    assert statuses(found)["panel reuse"] == "unknown"


def test_a_panel_on_which_nothing_was_measured_is_a_panel() -> None:
    found = statuses(certify_ledger(Measurements(fixed={"a", "b"}, sources={"c"})))
    assert found["disjoint"] == "met"
    assert statuses(certify_ledger(Measurements(fixed={"a", "b"}, sources={"b"})))["disjoint"] == "unmet"
    assert statuses(certify_ledger(Measurements(sources={"b"})))["disjoint"] == "unknown"


def test_the_final_version_is_certified_by_the_holdout(bank: BankStore) -> None:
    """The sample's accept made version 1; step 0 and step 1 are evaluated afterwards."""
    bank.append(reading(bank.at(0), ["unresolved"] * 6, version=0))
    only_first = certified(bank)
    assert only_first.unevaluated == "only version 0 was evaluated on the holdout"
    bank.append(reading(bank.at(1), ["resolved"] * 5 + ["errored"], "bbb", version=1))
    assert certified(bank).unevaluated.startswith("1 holdout rollout errored")
    bank.append(reading(bank.at(1), ["resolved"] * 6, "bbb", version=1))
    found = certified(bank, 0.0001)
    assert found.gain is not None
    assert found.drawdown is not None
    expected = certificates.gain(1.0, 3, 0.05, 0.0001)
    assert (found.gain.measured, found.gain.value, found.gain.radius) == (1.0, expected.value, expected.radius)
    assert (found.drawdown.measured, found.drawdown.banks) == (0.0, 2)
    assert found.drawdown.other == pytest.approx(-found.gain.other), "by a bet, the gain's floor from the other side"
    assert statuses(found)["holdout sealed"] == "met"
    assert statuses(found)["holdout variance"] == "unmet"


@pytest.mark.parametrize("choice", [False, True])
def test_a_run_that_went_on_after_the_holdout_was_read_says_so_and_a_choice_voids_it(
    bank: BankStore, choice: bool
) -> None:
    bank.append(reading(bank.at(0), ["unresolved"] * 6, version=0))
    _accept_more(bank, open_epoch=choice)
    bank.append(reading(bank.at(2), ["resolved"] * 6, "bbb", version=2))
    found = certified(bank)
    assert (found.gain is None, found.drawdown is None) == (choice, choice)
    assert found.unevaluated.startswith("invalid") == choice
    assert statuses(found)["holdout sealed"] == ("unmet" if choice else "unknown")


def _accept_more(bank: BankStore, *, open_epoch: bool) -> None:
    panel = bank.panel()
    assert panel is not None
    move = replace(BAD, task_id="bug-w")
    if open_epoch:
        bank.append(EpochOpened(epoch=2, horizon=7, delta="0.05", panel_hash=panel.hash, reason="more"))
        result = PanelResult(bank_hash=bank.bank.hash, outcomes=outcomes(AFTER, 4, 6, first=3))
        bank.append(Baseline(epoch=2, result=result))
    bank.append(Proposed(proposal=move))
    lines = tuple(replace(o, context_hash=digest("second")) for o in outcomes(AFTER, 6, 6))
    query, current, epoch = (1, 4, 2) if open_epoch else (3, 5, 1)
    judge(bank, move, query, lines, current_passes=current, epoch=epoch)


def test_every_assumption_says_what_needs_it(bank: BankStore) -> None:
    needed = {a.name: a.needed_for for a in certified(bank).assumptions}
    assert needed["tasks like yours"] == ("panel",), "no holdout was read"
    assert needed["holdout sealed"] == ("gain", "drawdown")


def test_an_owners_act_is_named_and_voids_what_was_read_before(bank: BankStore) -> None:
    assert "owner's acts" not in statuses(certified(bank))
    bank.append(reading(bank.at(0), ["unresolved"] * 6))
    bank.append(reading(bank.bank, ["resolved"] * 6, "bbb", version=1))
    assert certified(bank).gain is not None
    now = bank.bank
    after = moves.restore(now, bank.at(0))
    bank.append(OwnerAct(act="undo", reason="unsure", undo_to=0, bank_hash=now.hash, bank_after=after.hash))
    bank.append(reading(bank.bank, ["resolved"] * 6, "ccc", version=2))
    found = certified(bank)
    assert found.owned == (2,)
    assert statuses(found)["owner's acts"] == "unmet"
    assert (statuses(found)["holdout sealed"], found.gain) == ("unmet", None)
    assert [m.version for m in found.moves] == [1]  # what was judged stays judged
