"""`valve certify` and `valve plan` as their users see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bank import build
from tests.cli.conftest import Run
from tests.evidence.test_evaluations import reading
from tests.theory.test_certificates import SIZING
from valve_plugin.bank import ledger, moves
from valve_plugin.bank.entries import Opened, OwnerAct
from valve_plugin.bank.store import BankStore
from valve_plugin.report.build import build_run
from valve_plugin.report.findings import answers
from valve_plugin.report.templates import text


def test_the_sizing_table_is_printed_exactly(project: Path, valve: Run) -> None:
    printed = valve(
        "plan", "--variance", "0.025", "--delta", "0.05", "--horizon", "60", "--anchor", "0.0583", "--json"
    )  # fmt: skip
    rows = {row["tolerance"]: (*row["holdout"].values(), *row["panel"].values()) for row in printed["sizing"]["rows"]}
    assert rows == SIZING
    assert list(printed["sizing"]["rows"][0]["holdout"]) == ["4", "8", "16"]
    assert list(printed["sizing"]["rows"][0]["panel"]) == ["3", "5", "7"]
    assert printed["gate"] is printed["cost"] is None


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ("--gain 0.172 --n 100 --variance 0.025", "at least +12.4 points on tasks like these, with probability 0.95"),
        ("--drawdown 0.0092 --banks 8 --n 100 --variance 0.025", "at most 7.5 points on tasks like these"),
        (
            "--move 0.06 --accept 1 --horizon 60 --n 5 --variance 0.3",
            "not certified, which takes more tasks. This accept (+6.0 points) would need about ",
        ),
    ],
)
def test_a_certificate_from_numbers_comes_with_what_it_rests_on(valve: Run, numbers: str, told: str) -> None:
    printed = valve("certify", *numbers.split())
    assert told in printed
    names = {a["name"]: a["status"] for a in valve("certify", *numbers.split(), "--json")["assumptions"]}
    assert names["tasks like yours"] == names["variance"] == names["disjoint"] == "unknown"
    assert all(name in printed for name in names)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("certify --gain 0.1", "also needs --n and --variance"),
        ("certify --move 0.1 --gain 0.1 --n 9 --variance 0.1", "one by one"),
        ("certify --gain 5 --n 9 --variance 0.1", "'--gain': 5 is not in [-1, 1]; it is a difference of rates"),
        ("certify --move 0.1 --n 9 --variance 0.1 --accept 4 --horizon 3", "accept is 4, expected"),
        ("certify --n 9", "--n goes with --gain"),
        ("certify", "there is no bank here"),
        ("plan --base-rate 75 --vmass 0.1", "'--base-rate': 75 is not in (0, 1); it is a solve rate: 75 % are 0.75"),
        ("plan --base-rate 0.9 --vmass 0.1", "a mean p(1-p) above 0 and of at most 0.09, not 0.1; 0.09 is when all"),
        ("plan --base-rate 0.75", "go together"),
        ("plan --panel-size x", "'x'"),
        ("plan --base-rate 0.5 --vmass 0.1 --rho x", "rho is 'x', expected a decimal"),
        ("plan --variance 0.025 --tolerance 2", "'--tolerance': 2 is not in (0, 1]"),
        ("plan --variance nan", "'--variance': nan is not in (0, 1]"),
        ("plan --base-rate 0.5 --vmass 0.1 --guard 4", "guard is 4, expected at most the 3 rollouts"),
    ],
)
def test_wrong_use_says_what_to_give(project: Path, valve: Run, command: str, told: str) -> None:
    valve(*command.split(), code=2)
    assert told in " ".join(valve.err.replace("│", " ").split())


def test_a_ledger_is_certified(bank: BankStore, valve: Run) -> None:
    lines = valve("certify").splitlines()
    assert lines[0] == "owner/name at version 1"
    assert lines[1].startswith("How sure? Not certified: too few tasks. ")
    labels = [line.split()[0] for line in lines[3:7]]
    assert labels == ["accept", "accepts", "gain", "drawdown"]
    assert "not certified, which takes more tasks" in lines[3]
    assert any(line.startswith("unmet    judged = deployed") for line in lines)
    found = valve("certify", "--json")
    assert (found["gain"], found["moves"][0]["vacuous"]) == (None, True)


def test_certify_and_report_say_the_same_of_how_sure_it_is(bank: BankStore, valve: Run) -> None:
    for version, outcome in ((0, "unresolved"), (1, "resolved")):
        said = answers(build_run(BankStore.open(bank.dir)))[2]
        line = valve("certify").splitlines()[1]
        begins = f"How sure? {text(said.headline)}. {text(said.reason)[:40]}"
        assert line.startswith(begins), "with what only the report knows after it"
        bank.append(reading(bank.at(version), [outcome] * 6, "bbb" * version or "aaa", version=version))


def test_no_certificate_of_a_ledger_that_names_a_wrong_version(project: Path, valve: Run) -> None:
    store = BankStore.create(project / ".valve", build.REPO)
    notes = build.item(1), build.item(2)
    after = moves.change(store.bank, (), notes[:1])
    last = moves.change(after, (), notes[1:])
    wrong, prev = "0" * 64, store.head
    lines = [ledger.encode(0, ledger.GENESIS, store.bank.hash, Opened(repo=build.REPO))]
    named = [(store.bank.hash, wrong), (wrong, last.hash)]
    for seq, (note, (before, then)) in enumerate(zip(notes, named, strict=True), 1):
        act = OwnerAct(act="add", reason="x", items=(note,), bank_hash=before, bank_after=then)
        lines.append(ledger.encode(seq, prev, then, act))
        prev = ledger.line_hash(lines[-1])
    (store.dir / ledger.FILE_NAME).write_bytes(b"\n".join([*lines, b""]))
    valve("certify", code=2)
    assert f"bank_after is {wrong[:12]}, but version 1 is {after.hash[:12]}" in " ".join(valve.err.split())
    misplaced = ledger.encode(3, prev, last.hash, Opened(repo=build.REPO))  # what is wrong later is said later
    (store.dir / ledger.FILE_NAME).write_bytes(b"\n".join([*lines, misplaced, b""]))
    said = valve("bank", "verify", code=1)
    assert f"line 2: bank_after is {wrong[:12]}" in " ".join(said.split())


def test_a_bank_without_a_panel_has_nothing_to_certify(project: Path, valve: Run) -> None:
    BankStore.create(project / ".valve", "owner/name")
    printed = valve("certify")
    assert "nothing was accepted" in printed
    assert "no complete panel is recorded" in printed
    assert "unknown  disjoint" in printed
    assert "\nmet " not in printed, "nothing is known of what was never measured"
    assert valve("plan", "--json")["assumed"] is True
    valve("plan", "--measure", "5", code=2)
    assert "no panel is fixed yet, so there is no gate to measure; `valve evolve TASKS`" in valve.err


def test_a_gate_is_planned_from_its_bank(bank: BankStore, valve: Run) -> None:
    printed = valve("plan", "--json")
    gate = printed["gate"]
    assert (gate["tasks"], gate["rollouts"], gate["needed"], gate["source"]) == (2, 3, 1, "these tasks")
    assert [o["effect"] for o in gate["odds"]] == [0.0, 0.03, 0.05, 0.1, -0.1]
    assert all(0 <= o["carried"] <= 1 for o in gate["odds"])
    assert printed["cost"]["proposals"] == 5
    text = valve("plan")
    assert "\tNOW\t" in text
    assert "dollars   unknown" in text


def test_another_gate_is_not_compared_with_what_is_carried(bank: BankStore, valve: Run) -> None:
    for other in (("--rollouts", "5"), ("--panel-size", "8"), ("--base-rate", "0.7", "--vmass", "0.1")):
        printed = valve("plan", *other, "--json")
        assert {o["carried"] for o in printed["gate"]["odds"]} == {None}, other


def test_a_gate_is_planned_before_anything_ran(project: Path, valve: Run) -> None:
    printed = valve("plan", "--base-rate", "0.75", "--vmass", "0.05", "--json")
    assert printed["gate"]["odds"][0]["fresh"] == pytest.approx(0.45, abs=0.02)
    assert printed["sizing"]["variance"] == pytest.approx(0.05 * 5 / 3)
    assert printed["assumed"] is False
    told = valve("plan", "--usd-per-rollout", "0.5").splitlines()
    assert [line.split()[0] for line in told[:3]] == ["rollouts", "dollars", "panel"]
    priced = valve("plan", "--usd-per-rollout", "0.5", "--json")["cost"]
    assert priced["usd"] == pytest.approx(priced["rollouts"] / 2, abs=1)
    assert "--usd-per-rollout" in valve("plan").splitlines()[1], "how to have dollars"
    assert ("ACCEPTS" in valve("plan", "--sizes"), "ACCEPTS" in valve("plan")) == (True, False)
    typical = valve("plan", "--json")
    assert typical["assumed"] is True
    assert (typical["gate"], typical["cost"]) == (printed["gate"], printed["cost"]), "these are the typical numbers"
    assert "typical numbers are taken" in valve("plan")
    assert valve("plan", "--variance", "0.025", "--json")["assumed"] is False


def test_a_plan_draws_with_screen_protocol_and_margin_of_the_settings(project: Path, valve: Run) -> None:
    def planned(*more: str) -> tuple[int, str]:
        printed = valve("plan", "--base-rate", "0.75", "--vmass", "0.05", "--horizon", "2", *more, "--json")
        return printed["cost"]["screen"], printed["gate"]["rho"]

    assert planned() == (5, "0.006")
    assert planned("-c", "screen=0") == (0, "0.006")
    assert planned("-c", "protocol=paper") == (0, "0.02")
    valve("plan", "-c", "protocol=paper", "--base-rate", "0.75", "--vmass", "0.05", "--false-accepts", "5", code=2)
    valve("plan", "-c", "confirm=true", code=2)
    assert "screen, protocol, rho" in valve.err
    BankStore.create(project / ".valve", "owner/name")
    (project / ".valve" / "valve.toml").write_text('screen = 0\nrho = "0.04"\n')
    assert planned() == (0, "0.04")
    assert planned("-c", "screen=1", "--rho", "0.03") == (1, "0.03")
    (project / ".valve" / "valve.toml").write_text('protocol = "paper"\n')
    assert planned() == (0, "0.02")


def test_a_plan_before_the_first_epoch_is_of_what_that_will_be_declared_with(project: Path, valve: Run) -> None:
    BankStore.create(project / ".valve", "owner/name")
    kept = 'confirm = true\nguard = 2\nhorizon = 3\nfalse_accepts = 0.5\ndelta = "0.1"\nrollouts = 2\npanel_size = 8\n'
    (project / ".valve" / "valve.toml").write_text(kept)

    def planned(*more: str) -> tuple[object, ...]:
        printed = valve("plan", "--base-rate", "0.75", "--vmass", "0.05", *more, "--json")
        gate = [printed["gate"][name] for name in ("confirm", "guard", "bet", "rollouts", "tasks")]
        return printed["cost"]["proposals"], *gate, printed["sizing"]["delta"], printed["sizing"]["horizon"]

    assert planned() == (3, True, 2, 6, 2, 8, 0.1, 3)
    options = "--no-confirm --guard 0 --horizon 4 --false-accepts 0 --delta 0.2 --rollouts 3 --panel-size 9"
    assert planned(*options.split()) == (4, False, 0, 0, 3, 9, 0.2, 4)


def test_a_setting_replaces_what_the_epoch_declared(bank: BankStore, valve: Run) -> None:
    assert valve("plan", "--json")["cost"]["screen"] == 0, "an epoch of the paper's protocol"
    fresh = ("-c", "protocol=fresh", "-c", "screen=3")
    assert valve("plan", *fresh, "--json")["cost"]["screen"] == 3
