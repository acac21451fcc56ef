"""One sentence per item in extraction, storage and injection.

Source: tab:impl-ablations ("one-sentence principles and scoped skill sentences throughout").
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from valve_plugin.codec import digest
from valve_plugin.config import Settings
from valve_plugin.experiment.conditions import Condition
from valve_plugin.experiment.sentences import single
from valve_plugin.extract.parse import Draft, Extraction
from valve_plugin.extract.reflect import Style, reflect
from valve_plugin.extract.screen import Screened
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Attempt, Bank, Proposal, Withheld

MORE = "more than one sentence"


def _as_sentences(answer: Extraction) -> Extraction:
    """The body, which is what gets stored and injected, is the search sentence; a skill's begins with its scope."""

    def sentence(draft: Draft) -> Draft:
        scope = " ".join(draft.scope_hint.split()).rstrip(".")
        return replace(draft, markdown=f"({scope}) {draft.text}" if scope else draft.text)

    return replace(
        answer,
        principles=tuple(map(sentence, answer.principles)),
        skills=tuple(map(sentence, answer.skills)),
    )


def held(screened: Screened) -> Screened:
    """Return the items, each on one line; what is more than a sentence is withheld. Pure."""
    kept, withheld = [], []
    for item in screened.items:
        if single(item.markdown):
            kept.append(replace(item, markdown=" ".join(item.markdown.split())))
        else:
            withheld.append(Withheld(kind=item.kind, name=item.name, why=MORE, content_hash=digest(item), item=item))
    return Screened(tuple(kept), (*screened.withheld, *withheld))


STYLE = Style("sentences-1", "sentences", shaped=_as_sentences, held=held)


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
        """Ask for sentences, and take nothing else."""
        return reflect(settings, bank, issue, attempts, trajectories, STYLE, feedback)


CONDITION = Condition("sentence skills: one sentence per item, no rich body", hooks=f"{__name__}:Hooks")
