"""Extract is held to an empty set of principles; skills only are retrieved.

Source: tab:impl-ablations.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from valve_plugin.config import Settings
from valve_plugin.experiment.conditions import Condition
from valve_plugin.extract.parse import Extraction
from valve_plugin.extract.reflect import Style, reflect
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Attempt, Bank, Proposal


def _without_principles(answer: Extraction) -> Extraction:
    return replace(answer, principles=())


STYLE = Style("skills-1", shaped=_without_principles)


class Hooks:
    """Extraction that proposes skills only."""

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
        """Ask for skills alone, and drop any principle that comes all the same."""
        return reflect(settings, bank, issue, attempts, trajectories, STYLE, feedback)


CONDITION = Condition(
    "no principles: extraction returns none, skills only are retrieved",
    hooks=f"{__name__}:Hooks",
    settings={"top_principles": 0},
)
