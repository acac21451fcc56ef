"""The paper's ranking (eq:impl-retrieval): each kind by itself, by overlap, IDF, importance and cosine."""

from __future__ import annotations

import functools
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from valve_plugin.config import Settings
from valve_plugin.records import KINDS, Bank, Item, Kind
from valve_plugin.retrieval.embedding import Embedding
from valve_plugin.theory import similarity
from valve_plugin.theory.similarity import UNIT, Score, Vector, tokens

QUERY_LIMIT = 100_000
"""Characters of task id and issue that are read; a longer text is a log file, and its head says what it is."""


class RankedItem(NamedTuple):
    """One selected item and the terms of its score."""

    item: Item
    score: Score


class Query(NamedTuple):
    """One task, ready to be compared: its tokens and the cosine with any vector."""

    tokens: frozenset[str]
    cosine: Callable[[Vector], int]


class KindIndex:
    """The items of one kind and their words. A body is read when a query first needs its cosine."""

    def __init__(self, items: Iterable[Item], encode: Callable[[str], Vector]) -> None:
        self.items = sorted(items, key=lambda i: (i.created_step, i.name))  # ties fall to the earlier position
        self._encode = encode
        self._text = [frozenset(tokens(i.text)) for i in self.items]
        self._scope = [frozenset(tokens(i.scope_hint)) for i in self.items]
        self._either = [c | m for c, m in zip(self._text, self._scope, strict=True)]
        self._counts = Counter(word for words in self._either for word in words)
        self._priors = [similarity.importance(i.passes, i.attempts, i.support) // 2 for i in self.items]
        self._vectors: dict[int, Vector] = {}

    def top(self, query: Query, k: int) -> list[RankedItem]:
        """Return the k best items, best first.

        The cosine adds at most one point, so once the k-th best total is out of reach for all that follow by their
        other terms, the rest need not be looked at.
        """
        scores = self._scores(query)
        best: list[tuple[int, int, Score]] = []
        for i in sorted(range(len(scores)), key=lambda i: -scores[i].total) if k else ():
            if len(best) == k and scores[i].total + UNIT < -best[-1][0]:
                break
            score = self._with_cosine(query, i, scores[i])
            insort(best, (-score.total, i, score))
            del best[k:]
        return [RankedItem(self.items[i], score) for _, i, score in best]

    def listed(self, query: Query, keys: set[tuple[Kind, str]]) -> list[Item]:
        """Return the items with these keys, best first."""
        scores = self._scores(query)
        chosen = [i for i, item in enumerate(self.items) if item.key in keys]
        chosen.sort(key=lambda i: -self._with_cosine(query, i, scores[i]).total)  # stable: ties keep their order
        return [self.items[i] for i in chosen]

    def _scores(self, query: Query) -> list[Score]:
        """Return the score of every item, without the cosine."""
        weights = {w: similarity.idf(len(self.items), self._counts[w]) for w in query.tokens & self._counts.keys()}
        words, scores = frozenset(weights), []
        for text, scope, either, prior in zip(self._text, self._scope, self._either, self._priors, strict=True):
            overlap = similarity.overlap(len(words & either), len(query.tokens), len(either))
            in_text = sum(weights[word] for word in words & text)
            in_scope = sum(similarity.scope_weight(weights[word]) for word in words & scope)
            scores.append(Score(overlap, in_text, in_scope, prior, 0))
        return scores

    def _with_cosine(self, query: Query, i: int, score: Score) -> Score:
        if i not in self._vectors:
            self._vectors[i] = self._encode(self.items[i].markdown)
        return score._replace(cosine=query.cosine(self._vectors[i]))


class PaperIndex:
    """One bank, ready to be asked. Threads may share it."""

    def __init__(self, bank: Bank, vectors: Embedding) -> None:
        self.name = vectors.name
        self._vectors = vectors
        self._shelves: dict[Kind, KindIndex] = {
            "principle": KindIndex(bank.principles, vectors.body),
            "skill": KindIndex(bank.skills, vectors.body),
        }

    def select(self, settings: Settings, task_id: str, issue: str) -> list[Item]:
        """Return the best items of each kind, as many as the settings say."""
        return [ranked.item for ranked in self.explain(settings, task_id, issue)]

    def order(self, keys: set[tuple[Kind, str]], task_id: str, issue: str) -> list[Item]:
        """Return the items with these keys, best first within a kind."""
        query = _ask(self._vectors, task_id, issue)
        return [item for shelf in self._shelves.values() for item in shelf.listed(query, keys)]

    def explain(self, settings: Settings, task_id: str, issue: str) -> list[RankedItem]:
        """Return what `select` returns, with the terms of each score."""
        query = _ask(self._vectors, task_id, issue)
        limits: dict[Kind, int] = {"principle": settings.top_principles, "skill": settings.top_skills}
        return [ranked for kind in KINDS for ranked in self._shelves[kind].top(query, limits[kind])]


@functools.lru_cache(maxsize=256)  # a gate asks for each panel task again and again
def _ask(vectors: Embedding, task_id: str, issue: str) -> Query:
    text = f"{task_id}\n{issue}"[:QUERY_LIMIT]
    return Query(frozenset(tokens(text)), similarity.cosine_to(vectors.query(text)))
