"""One sentence per item in extraction, storage and injection.

Source: tab:impl-ablations ("one-sentence principles and scoped skill sentences throughout").
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from valve_plugin.config import Settings
from valve_plugin.experiment.conditions import Condition
from valve_plugin.extract.parse import Draft, Extraction
from valve_plugin.extract.reflect import Style, reflect
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Attempt, Bank, Proposal


def _as_sentences(answer: Extraction) -> Extraction:
    """The body, which is what gets stored and injected, is the search sentence; a skill's begins with its scope."""

    def sentence(draft: Draft) -> Draft:
        scope = draft.scope_hint.strip()
        return replace(draft, markdown=f"({scope}) {draft.text}" if scope else draft.text)

    return replace(
        answer,
        principles=tuple(map(sentence, answer.principles)),
        skills=tuple(map(sentence, answer.skills)),
    )


STYLE = Style("sentences-1", "sentences", shaped=_as_sentences)


class Hooks:
    """Extraction without bodies."""

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
        """Ask for sentences."""
        return reflect(settings, bank, issue, attempts, trajectories, STYLE, feedback)


CONDITION = Condition("sentence skills: one sentence per item, no rich body", hooks=f"{__name__}:Hooks")
