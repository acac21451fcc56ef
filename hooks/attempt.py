"""Attempt: run the agent once and grade what it did."""

from __future__ import annotations

from typing import Literal

from valve_plugin.config import Settings
from valve_plugin.hooks.session import Session
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Attempt, Context, Task


class AttemptHooks(Session):
    """The step that runs and grades rollouts."""

    @hookimpl
    def valve_attempt(
        self, settings: Settings, task: Task, context: Context, ordinal: int, source: Literal["evolve", "panel"]
    ) -> Attempt:
        """Run one sandboxed rollout of the task and grade it per test."""
        from valve_plugin.rollouts.attempt import attempt

        return attempt(settings, task, context, ordinal, source)
