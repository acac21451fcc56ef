"""The plugin by itself, and among the installed ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from valve_plugin import plugins
from valve_plugin.config import Settings
from valve_plugin.events import PluginEvent, VerdictReached
from valve_plugin.records import Bank, Item

VERDICT = VerdictReached(
    proposal_id="p1", decision="accept", version=3, current_passes=4, candidate_passes=6, needed=1, net=(2, 2),
    rollouts=8, of=8,
)  # fmt: skip


def item(name: str, step: int) -> Item:
    return Item(kind="skill", name=name, text=f"how to {name}", markdown=f"Do {name}.", created_step=step)


BANK = Bank(repo="me/it", version=3, skills=(item("old", 1), item("b", 3), item("a", 3)))


def test_newest_come_first_and_replace_the_ranking() -> None:
    manager = plugins.load(["valve", "newest"])
    context = manager.hook.valve_retrieve(settings=Settings(top_skills=2), bank=BANK, task_id="t", issue="old")
    assert context.items == (("skill", "a"), ("skill", "b"))
    assert context.text.index("Do a.") < context.text.index("Do b.")
    assert "Do old." not in context.text


def test_an_empty_bank_injects_nothing() -> None:
    manager = plugins.load(["valve", "newest"])
    context = manager.hook.valve_retrieve(settings=Settings(), bank=Bank(repo="me/it"), task_id="t", issue="i")
    assert context.text == ""


def test_events_are_written_where_the_option_says(tmp_path: Path) -> None:
    manager = plugins.load(["newest"])
    plugins.send(manager.hook, PluginEvent(called="verdict", content={"decision": "reject"}))
    options = {"newest_log": tmp_path / "events.jsonl"}
    manager.hook.minisweagent_configure(config={}, options=options, manager=manager)
    plugins.send(manager.hook, PluginEvent(called="verdict", content={"decision": "accept"}))
    assert [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()] == [
        {"event": "verdict", "decision": "accept"}
    ]


def test_the_tracker_writes_a_line_for_each_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    manager = plugins.load(["verdicts-csv", "valve"])
    plugins.send(manager.hook, VERDICT)
    plugins.send(manager.hook, PluginEvent(called="other", content={}))
    assert Path("verdicts.csv").read_text() == "p1,accept,6,4,3\n"
