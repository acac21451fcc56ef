"""Retrieve: choose a bank's items for one task and compose the context. Two rankings: `paper` and `fused`."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec.structs import replace

from valve_plugin.config import STEMMED, Ranking, Settings
from valve_plugin.records import Bank, Context, Item, Kind, Proposal, is_for_every_task
from valve_plugin.retrieval import block, embedding
from valve_plugin.retrieval.ranking import FusedIndex, PaperIndex

_TOLD: set[tuple[tuple[Kind, str], ...]] = set()
"""What was said to be left out, so that it is said once."""


class Index(Protocol):
    """One bank, ready to be asked; `name` is what contexts and panels record as their embedding."""

    name: str

    def select(self, settings: Settings, task_id: str, issue: str) -> list[Item]:
        """Return the items for one task, best first within a kind."""

    def order(self, keys: set[tuple[Kind, str]], task_id: str, issue: str) -> list[Item]:
        """Return the items with these keys, best first within a kind."""


def retrieve(settings: Settings, bank: Bank, task_id: str, issue: str) -> Context:
    """Return the context of one task: the selected items, bodies verbatim, as one block."""
    if not bank.items:
        return Context(text="", bank_hash=bank.hash)  # and no model is loaded to rank nothing
    index = _index(bank, settings)
    chosen = index.select(settings, task_id, issue)
    if settings.retrieval != "paper" and (always := {item.key for item in bank.items if is_for_every_task(item)}):
        chosen = index.order({*always, *(item.key for item in chosen)}, task_id, issue)
    return _context(settings, bank, index, chosen)


def candidate(settings: Settings, bank: Bank, enlarged: Bank, proposal: Proposal, task_id: str, issue: str) -> Context:
    """Return the context that a proposal is judged by, under `settings.pairing`.

    "paper" is what `retrieve` selects from the current bank, plus every proposed item; "deployed" is what
    it will select from the enlarged bank. Both list items by their score in the enlarged bank, so that
    equal sets are equal bytes.
    """
    if settings.pairing == "deployed":
        return retrieve(settings, enlarged, task_id, issue)
    kept = retrieve(settings, bank, task_id, issue).items
    index = _index(enlarged, settings)
    proposed = {item.key for item in proposal.items}
    return _context(settings, enlarged, index, index.order({*kept, *proposed}, task_id, issue), proposed)


def recorded_name(settings: Settings) -> str:
    """Return what a panel that is fixed under these settings records as its embedding."""
    return embedding.recorded_as(_ranking(settings), embedding.choose(settings.embedding).name)


def near(settings: Settings, bank: Bank, issue: str) -> list[Item]:
    """Return the few items that share words with an issue, and not enough to be injected, best first."""
    index = _index(bank, settings)
    return index.near(issue) if isinstance(index, FusedIndex) else []


def _ranking(settings: Settings) -> Ranking:
    return STEMMED if settings.retrieval == "auto" else settings.retrieval


def _index(bank: Bank, settings: Settings) -> Index:
    return _made(bank, settings.embedding, _ranking(settings))


@functools.lru_cache(maxsize=4)  # the current and the enlarged bank of a gate, and some room
def _made(bank: Bank, setting: str, ranking: Ranking) -> Index:
    # Nobody should be given an item that hides what it says, whoever wrote it.
    principles, skills = (tuple(i for i in kind if not i.hidden) for kind in (bank.principles, bank.skills))
    shown = replace(bank, principles=principles, skills=skills)
    vectors = embedding.choose(setting)
    return PaperIndex(shown, vectors) if ranking == "paper" else FusedIndex(shown, vectors, ranking)


def _context(
    settings: Settings,
    bank: Bank,
    index: Index,
    items: Sequence[Item],
    proposed: Collection[tuple[Kind, str]] = (),
) -> Context:
    """Compose the context of items in the order of their ranks, without those that do not fit."""
    guided = settings.retrieval != "paper"
    chosen = block.fitting(settings, items, proposed, guided=guided)
    left_out = tuple(item.key for item in items if item not in chosen)
    if left_out and left_out not in _TOLD:
        import logging

        _TOLD.add(left_out)
        logging.getLogger(__name__).warning(
            "valve: the notes for a task are larger than context_bytes, so these are left out: %s; shorten them, or "
            "raise it",
            ", ".join(f"{kind} {name}" for kind, name in left_out),
        )
    return Context(
        text=block.render(chosen, guided=guided),
        items=tuple(item.key for item in chosen),
        left_out=left_out,
        bank_hash=bank.hash,
        embedding=index.name,
    )
