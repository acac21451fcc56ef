"""The plugin by itself, and among the installed ones."""

from __future__ import annotations

import json
from pathlib import Path

from valve_plugin import plugins
from valve_plugin.config import Settings
from valve_plugin.events import PluginEvent
from valve_plugin.records import Bank, Item


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
