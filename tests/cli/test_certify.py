"""`valve certify` and `valve plan` as their users see them."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.bank.test_evaluated import reading
from tests.cli.conftest import Run
from tests.theory.test_certificates import SIZING
from valve_plugin.bank.store import BankStore
from valve_plugin.cli.certify import _cap
from valve_plugin.cli.history import words
from valve_plugin.cli.meter import Slow
from valve_plugin.report.certify import Cap
from valve_plugin.report.facts import run_facts
from valve_plugin.report.overview import overview


def test_the_sizing_table_is_printed_exactly(project: Path, valve: Run) -> None:
    printed = valve(
        "plan", "--variance", "0.025", "--delta", "0.05", "--horizon", "60", "--anchor", "0.0583", "--json"
    )  # fmt: skip
    rows = {row["tolerance"]: (*row["holdout"].values(), *row["panel"].values()) for row in printed["sizing"]["rows"]}
    assert rows == SIZING
    assert list(printed["sizing"]["rows"][0]["holdout"]) == ["4", "8", "16"]
    assert list(printed["sizing"]["rows"][0]["panel"]) == ["3", "5", "7"]
    assert printed["gate"] is printed["cost"] is None


def test_the_printed_certificates(valve: Run) -> None:
    gain = valve("certify", "--gain", "0.172", "--n", "100", "--variance", "0.025", "--delta", "0.05")
    assert "at least +12.4 points on tasks like these, with probability 0.95 (radius 4.8)" in gain
    drop = valve("certify", "--drawdown", "0.0092", "--banks", "8", "--n", "100", "--variance", "0.025")
    assert "at most 7.5 points on tasks like these, with probability 0.95 (radius 6.5)" in drop


@pytest.mark.parametrize(
    "numbers",
    [
        ("--gain", "0.172", "--n", "100", "--variance", "0.025"),
        ("--drawdown", "0.01", "--banks", "8", "--n", "100", "--variance", "0.025"),
        ("--move", "0.06", "--accept", "3", "--horizon", "60", "--n", "50", "--variance", "0.025"),
    ],
)
def test_no_number_comes_without_what_it_rests_on(valve: Run, numbers: tuple[str, ...]) -> None:
    assert "This rests on:" in valve("certify", *numbers)
    names = {a["name"]: a["status"] for a in valve("certify", *numbers, "--json")["assumptions"]}
    assert names["tasks like yours"] == names["variance"] == names["disjoint"] == "unknown"


def test_a_bound_that_says_nothing_is_vacuous(valve: Run) -> None:
    numbers = ("--move", "0.06", "--accept", "1", "--horizon", "60", "--n", "5", "--variance", "0.3")
    assert "VACUOUS: no loss can be excluded" in valve("certify", *numbers)
    drop = ("--drawdown", "0.5", "--banks", "8", "--n", "5", "--variance", "0.3")
    assert "VACUOUS" in valve("certify", *drop)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--gain", "0.1"], "--n and --variance missing"),
        (["--drawdown", "0.1", "--n", "9", "--variance", "0.1"], "--banks missing"),
        (["--move", "0.1", "--gain", "0.1", "--n", "9", "--variance", "0.1"], "one by one"),
        (
            ["--gain", "5", "--n", "9", "--variance", "0.1"],
            "'--gain': 5 is not in [-1, 1]; it is a difference of rates",
        ),
        (["--move", "nan"], "'--move': nan is not in [-1, 1]"),
        (["--drawdown", "-0.1"], "'--drawdown': -0.1 is not in [0, 1]"),
        (["--gain", "0.1", "--n", "9", "--variance", "2"], "'--variance': 2 is not in (0, 1]"),
        (["--gain", "0.1", "--n", "9", "--delta", "2"], "'--delta': 2 is not in (0, 1); it is a probability"),
        (
            ["--move", "0.1", "--n", "9", "--variance", "0.1", "--accept", "4", "--horizon", "3"],
            "accept is 4, expected",
        ),
        (["--n", "9"], "--n goes with --gain"),
        ([], "there is no bank here"),
    ],
)
def test_wrong_use_says_what_to_give(project: Path, valve: Run, args: list[str], told: str) -> None:
    valve("certify", *args, code=2)
    assert told in " ".join(valve.err.replace("│", " ").split())  # type: ignore[attr-defined]


def test_a_ledger_is_certified_in_words(bank: BankStore, valve: Run) -> None:
    lines = valve("certify").splitlines()
    assert lines[:7] == [
        "owner/name at version 1",
        "How sure? Not at all: too few tasks. 2 panel tasks cannot speak for other tasks. Version 1's accept (+33.3 "
        "points) would need about 6 tasks for any statement, and about 35 to exclude a loss.",
        "",
        "accept 1 (version 1, query 1 of epoch 1): +33.3 points measured on 2 tasks; VACUOUS: no loss can be excluded",
        "accepts   epoch 1: 1 so far, at most 25 at margin 0.02 from a first panel score of 50.0 %; at most 0 if gains "
        "stay on the 0.0 % of tasks whose first rollouts were mixed",
        "gain      unknown: no evaluation on a holdout is recorded",
        "drawdown  unknown: no evaluation on a holdout is recorded",
    ]
    assert "unmet    judged = deployed" in "\n".join(lines)
    assert valve("certify", "--json")["gain"] is None


def test_the_second_cap_is_shown_only_where_it_says_more(project: Path, valve: Run) -> None:
    cap = Cap(epoch=1, accepted=0, most=16, localized=15, rho="0.02", start=2 / 3, unstable=0.3)
    first = "accepts   epoch 1: 0 so far, at most 16 at margin 0.02 from a first panel score of 66.7 %"
    local = "; at most 15 if gains stay on the 30.0 % of tasks whose first rollouts were mixed"
    assert _cap(cap) == first + local
    assert _cap(replace(cap, localized=16)) == _cap(replace(cap, localized=50)) == first


def test_certify_and_report_say_the_same_of_how_sure_it_is(bank: BankStore, valve: Run) -> None:
    for version, outcome in ((0, "unresolved"), (1, "resolved")):
        said = overview(run_facts(BankStore.open(bank.dir), words))[2]
        line = valve("certify").splitlines()[1]
        assert line.startswith(f"How sure? {said.answer}. {said.why[:40]}"), "with what only the report knows after it"
        bank.append(reading(bank.at(version), [outcome] * 6, "bbb" * version or "aaa", version=version))


def test_where_panel_and_holdout_are_certified_each_assumption_says_for_which(bank: BankStore, valve: Run) -> None:
    bank.append(reading(bank.at(0), ["unresolved"] * 6, version=0))
    bank.append(reading(bank.at(1), ["resolved"] * 6, "bbb", version=1))
    lines = valve("certify", "--variance", "0.0001").splitlines()
    assert "together  one guarantee covers both, so both hold with probability 0.95" in lines
    (drop,) = [line for line in lines if line.startswith("drawdown")]
    assert "at most 0.0 points on tasks like these, with probability 0.95, by the gain's guarantee" in drop
    assert drop.endswith("(the drawdown's own bound is 18.8)")
    (like,) = [line for line in lines if "tasks like yours" in line]
    assert "  panel, gain, drawdown: only you can tell whether the panel and the holdout are random samples" in like
    assert any("gains local" in line and "  second cap: epoch 1" in line for line in lines)


def test_a_bank_without_a_panel_has_nothing_to_certify(project: Path, valve: Run) -> None:
    BankStore.create(project / ".valve", "owner/name")
    printed = valve("certify")
    assert "nothing was accepted" in printed
    assert "no complete panel is recorded" in printed
    assert "unknown  disjoint" in printed
    assert "\nmet " not in printed, "nothing is known of what was never measured"
    valve("plan", code=2)
    assert "`valve plan --base-rate 0.5 --vmass 0.05` is for" in valve.err  # type: ignore[attr-defined]
    valve("plan", "--measure", "5", code=2)
    assert "no panel is fixed yet, so there is no gate to measure; `valve evolve TASKS`" in valve.err  # type: ignore[attr-defined]


def test_a_gate_is_planned_from_its_bank(bank: BankStore, valve: Run) -> None:
    printed = valve("plan", "--json")
    gate = printed["gate"]
    assert (gate["tasks"], gate["rollouts"], gate["needed"], gate["source"]) == (2, 3, 1, "these tasks")
    assert [o["effect"] for o in gate["odds"]] == [0.0, 0.03, 0.05, 0.1]
    assert all(0 <= o["carried"] <= 1 for o in gate["odds"])
    assert printed["cost"]["queries"] == 5
    text = valve("plan")
    assert "ACCEPTED NOW" in text
    assert "dollars unknown" in text


def test_another_gate_is_not_compared_with_what_is_carried(bank: BankStore, valve: Run) -> None:
    for other in (("--rollouts", "5"), ("--panel-size", "8"), ("--base-rate", "0.7", "--vmass", "0.1")):
        printed = valve("plan", *other, "--json")
        assert {o["carried"] for o in printed["gate"]["odds"]} == {None}, other


def test_a_gate_is_planned_before_anything_ran(project: Path, valve: Run) -> None:
    printed = valve("plan", "--base-rate", "0.75", "--vmass", "0.05", "--json")
    assert printed["gate"]["odds"][0]["fresh"] == pytest.approx(0.25, abs=0.02)
    assert printed["sizing"]["variance"] == pytest.approx(0.05 * 5 / 3)
    valve("plan", "--base-rate", "0.75", code=2)
    assert "go together" in valve.err  # type: ignore[attr-defined]
    valve("plan", "--base-rate", "0.5", "--vmass", "0.1", "--rho", "x", code=2)
    assert "rho is 'x', expected a decimal" in valve.err  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (
            ["--base-rate", "75", "--vmass", "0.1"],
            "'--base-rate': 75 is not in (0, 1); it is a solve rate: 75 % are 0.75",
        ),
        (
            ["--base-rate", "0.9", "--vmass", "0.1"],
            "a mean p(1-p) above 0 and of at most 0.09, not 0.1; 0.09 is when all",
        ),
        (["--base-rate", "0.5", "--vmass", "0.3"], "'--vmass': 0.3 is not in (0, 0.25]"),
        (
            ["--variance", "0.025", "--anchor", "5"],
            "'--anchor': 5 is not in [0, 1]; it is a difference of rates: 5 points",
        ),
        (["--variance", "0.025", "--tolerance", "2"], "'--tolerance': 2 is not in (0, 1]"),
        (["--variance", "0.025", "--delta", "2"], "'--delta': 2 is not in (0, 1); it is a probability"),
        (["--variance", "nan"], "'--variance': nan is not in (0, 1]"),
        (["--base-rate", "0.5", "--vmass", "0.1", "--guard", "4"], "guard is 4, expected at most the 3 rollouts"),
        (
            ["--variance", "0.025", "--horizon", "1000000"],
            "'--horizon': 1000000 is not in [1, 100000]; it is a number",
        ),
    ],
)
def test_a_plan_refuses_what_cannot_be(project: Path, valve: Run, args: list[str], told: str) -> None:
    valve("plan", *args, code=2)
    shown = " ".join(valve.err.replace("│", " ").split())  # type: ignore[attr-defined]
    assert told in shown


def test_all_the_noise_that_a_rate_allows_is_one_rate(project: Path, valve: Run) -> None:
    gate = valve("plan", "--base-rate", "0.9", "--vmass", "0.09", "--json")["gate"]
    assert (gate["mean_rate"], gate["noise"]) == (pytest.approx(0.9), pytest.approx(0.09))


def test_a_long_plan_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    now = iter([0.0, 1.0, 2.5, 3.0, 10.0, 20.0])
    told = Slow("plan", lambda: next(now))
    for share in (0.1, 0.25, 0.3, 0.5, 1.0):
        told(share)
    assert capsys.readouterr().err.splitlines() == [
        "plan  25 % after 0:02, 0:07 left",
        "plan  50 % after 0:10, 0:10 left",
    ]


def test_the_largest_panel_is_planned(project: Path, valve: Run) -> None:
    gate = valve(
        "plan", "--base-rate", "0.75", "--vmass", "0.05", "--panel-size", "1000", "--rollouts", "30", "--json"
    )["gate"]
    assert gate["odds"][0]["fresh"] < 1e-4 < 0.9 < gate["odds"][1]["fresh"]
    assert 0 < gate["odds"][0]["rollouts"] < gate["odds"][1]["rollouts"] <= 30_000
