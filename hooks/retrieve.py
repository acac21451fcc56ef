"""Retrieve: compose the context for a task."""

from __future__ import annotations

from valve_plugin.config import Settings
from valve_plugin.hooks.session import Session
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Bank, Context


class RetrieveHooks(Session):
    """The step that reads the bank."""

    @hookimpl
    def valve_retrieve(self, settings: Settings, bank: Bank, task_id: str, issue: str) -> Context:
        """Rank the bank's items for the task and compose the block."""
        from valve_plugin.bank.retrieval import retrieve

        return retrieve(settings, bank, task_id, issue)
