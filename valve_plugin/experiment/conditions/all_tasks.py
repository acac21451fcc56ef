"""Extract and Validate after every task, all-pass and all-fail ones included; the horizon then counts raw tasks.

Source: tab:impl-ablations.
"""

from __future__ import annotations

from collections.abc import Sequence

from valve_plugin.config import Settings
from valve_plugin.evolve.steps import Steps
from valve_plugin.experiment.conditions import Condition
from valve_plugin.extract.reflect import Style, reflect
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Attempt, Bank, Proposal

STYLE = Style("outcomes-1")


class EveryTask(Steps):
    """Every task teaches."""

    def material(self, attempts: Sequence[Attempt]) -> Sequence[Attempt]:
        """Return the attempts, whatever came of them."""
        return attempts


class Hooks:
    """Extraction that does not presuppose a contrast."""

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
        """Ask what the attempts teach, mixed or not."""
        return reflect(settings, bank, issue, attempts, trajectories, STYLE, feedback)


CONDITION = Condition(
    "all tasks: extract after every task; the horizon counts raw tasks", steps=EveryTask, hooks=f"{__name__}:Hooks"
)
