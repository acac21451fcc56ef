"""The plugins `newest`: inject what the bank learned last, and `verdicts-csv`: a tracker.

A plugin is a class without arguments (or a module) whose `@hookimpl` functions are named as in
`valve_plugin.hookspecs`. Each takes only the arguments it needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from valve_plugin.config import Settings
from valve_plugin.events import Event, VerdictReached
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Bank, Context, Item
from valve_plugin.retrieval.block import render

__all__ = ["Csv", "Newest"]


class Newest:
    """Replaces the step `valve_retrieve`; the rest of VALVE stays as it is."""

    def __init__(self) -> None:
        self.log: Path | None = None

    @hookimpl
    def minisweagent_add_options(self) -> Sequence[Mapping[str, Any]]:
        """Add `--newest-log FILE` to mini's command line."""
        text = "Append VALVE's events to this file, one JSON line each."
        return [{"flag": "--newest-log", "dest": "newest_log", "type": Path, "default": None, "help": text}]

    @hookimpl
    def minisweagent_configure(self, options: Mapping[str, Any]) -> None:
        """Read the option."""
        self.log = options.get("newest_log")

    @hookimpl
    def valve_retrieve(self, settings: Settings, bank: Bank) -> Context:
        """Answer with the newest items of each kind, whatever the task; the first answer that is not None counts."""
        items = [
            *_newest(bank.principles, settings.top_principles),
            *_newest(bank.skills, settings.top_skills),
        ]
        return Context(
            text=render(items),
            items=tuple(item.key for item in items),
            bank_hash=bank.hash,
            embedding="none",
        )

    @hookimpl
    def valve_event(self, name: str, data: Mapping[str, Any]) -> None:
        """Observe; every plugin is told, so this replaces nothing."""
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"event": name, **data}, default=str) + "\n")


class Csv:
    """A tracker: `-c tracker=verdicts-csv` adds a line for each verdict to a file."""

    @hookimpl
    def valve_event(self, event: Event) -> None:
        """Write a verdict; any thread may call this."""
        if isinstance(event, VerdictReached):
            cells = (event.proposal_id, event.decision, event.candidate_passes, event.current_passes, event.version)
            with Path("verdicts.csv").open("a", encoding="utf-8") as file:
                file.write(",".join(map(str, cells)) + "\n")


def _newest(items: Sequence[Item], count: int) -> list[Item]:
    """Return the last accepted items, newest first; within one accept in the order of their names."""
    return sorted(items, key=lambda item: (-item.created_step, item.name))[:count]
