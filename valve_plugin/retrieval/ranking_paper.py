"""The paper's ranking (eq:impl-retrieval): each kind by itself, by overlap, IDF, importance and cosine."""

from __future__ import annotations

import functools
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from valve_plugin.config import Settings
from valve_plugin.records import KINDS, Bank, Item, Kind
from valve_plugin.retrieval.embedding import Embedding
from valve_plugin.theory import similarity
from valve_plugin.theory.similarity import UNIT, Score, Vector, tokens

QUERY_LIMIT = 100_000
"""Characters of task id and issue that are read; a longer text is a log file, and its head says what it is."""


Postings = tuple[list[int], list[int], list[int]]


class RankedItem(NamedTuple):
    """One selected item and the terms of its score."""

    item: Item
    score: Score


class Query(NamedTuple):
    """One task, ready to be compared: its tokens and the cosine with any vector."""

    tokens: frozenset[str]
    cosine: Callable[[Vector], int]


class KindIndex:
    """The items of one kind with an inverted index over search sentences and scope hints.

    Building reads no body: a body's vector is made when a query first needs its cosine. Where the items are those of
    `base` and later ones, as in a bank that a proposal enlarges, only the later ones are read.
    """

    def __init__(self, items: Iterable[Item], encode: Callable[[str], Vector], base: KindIndex | None = None) -> None:
        self.items = sorted(items, key=lambda i: (i.created_step, i.name))  # ties fall to the earlier position
        self._encode = encode
        known = base if base and _starts_with(self.items, base.items) else None
        first = len(known.items) if known else 0
        text = [frozenset(tokens(i.text)) for i in self.items[first:]]
        scope = [frozenset(tokens(i.scope_hint)) for i in self.items[first:]]
        either = [c | m for c, m in zip(text, scope, strict=True)]
        self._vectors: dict[int, Vector] = known._vectors.copy() if known else {}
        self._text: list[frozenset[str]] = [*known._text, *text] if known else text
        self._scope: list[frozenset[str]] = [*known._scope, *scope] if known else scope
        self._either: list[frozenset[str]] = [*known._either, *either] if known else either
        self._priors = [similarity.importance(i.passes, i.attempts, i.support) // 2 for i in self.items]
        self._postings: dict[str, Postings] = _postings(text, scope, first, known._postings if known else {})

    def top(self, query: Query, k: int) -> list[Item]:
        """Return the k best items, best first.

        Overlap and cosine add at most one point each, so once the k-th best total is out of reach for all that
        follow by their other terms, the rest need not be looked at.
        """
        sums, shared = self._sums(query)
        best: list[tuple[int, int]] = []
        for i in sorted(range(len(sums)), key=sums.__getitem__, reverse=True) if k else ():
            if len(best) == k and sums[i] + 2 * UNIT < -best[-1][0]:
                break
            insort(best, (-self._total(query, i, sums[i], shared[i]), i))
            del best[k:]
        return [self.items[i] for _, i in best]

    def listed(self, query: Query, keys: set[tuple[Kind, str]]) -> list[Item]:
        """Return the items with these keys, best first."""
        chosen = [i for i, item in enumerate(self.items) if item.key in keys]
        # Stable: ties keep their order.
        chosen.sort(key=lambda i: self._total(query, i, *self._terms(query, i)), reverse=True)
        return [self.items[i] for i in chosen]

    def _terms(self, query: Query, i: int) -> tuple[int, int]:
        """Return what `_sums` gives for one item."""
        words = query.tokens & self._either[i]
        weights = {word: similarity.idf(len(self.items), sum(map(len, self._postings[word]))) for word in words}
        in_text = sum(weights[word] for word in words & self._text[i])
        in_scope = sum(similarity.scope_weight(weights[word]) for word in words & self._scope[i])
        return self._priors[i] + in_text + in_scope, len(words)

    def explain(self, query: Query, item: Item) -> Score:
        """Return the terms of one item's score, computed the plain way."""
        i = self.items.index(item)
        prior = similarity.importance(item.passes, item.attempts, item.support)
        cosine = query.cosine(self._vector(i))
        return similarity.score(query.tokens, self._text[i], self._scope[i], self._either, prior, cosine)

    def _sums(self, query: Query) -> tuple[list[int], list[int]]:
        """Return, for every item, the sum of its prior and IDF terms, and the number of words it shares.

        This is the hot loop: it touches an item once per shared word, and only adds.
        """
        sums, shared = self._priors.copy(), [0] * len(self.items)
        for word in query.tokens & self._postings.keys():
            text, scope, both = self._postings[word]
            weight = similarity.idf(len(self.items), len(text) + len(scope) + len(both))
            scoped = similarity.scope_weight(weight)
            for added, positions in ((weight, text), (scoped, scope), (weight + scoped, both)):
                for i in positions:
                    sums[i] += added
                    shared[i] += 1
        return sums, shared

    def _total(self, query: Query, i: int, terms: int, shared: int) -> int:
        """Return s(i, q) from an item's prior and IDF terms and its number of shared words."""
        overlap = similarity.overlap(shared, len(query.tokens), len(self._either[i]))
        return terms + overlap + query.cosine(self._vector(i))

    def _vector(self, i: int) -> Vector:
        if i not in self._vectors:
            self._vectors[i] = self._encode(self.items[i].markdown)
        return self._vectors[i]


def _starts_with(items: Sequence[Item], base: Sequence[Item]) -> bool:
    """Whether the items begin with those of a base, in what an index reads of them but for support and passes."""
    return len(items) >= len(base) and all(
        a is b or (a.text, a.scope_hint, a.markdown) == (b.text, b.scope_hint, b.markdown)
        for a, b in zip(base, items, strict=False)
    )


def _postings(
    text: Sequence[frozenset[str]], scope: Sequence[frozenset[str]], first: int, base: Mapping[str, Postings]
) -> dict[str, Postings]:
    """Return, for each word, the positions of items with it in the search sentence only, scope hint only, or both.

    Args:
        text: words of the search sentences.
        scope: words of the scope hints.
        first: position of the first of these items.
        base: the postings of all items before; they stay as they are.
    """
    found: defaultdict[str, Postings] = defaultdict(lambda: ([], [], []))
    for i, (c, m) in enumerate(zip(text, scope, strict=True), start=first):
        for words, which in ((c - m, 0), (m - c, 1), (c & m, 2)):
            for word in words:
                found[word][which].append(i)
    for word in found.keys() & base.keys():
        (text_only, scope_only, both), new = base[word], found[word]
        found[word] = (text_only + new[0], scope_only + new[1], both + new[2])
    return {**base, **found}


class PaperIndex:
    """One bank, ready to be asked. Threads may share it."""

    def __init__(self, bank: Bank, vectors: Embedding, base: PaperIndex | None = None) -> None:
        self.name = vectors.name
        self._vectors = vectors
        known = base._shelves if base else {}
        self._shelves: dict[Kind, KindIndex] = {
            "principle": KindIndex(bank.principles, vectors.body, known.get("principle")),
            "skill": KindIndex(bank.skills, vectors.body, known.get("skill")),
        }

    def select(self, settings: Settings, task_id: str, issue: str) -> list[Item]:
        """Return the best items of each kind, as many as the settings say."""
        query = _ask(self._vectors, task_id, issue)
        return [item for shelf, most in self._quotas(settings) for item in shelf.top(query, most)]

    def order(self, keys: set[tuple[Kind, str]], task_id: str, issue: str) -> list[Item]:
        """Return the items with these keys, best first within a kind."""
        query = _ask(self._vectors, task_id, issue)
        return [item for shelf in self._shelves.values() for item in shelf.listed(query, keys)]

    def explain(self, settings: Settings, task_id: str, issue: str) -> list[RankedItem]:
        """Return what `select` returns, with the terms of each score."""
        query = _ask(self._vectors, task_id, issue)
        return [
            RankedItem(item, shelf.explain(query, item))
            for shelf, most in self._quotas(settings)
            for item in shelf.top(query, most)
        ]

    def _quotas(self, settings: Settings) -> list[tuple[KindIndex, int]]:
        limits: dict[Kind, int] = {"principle": settings.top_principles, "skill": settings.top_skills}
        return [(self._shelves[kind], limits[kind]) for kind in KINDS]


@functools.lru_cache(maxsize=256)  # a gate asks for each panel task again and again
def _ask(vectors: Embedding, task_id: str, issue: str) -> Query:
    text = f"{task_id}\n{issue}"[:QUERY_LIMIT]
    return Query(frozenset(tokens(text)), similarity.cosine_to(vectors.query(text)))
