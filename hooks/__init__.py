"""The built-in plugin: thin glue between hook calls and the rooms that do the work.

`Valve` is the object behind the entry point `valve`; each plugin manager gets an instance of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from valve_plugin.config import Settings
from valve_plugin.hooks.session import Session
from valve_plugin.hookspecs import Account, hookimpl
from valve_plugin.records import Attempt, Bank, Context, Proposal, Source, Task, Verdict


class Valve(Session):
    """The events of a mini process (see `Session`), and the method's steps (see `hookspecs.StepHooks`)."""

    @hookimpl
    def valve_retrieve(self, settings: Settings, bank: Bank, task_id: str, issue: str) -> Context:
        """Rank the bank's items for the task and compose the block."""
        from valve_plugin.retrieval.contexts import retrieve

        return retrieve(settings, bank, task_id, issue)

    @hookimpl
    def valve_attempt(self, settings: Settings, task: Task, context: Context, ordinal: int, source: Source) -> Attempt:
        """Run one sandboxed rollout of the task and grade it per test."""
        if settings.executor == "ray":
            from valve_plugin.rollouts.ray_executor import attempt
        else:
            from valve_plugin.rollouts.attempt import attempt
        return attempt(settings, task, context, ordinal, source)

    @hookimpl
    def valve_extract(
        self,
        settings: Settings,
        bank: Bank,
        issue: str,
        attempts: Sequence[Attempt],
        trajectories: Sequence[str],
        feedback: str,
    ) -> Proposal:
        """Ask the model for at most three principles and three skills."""
        from valve_plugin.extract.reflect import reflect

        return reflect(settings, bank, issue, attempts, trajectories, feedback=feedback)

    @hookimpl
    def valve_validate(
        self, settings: Settings, bank_dir: Path, proposal: Proposal, observe: Callable[..., None], account: Account
    ) -> Verdict:
        """Run paired rollouts on the fixed panel and apply the integer rule."""
        from valve_plugin.gate.judge import judge

        return judge(settings, bank_dir, proposal, observe, account)
