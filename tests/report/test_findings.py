"""Answers and statements: their states and numbers, and that the page and the JSON output word them all."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from tests.report.runs import Maker
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import app
from valve_plugin.evidence.cost import cost_by_role, run_cost, sum_costs
from valve_plugin.evidence.summary import VersionScore
from valve_plugin.records import Attempt
from valve_plugin.report.build import build_run
from valve_plugin.report.findings import answers, certainty, findings, room_to_improve
from valve_plugin.report.page import render_page
from valve_plugin.report.run import RunReport
from valve_plugin.report.templates import text


def _states(run: RunReport) -> list[str]:
    return [a.state for a in answers(run)]


@pytest.mark.parametrize(
    ("before", "after", "tasks", "better", "tone", "sure"),
    [
        (4, 2, 2, "perhaps_lower", "open", "too_few"),
        (12, 15, 10, "perhaps_higher", "open", "too_few"),
        (12, 12, 10, "same", "open", "too_few"),
        (24, 9, 10, "perhaps_lower", "open", "open"),
        (225, 75, 100, "lower", "no", "open"),
        (75, 225, 100, "higher", "yes", "gain"),
    ],
)
def test_the_holdout_decides_whether_a_bank_is_better(
    grown: Maker, before: int, after: int, tasks: int, better: str, tone: str, sure: str
) -> None:
    grown.evaluate(0, before, tasks)
    grown.evaluate(grown.store.bank.version, after, tasks)
    found = answers(build_run(grown.store))
    assert (found[0].state, found[0].tone) == (better, tone)
    assert (found[1].state, found[2].state) == ("holdout", sure)
    change = f"{100 * (after - before) / (3 * tasks):+.1f} on {tasks} tasks"
    assert text(found[0].headline).endswith(change) is better.startswith("perhaps")


def test_a_gain_over_a_version_that_was_not_evaluated_is_unknown(grown: Maker) -> None:
    grown.evaluate(grown.store.bank.version, 9)
    assert _states(build_run(grown.store))[:3] == ["unread"] * 3
    shown = CliRunner().invoke(app, ["eval", "--show", "--json", "--bank", str(grown.store.dir)])
    assert {(c["gain"], c["per_task"]) for c in json.loads(shown.stdout)["checkpoints"]} == {(None, None)}


def test_a_reading_of_version_0_alone_says_nothing_of_the_bank(grown: Maker) -> None:
    grown.evaluate(0, 9)
    assert _states(build_run(grown.store))[:2] == ["unread", "unread"]


def test_answers_claim_what_was_measured(small: RunReport, tmp_path: Path, data_dir: Path) -> None:
    assert _states(small) == ["on_panel", "panel", "too_few_panel", "elsewhere"]
    assert answers(small)[1].values["gain"] == pytest.approx(2 / 6)
    empty = build_run(BankStore.create(tmp_path / "empty", "owner/name"))
    assert _states(empty) == ["empty", "unmeasured", "no_accept", "nothing"]


def test_what_looks_at_a_run_is_no_part_of_its_cost(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 4, panel_kept=True)
    maker.stream(10, 5)
    before = build_run(maker.store)
    maker.measure()
    attempts = [
        *maker.store.local.attempts(),
        Attempt(id="e", task_id="held", ordinal=0, source="eval", outcome="resolved", seconds=30.0),
    ]
    calls = [{"source": "extract", "seconds": 2.0}] * 3
    run = replace(build_run(maker.store), spent=cost_by_role(attempts, calls, list(maker.store.entries())), clock=None)
    roles = {s.role: s.rollouts for s in run.spent}
    assert roles == {s.role: s.rollouts for s in before.spent} | {"extractor": 3, "measurement": 12, "evaluation": 1}
    own = roles["solver"] + roles["gate"]
    cost = answers(run)[3]
    assert (cost.values["own"], cost.values["all"]) == (run_cost(run.spent), sum_costs(run.spent))
    assert (cost.values["own"].rollouts, cost.values["all"].rollouts, cost.values["own"].calls) == (own, own + 13, 3)
    assert "13 more rollouts only measured the bank" in text(cost.reason)
    sums = re.findall(r'<tr class="sum"><th scope="row">[^<]*</th><td class="number">([^<]*)', render_page([run], {}))
    assert sums == [f"{own} and 3 calls", f"{own + 13} and 3 calls"]
    assert render_page([before], {}).count('<tr class="sum">') == 1


def test_what_is_left_counts_from_the_current_reference(long: RunReport) -> None:
    assert long.scores[-1].version == long.version > 0
    for passes, fit in ((21, 3), (23, 1), (24, 0)):
        now = replace(long, scores=(*long.scores[:-1], VersionScore(version=long.version, passes=passes, rollouts=24)))
        found = room_to_improve(now)
        assert found is not None
        assert (found.values["reference"].passes, found.values["needed"], found.values["fit"]) == (passes, 1, fit)
    cap = replace(long.certificate.caps[-1], carried=False, most=100)
    fresh = room_to_improve(replace(long, certificate=replace(long.certificate, caps=(cap,))))
    assert fresh is not None
    assert (fresh.name, fresh.values["cap"].most) == ("measured_anew", 100), "the margin caps nothing, as in certify"
    opened = replace(next(line for line in long.ledger if line.type == "epoch_opened"), number=10_000)
    assert room_to_improve(replace(long, ledger=(*long.ledger, opened))) is None, "no reference before its baseline"


def test_an_accepts_gain_is_said_to_be_selected(long: RunReport) -> None:
    assert [s.name for s in findings(long)["gates"]] == ["selected", "outlook"]
    assert findings(replace(long, gates=(), outlook=None))["gates"] == []


def test_a_run_says_what_to_expect_of_it_and_of_the_next_query_alone(long: RunReport) -> None:
    said = text(findings(long)["gates"][-1])
    assert "proposals that change nothing" in said
    assert "The next query alone accepts" in said
    assert long.odds is not None
    full = replace(long, odds=replace(long.odds, advice="Saturated: nothing can be accepted."))
    assert text(findings(full)["gates"][-1]).endswith("Saturated: nothing can be accepted.")


def test_how_sure_names_what_it_rests_on(long: RunReport) -> None:
    gain, drawdown = long.certificate.gain, long.certificate.drawdown
    assert gain is not None
    assert drawdown is not None
    sure = answers(long)[2]
    assert (sure.state, sure.values["unproven"], sure.values["unmet"]) == (
        "too_few", ["tasks like yours"], []
    )  # fmt: skip
    assert certainty(long.certificate, held=True).texts == (text(sure.headline), text(sure.reason))
    broken = replace(long.certificate.assumptions[0], status="unmet", needed_for=("gain",))
    better = replace(
        long.certificate, gain=replace(gain, value=0.1), assumptions=(broken, *long.certificate.assumptions[1:])
    )
    sure = answers(replace(long, certificate=better))[2]
    assert (sure.state, sure.values["unmet"]) == ("unmet", [broken])
    assert text(sure.headline) == f"Not certified: {broken.name} is unmet"
    assert broken.why in text(sure.reason)
    said = findings(long)["certificates"]
    assert [s.name for s in said[:3]] == ["holdout_gain", "holdout_drawdown", "together"]
    assert text(said[2]).endswith("at least 0.9.")


def test_every_statement_is_on_the_page_and_in_json(long: RunReport) -> None:
    shown = re.sub("</?code>", "`", render_page([long], {})).replace("<wbr>", "")
    shown = " ".join(unescape(shown).split())
    said = findings(long)
    assert said["certificates"]
    for statements in said.values():
        for statement in statements:
            assert " ".join(text(statement).split()) in shown, statement.name
