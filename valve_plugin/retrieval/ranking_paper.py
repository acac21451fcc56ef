"""The paper's ranking (eq:impl-retrieval): each kind by itself, by overlap, IDF, importance and cosine."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from valve_plugin.config import Settings
from valve_plugin.records import Bank, Item, Kind
from valve_plugin.retrieval.embedding import Embedding
from valve_plugin.theory import similarity
from valve_plugin.theory.similarity import Score, tokens

QUERY_LIMIT = 100_000
"""Characters of task id and issue that are read; a longer text is a log file, and its head says what it is."""


class RankedItem(NamedTuple):
    """One item and the terms of its score."""

    item: Item
    score: Score


class PaperIndex:
    """One bank, ready to be asked. Threads may share it."""

    def __init__(self, bank: Bank, vectors: Embedding) -> None:
        self.name = vectors.name
        self._vectors = vectors
        self._kinds: tuple[tuple[Item, ...], ...] = (bank.principles, bank.skills)
        self._words = {i.key: (frozenset(tokens(i.text)), frozenset(tokens(i.scope_hint))) for i in bank.items}
        self._vectors_of = {item.key: vectors.body(item.markdown) for item in bank.items}

    def select(self, settings: Settings, task_id: str, issue: str) -> list[Item]:
        """Return the best items of each kind, as many as the settings say."""
        return [ranked.item for ranked in self.explain(settings, task_id, issue)]

    def order(self, keys: set[tuple[Kind, str]], task_id: str, issue: str) -> list[Item]:
        """Return the items with these keys, best first within a kind."""
        return [r.item for kind in self._ranked(task_id, issue) for r in kind if r.item.key in keys]

    def explain(self, settings: Settings, task_id: str, issue: str) -> list[RankedItem]:
        """Return what `select` returns, with the terms of each score."""
        principles, skills = self._ranked(task_id, issue)
        return principles[: settings.top_principles] + skills[: settings.top_skills]

    def _ranked(self, task_id: str, issue: str) -> list[list[RankedItem]]:
        """Return all items of each kind, best first."""
        text = f"{task_id}\n{issue}"[:QUERY_LIMIT]
        words, cosine = frozenset(tokens(text)), similarity.cosine_to(self._vectors.query(text))
        found = []
        for items in self._kinds:
            counts = Counter(word for item in items for word in frozenset().union(*self._words[item.key]))
            ranked = [
                RankedItem(
                    item,
                    similarity.score(
                        words, *self._words[item.key], len(items), counts,
                        similarity.importance(item.passes, item.attempts, item.support),
                        cosine(self._vectors_of[item.key]),
                    ),
                )
                for item in items
            ]  # fmt: skip
            found.append(sorted(ranked, key=lambda r: (-r.score.total, r.item.created_step, r.item.name)))
        return found
