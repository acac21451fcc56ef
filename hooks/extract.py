"""Extract: contrast mixed attempts into a proposal."""

from __future__ import annotations

from collections.abc import Sequence

from valve_plugin.config import Settings
from valve_plugin.hooks.session import Session
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Attempt, Bank, Proposal


class ExtractHooks(Session):
    """The step that learns."""

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
