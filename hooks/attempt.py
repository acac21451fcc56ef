"""Attempt: run the agent once and grade what it did."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from valve_plugin.config import Settings
from valve_plugin.hooks.session import Session
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Attempt, Context, Source, Task


class AttemptHooks(Session):
    """The step that runs and grades rollouts, and the record of what a person's own runs did."""

    @hookimpl
    def minisweagent_run(self, agent: Any, task: str) -> Mapping[str, Any] | None:
        """Run several sandboxed attempts in place of the agent's own loop, where `valve.attempts` asks for them."""
        run = self.runs.get(id(agent))
        if run is None or self.settings.attempts < 2:
            return None
        from valve_plugin.rollouts.live_many import run_attempts

        return run_attempts(run, agent)

    @hookimpl
    def minisweagent_post_run(
        self, agent: Any, task: str, result: Mapping[str, Any], error: BaseException | None
    ) -> None:
        """Record the run as an attempt, graded when a check was named."""
        run = self.runs.pop(id(agent), None)
        if run is None:
            return
        from valve_plugin.rollouts.live import finish

        attempt = finish(run, agent, result, error)
        if attempt is not None and hasattr(getattr(agent, "config", None), "mode"):
            # Only where a person talks to mini: a batch, or a program of its own, has its own records.
            from valve_plugin.rollouts.live_record import shown_by

            article = "a" if attempt.outcome == "resolved" else "an"
            check = "" if run.settings.check else ", -c valve.check=COMMAND grades the next"
            run.say(f"recorded as {article} {attempt.outcome} attempt: {shown_by(attempt, run.settings)}{check}")
        if attempt is not None and self.manager is not None:
            data = {"task_id": attempt.task_id, "id": attempt.id, "outcome": attempt.outcome}
            self.manager.hook.valve_event(name="attempt_finished", data=data)

    @hookimpl
    def valve_attempt(self, settings: Settings, task: Task, context: Context, ordinal: int, source: Source) -> Attempt:
        """Run one sandboxed rollout of the task and grade it per test."""
        from valve_plugin.rollouts.attempt import attempt

        return attempt(settings, task, context, ordinal, source)
