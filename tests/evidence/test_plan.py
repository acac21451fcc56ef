"""Plans: sizes, a gate's chances from what a bank recorded, costs and advice."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cli.banks import TASKS, attempt, sample
from valve_plugin.bank.store import BankStore
from valve_plugin.evidence.plan import (
    GatePlan,
    GateTerms,
    Rates,
    RecordedPanels,
    gate_terms,
    panel_rates,
    percent,
    plan_gate,
    plan_run,
    read_panels,
)
from valve_plugin.records import Conditions
from valve_plugin.theory.estimates import RateSpread
from valve_plugin.theory.gate_rule import margin_of, needed_passes
from valve_plugin.theory.power import Beta, Change, Gate, accept_chance, exact_population

REFERENCE = [exact_population(RateSpread(0.75, 0.05))] * 50


def plan(beliefs: list[Beta] = REFERENCE, **terms: object) -> GatePlan:
    return plan_gate(Rates(beliefs, "tasks as given"), GateTerms(rho="0.02")._replace(**terms))


@cache
def reference() -> GatePlan:
    """The plan of the default gate on fifty tasks, which takes a second."""
    return plan()


@pytest.fixture
def bank(tmp_path: Path, data_dir: Path) -> BankStore:
    return sample(tmp_path / "bank")


def test_a_bank_is_planned_from_its_last_complete_panel(bank: BankStore) -> None:
    known = read_panels(bank)
    assert known is not None
    assert known.panels == [(3, 0), (3, 2)]
    assert known.carried == (3, 2)
    assert known.reach == 1
    rates = panel_rates(known, None, None)
    assert rates is not None
    assert (rates.source, len(rates.beliefs)) == ("these tasks", len(TASKS))


def test_another_panel_size_takes_tasks_like_these(bank: BankStore) -> None:
    rates = panel_rates(read_panels(bank), None, 20)
    assert rates is not None
    assert (rates.source, len(rates.beliefs), len(set(rates.beliefs))) == ("tasks like these", 20, 1)
    assert panel_rates(None, None, 20) is None


def test_a_bank_without_an_epoch_has_nothing_recorded(tmp_path: Path, data_dir: Path) -> None:
    assert read_panels(BankStore.create(tmp_path / "empty", "owner/name")) is None


def test_more_than_there_is_to_gain_is_unknown_and_told() -> None:
    full = plan([Beta(97e3, 3e3)] * 10)
    assert full.odds[2].fresh is full.odds[2].whole is full.odds[2].rollouts is None
    assert "saturated" in full.advice
    assert "saturated" in plan(reach=0.15).advice, "it reaches too little"


def test_a_bank_that_passes_everything_is_told_that_nothing_can_be_accepted(bank: BankStore) -> None:
    known = read_panels(bank)
    rates = panel_rates(known, None, None)
    assert known is not None
    assert rates is not None
    terms = gate_terms(known, rho="0.2")
    assert plan_gate(rates, terms, known._replace(carried=(3, 2))).advice.startswith(
        "Saturated: the bank passes 5 of 6"
    )
    assert "Saturated" not in plan_gate(rates, terms, known._replace(carried=(2, 2))).advice


def test_repeating_accepts_is_dearer_and_accepts_less() -> None:
    once, twice = reference(), plan(confirm=True)
    for plain, confirmed in zip(once.odds, twice.odds, strict=True):
        assert confirmed.fresh < plain.fresh
        assert plain.rollouts <= confirmed.rollouts < 2 * plain.rollouts + 1
    assert "accepts repeated accepts 12 %" in twice.advice


def test_harm_that_breaks_whole_tasks_is_accepted_more_often_than_harm_that_is_spread() -> None:
    nothing, *_, harm = reference().odds
    assert harm.effect == -0.1
    assert (harm.fresh, harm.whole) == (pytest.approx(0.0003, abs=1e-4), pytest.approx(0.0039, abs=1e-4))
    assert nothing.fresh == pytest.approx(nothing.whole)


def test_advice_names_a_gate_that_is_as_good_as_it_says() -> None:
    text = reference().advice
    assert "accepts 26 % of the proposals that change nothing" in text
    rollouts = int(text.split(" rollouts per task")[0].rsplit(" ", 1)[1])
    margin = text.split("margin ")[2].split(" ")[0]
    asked = needed_passes(margin, 50, rollouts)
    assert accept_chance(REFERENCE, Gate(rollouts, asked), Change()) <= 0.05
    assert "keep it" in plan(rollouts=rollouts, rho=margin).advice
    assert "more tasks, not more rollouts" in plan([Beta(1e9, 1e9)] * 3).advice


def test_a_bet_accepts_less_than_the_margin_alone() -> None:
    terms = gate_terms(None, false_accepts=5, horizon=100)
    assert (terms.bet, terms.fresh) == (20, 1)
    found = plan(bet=20, fresh=1)
    assert all(bet.fresh <= plain.fresh for bet, plain in zip(found.odds, reference().odds, strict=True))
    assert found.odds[0].fresh <= 0.05


@pytest.mark.parametrize(("needed", "total"), [(1, 18), (3, 150), (11, 350), (7, 9), (1, 3000), (20, 600)])
def test_a_margin_is_written_so_that_it_asks_for_exactly_that(needed: int, total: int) -> None:
    assert needed_passes(margin_of(needed, total), total, 1) == needed


def test_costs_are_means_of_graded_panel_rollouts() -> None:
    seen = [
        replace(attempt(i, outcome), source=source, cost_usd=usd, seconds=90.0)
        for i, (outcome, source, usd) in enumerate(
            [
                ("resolved", "panel", 0.1),
                ("unresolved", "panel", 0.3),
                ("errored", "panel", 9),
                ("resolved", "evolve", 9),
            ]
        )
    ]
    rates, terms = Rates(REFERENCE, "tasks as given"), gate_terms(None, horizon=10)
    found, nothing = plan_run(rates, terms, None, seen), plan_run(rates, terms, None, [])
    assert (found.proposals, found.screen, found.measured) == (10, 5, 2)
    assert found.usd == pytest.approx(0.2 * found.rollouts, abs=0.1)
    assert found.hours == pytest.approx(found.rollouts / 40, abs=1 / 80)
    assert nothing.usd is nothing.hours is None
    assert [k.proposals for k in found.kinds] == pytest.approx([7, 2, 1])
    assert nothing.rollouts == found.rollouts > 3 * 50


def test_a_margin_of_one_pass_is_one_on_any_panel(bank: BankStore) -> None:
    assert gate_terms(None).rho == "0.006"
    assert needed_passes(gate_terms(None, size=200, rollouts=5).rho, 200, 5) == 1
    known = read_panels(bank)
    assert known is not None
    given = known._replace(panel=replace(known.panel, rho="0.16"))
    auto = given._replace(conditions=Conditions(fresh=2))
    assert gate_terms(given, size=60).rho == "0.16", "the paper's protocol never means one pass"
    assert (gate_terms(auto, size=60).rho, gate_terms(known, size=60).rho) == ("0.005", known.panel.rho)


def test_a_run_goes_on_from_what_is_carried(bank: BankStore) -> None:
    known = read_panels(bank)
    rates = panel_rates(known, None, None)
    assert isinstance(known, RecordedPanels)
    assert rates is not None
    terms = gate_terms(known)
    assert (terms.fresh, terms.horizon) == (0, 5)
    assert plan_run(rates, terms, known, []).rollouts < plan_run(rates, terms._replace(rollouts=4), known, []).rollouts


@pytest.mark.parametrize(
    ("chance", "text"),
    [(0.0, "< 0.1 %"), (0.001, "0.1 %"), (0.0099, "1.0 %"), (0.255, "26 %"), (0.9999, "> 99 %"), (1.0, "> 99 %")],
)
def test_a_chance_is_never_rounded_to_certainty(chance: float, text: str) -> None:
    assert percent(chance) == text
