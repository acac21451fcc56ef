"""Plans: sizes, a gate's chances from what a bank recorded, costs and advice."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cli.banks import TASKS, attempt, sample
from valve_plugin.bank.store import BankStore
from valve_plugin.evidence.plan import Carried, _margin, epoch_cost, panel_rates, percent, plan_gate, read_panels
from valve_plugin.records import Conditions
from valve_plugin.theory.acceptance import needed_passes
from valve_plugin.theory.estimates import RateSpread
from valve_plugin.theory.power import EffectChange, Gate, KnownRate, fresh_accept_chance, population

REFERENCE = [population(RateSpread(0.75, 0.05))] * 50


def plan(beliefs=REFERENCE, rollouts=3, rho="0.02", **more):  # type: ignore[no-untyped-def]
    return plan_gate(beliefs, rollouts, rho, (0.0, 0.05), random.Random(0).random, source="tasks as given", **more)


@cache
def reference():  # type: ignore[no-untyped-def]
    """The plan of the default gate on fifty tasks, which takes seconds."""
    return plan()


@pytest.fixture
def bank(tmp_path: Path, data_dir: Path) -> BankStore:
    return sample(tmp_path / "bank")


def test_a_bank_is_planned_from_its_last_complete_panel(bank: BankStore) -> None:
    known = read_panels(bank)
    assert known is not None
    assert known.panels == [(3, 0), (3, 2)]
    assert known.carried == Carried((3, 2), (1, 0))  # bug-b failed more, in the baseline and in the cut-short gate
    rates = panel_rates(known, None, None)
    assert rates is not None
    assert rates.counts == [(6, 6), (2, 6)]
    assert (rates.source, len(rates.beliefs)) == ("these tasks", len(TASKS))


def test_another_panel_size_takes_tasks_like_these(bank: BankStore) -> None:
    rates = panel_rates(read_panels(bank), None, 20)
    assert rates is not None
    assert (rates.source, len(rates.beliefs), len(set(rates.beliefs))) == ("tasks like these", 20, 1)
    assert panel_rates(None, None, 20) is None


def test_a_bank_without_an_epoch_has_nothing_recorded(tmp_path: Path, data_dir: Path) -> None:
    assert read_panels(BankStore.create(tmp_path / "empty", "owner/name")) is None


def test_more_than_there_is_to_gain_is_unknown() -> None:
    odds = plan([KnownRate(0.97)] * 10).odds
    assert odds[1].fresh is odds[1].rollouts is None
    assert "less than 5 points can be gained" in plan([KnownRate(0.97)] * 10).advice


def test_repeating_accepts_is_dearer_and_accepts_less() -> None:
    once, twice = reference(), plan(conditions=Conditions(confirm=True))
    for plain, confirmed in zip(once.odds, twice.odds, strict=True):
        assert confirmed.fresh < plain.fresh
        assert plain.rollouts < confirmed.rollouts < 2 * plain.rollouts + 1
    assert "accepts repeated accepts 13 %" in twice.advice


def test_advice_names_a_gate_that_is_as_good_as_it_says() -> None:
    text = reference().advice
    assert "accepts 26 % of the proposals that change nothing" in text
    rollouts = int(text.split(" rollouts per task")[0].rsplit(" ", 1)[1])
    margin = text.split("margin ")[2].split(" ")[0]
    asked = needed_passes(margin, 50, rollouts)
    assert fresh_accept_chance(REFERENCE, Gate(rollouts, asked), EffectChange()) <= 0.05
    assert "keep it" in plan(REFERENCE, rollouts, margin).advice
    assert "more tasks, not more rollouts" in plan([KnownRate(0.5)] * 3).advice


@pytest.mark.parametrize(("needed", "total"), [(1, 18), (3, 150), (11, 350), (7, 9), (1, 3000), (20, 600)])
def test_a_margin_is_written_so_that_it_asks_for_exactly_that(needed: int, total: int) -> None:
    assert needed_passes(_margin(needed, total), total, 1) == needed


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
    gate = reference()
    found = epoch_cost(gate, 10, seen)
    assert found is not None
    assert found.measured == 2
    assert found.rollouts == round(150 + 10 * gate.odds[0].rollouts)
    assert found.usd == pytest.approx(0.2 * found.rollouts)
    assert found.hours == pytest.approx(found.rollouts / 40)
    nothing = epoch_cost(gate, 10, [])
    assert nothing is not None
    assert nothing.usd is nothing.hours is None


@pytest.mark.parametrize(
    ("chance", "text"), [(0.0, "< 1 %"), (0.001, "< 1 %"), (0.255, "26 %"), (0.9999, "> 99 %"), (1.0, "> 99 %")]
)
def test_a_chance_is_never_rounded_to_certainty(chance: float, text: str) -> None:
    assert percent(chance) == text
