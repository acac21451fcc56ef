"""Validate: the gate decides whether a proposal persists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from valve_plugin.config import Settings
from valve_plugin.hooks.session import Session
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Proposal, Verdict


class ValidateHooks(Session):
    """The step that protects the bank."""

    @hookimpl
    def valve_validate(
        self, settings: Settings, bank_dir: Path, proposal: Proposal, observe: Callable[[str, Mapping[str, Any]], None]
    ) -> Verdict:
        """Shell out paired rollouts on the fixed panel and apply the integer rule."""
        from valve_plugin.gate.judge import judge

        return judge(settings, bank_dir, proposal, observe)
