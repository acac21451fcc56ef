"""Retrieve: compose the context for a task."""

from __future__ import annotations

from typing import Any

from valve_plugin.config import Settings
from valve_plugin.hooks.session import Session, say
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Bank, Context


class RetrieveHooks(Session):
    """The step that reads the bank."""

    @hookimpl
    def minisweagent_pre_run(self, agent: Any, task: str) -> str | None:
        """Compose the block for the task, and note what the run starts from."""
        if self.bank_dir is None:
            return None
        from valve_plugin.rollouts.live import start

        run = start(self.settings, self.bank_dir, lambda bank: self._context(bank, agent, task), agent, task, say)
        self.runs[id(agent)] = run
        return run.context.text or None

    @hookimpl
    def valve_retrieve(self, settings: Settings, bank: Bank, task_id: str, issue: str) -> Context:
        """Rank the bank's items for the task and compose the block."""
        from valve_plugin.bank.retrieval import retrieve

        return retrieve(settings, bank, task_id, issue)

    def _context(self, bank: Bank, agent: Any, task: str) -> Context:
        """Ask whichever plugin retrieves. A live task has no id beside its text, and its text is the query."""
        self._tell_foreign(bank, agent)
        retrieve = self.manager.hook.valve_retrieve if self.manager else self.valve_retrieve
        context: Context | None = retrieve(settings=self.settings, bank=bank, task_id="", issue=task)
        return context or Context(text="")

    def _tell_foreign(self, bank: Bank, agent: Any) -> None:
        """Say, once, that the notes are of another repository than the agent works in; a person may want that."""
        from valve_plugin.bank.belonging import differs, foreign
        from valve_plugin.bank.checkout import find
        from valve_plugin.rollouts.live import directory

        where = directory(agent)
        if where is None or self.bank_dir is None or self.told_foreign or self.repo == bank.repo:
            return
        here = find(where)
        if foreign(bank.repo, self.bank_dir, here):
            self.told_foreign = True
            say(f"{differs(bank.repo, self.bank_dir, here.name)}: its notes are not about this code")
