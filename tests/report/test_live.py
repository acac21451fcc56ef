"""A person's own runs on the report: counted apart, told truthfully, and data whatever they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.cli.test_attempts import FAILED
from tests.report.browser import chromium, opened, violations
from tests.report.runs import Maker
from tests.report.test_page import ATTACK, Seen
from valve_plugin.bank.entries import AttemptNote, Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.cli.history import words
from valve_plugin.codec import digest
from valve_plugin.records import Proposal, live_task
from valve_plugin.report.details import attempts
from valve_plugin.report.facts import run_facts
from valve_plugin.report.overview import overview
from valve_plugin.report.page import page
from valve_plugin.report.run_live import LATEST
from valve_plugin.words import moment

UNTRUE = ("keeps no rollouts of this bank", "on another machine", "Only mixed tasks are known")


def shown(store: BankStore) -> str:
    run = run_facts(store, words)
    return page([run], attempts([(run, store.local)], 1_000_000))


def live(store: BankStore, number: int = 1, text: str = "") -> None:
    for n in range(number):
        one = replace(FAILED, id=f"{n:016x}", ordinal=n, recorded_at=1_700_000_000.0 + n, context_hash=digest("block"))
        store.local.add_attempt(
            replace(one, task_text=one.task_text + text, reason=one.reason + text, check_output=one.check_output + text)
        )


def test_after_live_runs_alone_the_page_says_nothing_untrue(tmp_path: Path, data_dir: Path) -> None:
    store = BankStore.create(tmp_path / "bank", "owner/name")
    live(store, LATEST + 2)
    html, run = shown(store), run_facts(store, words)
    assert not [said for said in UNTRUE if said in html]
    assert (run.live.attempts, run.live.outcomes, len(run.live.latest)) == (22, {"unresolved": 22}, LATEST)
    assert run.live.latest[0].attempt == f"{21:016x}", "the latest first"
    assert (run.spent, run.stream) == ((), ())
    cost = overview(run)[3]
    assert (cost.answer, cost.why) == (
        "Nothing yet", "No rollout of a stream or a panel ran. 22 live attempts: not counted here."
    )  # fmt: skip
    assert "2023-11-14 22:13 UTC" in html
    assert "No task of a stream is on record." in html
    kept = json.loads(Seen(html).scripts[0])
    assert kept[f"{21:016x}"]["printed"].endswith("1 failed")
    assert "None is recorded on this machine" in shown(BankStore.create(tmp_path / "other", "owner/name"))


def test_a_live_task_that_taught_stands_in_the_stream_and_hides_no_other(tmp_path: Path, data_dir: Path) -> None:
    maker = Maker(tmp_path / "bank", 3)
    maker.stream(6, 3)
    before = run_facts(maker.store, words)
    task = live_task(digest("task"))
    note = AttemptNote(task_id=task, ordinal=0, outcome="unresolved", context_hash=digest("b"), patch_hash=digest("p"))
    maker.store.append(Proposed(proposal=Proposal(task_id=task, reason="nothing usable"), attempts=(note,)))
    run = run_facts(maker.store, words)
    assert run.stream_whole
    mixed = [p.position for p in before.stream if 0 < p.passed < p.graded][-1]
    ids = [p.task_id for p in before.stream]
    assert [p.task_id for p in run.stream] == [*ids[:mixed], task, *ids[mixed:]]
    assert not [said for said in UNTRUE if said in shown(maker.store)]


def test_what_live_runs_say_is_data(tmp_path: Path, data_dir: Path) -> None:
    store = BankStore.create(tmp_path / "bank", "owner/name")
    live(store, 2, ATTACK)
    tags = [tag for tag, _ in Seen(shown(store)).tags]
    assert (tags.count("script"), tags.count("style")) == (2, 1)
    assert not {"img", "svg", "iframe"} & set(tags)


@given(st.floats(allow_nan=True) | st.floats(0, 4e9))
def test_a_moment_is_told_or_unknown(seconds: float) -> None:
    assert moment(seconds) == "unknown" or moment(seconds).endswith(" UTC")
    assert moment(0.0) == moment(float("inf")) == moment(float("nan")) == "unknown"


@pytest.mark.heavy
def test_in_a_browser_a_live_attempt_opens_with_its_check(tmp_path: Path, data_dir: Path) -> None:
    store = BankStore.create(tmp_path / "bank", "owner/name")
    live(store, 3, ATTACK.replace("\x00", ""))
    path = tmp_path / "r.html"
    path.write_text(shown(store), encoding="utf-8")
    with chromium() as browser:
        tab, said = opened(browser, path, viewport={"width": 360, "height": 740})
        assert tab.evaluate("document.documentElement.scrollWidth") <= 360
        assert violations(tab) == []
        tab.locator("#live button[data-attempts]").first.click()
        told = tab.locator("dialog[open]").inner_text()
        assert "Check, its last lines" in told
        assert "E   assert 0 == 4" in told
        assert "onload" in told
        assert violations(tab) == []
        assert tab.title() == "VALVE report: owner/name"
        assert said == []
