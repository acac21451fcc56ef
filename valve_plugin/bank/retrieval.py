"""Retrieve: rank a bank's items for one task by eq:impl-retrieval and compose the context."""

from __future__ import annotations

import threading
from bisect import insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple, cast

from valve_plugin.bank import block, embedding
from valve_plugin.bank.embedding import Embedding
from valve_plugin.config import Settings
from valve_plugin.records import KINDS, Bank, Context, Item, Kind, Proposal
from valve_plugin.theory import similarity
from valve_plugin.theory.similarity import UNIT, Score, Vector, tokens

QUERY_LIMIT = 100_000
"""Characters of task id and issue that are read; a longer text is a log file, and its head says what it is."""

LARGE = 2000
"""Items of one kind from which numpy, whose import costs 80 ms, pays; the sums are the same integers."""
_COUNT_BITS = 16  # of the running sums: search sentence and scope hint hold at most 1,200 characters
_COUNT_MASK = (1 << _COUNT_BITS) - 1


class Ranked(NamedTuple):
    """One selected item and why it was selected."""

    item: Item
    score: Score


def retrieve(settings: Settings, bank: Bank, task_id: str, issue: str) -> Context:
    """Return the context of one task: the top items of each kind, bodies verbatim, as one block."""
    if not bank.items:
        return Context(text="", bank_hash=bank.hash)  # and no model is loaded to rank nothing
    index = _index(bank, settings)
    query = index.ask(task_id, issue)
    return _context(index, [i for shelf, k in index.quotas(settings) for i in shelf.top(query, k)])


def candidate(settings: Settings, bank: Bank, enlarged: Bank, proposal: Proposal, task_id: str, issue: str) -> Context:
    """Return the context that a proposal is judged by, under `settings.pairing`.

    "paper" is what `retrieve` selects from the current bank, plus every proposed item; "deployed" is what
    it will select from the enlarged bank. Both list items by their score in the enlarged bank, so that
    equal sets are equal bytes.
    """
    if settings.pairing == "deployed":
        return retrieve(settings, enlarged, task_id, issue)
    kept = retrieve(settings, bank, task_id, issue).items
    chosen = {*kept, *(item.key for item in proposal.items)}
    index = _index(enlarged, settings)
    query = index.ask(task_id, issue)
    return _context(index, [i for shelf in index.shelves.values() for i in shelf.listed(query, chosen)])


def explain(settings: Settings, bank: Bank, task_id: str, issue: str) -> list[Ranked]:
    """Return the items `retrieve` selects, in order, with the terms of their scores."""
    index = _index(bank, settings)
    query = index.ask(task_id, issue)
    return [
        Ranked(item, shelf.explain(query, item)) for shelf, k in index.quotas(settings) for item in shelf.top(query, k)
    ]


class Query(NamedTuple):
    """One task, ready to be compared: its tokens and the cosine with any vector."""

    tokens: frozenset[str]
    cosine: Callable[[Vector], int]


class Shelf:
    """The items of one kind with an inverted index over search sentences and scope hints.

    Building reads no body: a body's vector is made when a query first needs its cosine.
    """

    def __init__(self, items: Iterable[Item], encode: Callable[[str], Vector]) -> None:
        self.items = sorted(items, key=lambda i: (i.created_step, i.name))  # ties fall to the earlier position
        self._encode = encode
        self._vectors: dict[int, Vector] = {}
        self._text = [frozenset(tokens(i.text)) for i in self.items]
        self._scope = [frozenset(tokens(i.scope_hint)) for i in self.items]
        self._either = [c | m for c, m in zip(self._text, self._scope, strict=True)]
        self._priors = [similarity.importance(i.passes, i.attempts, i.support) // 2 << _COUNT_BITS for i in self.items]
        self._positions, self._places = _postings(self._text, self._scope)

    def top(self, query: Query, k: int) -> list[Item]:
        """Return the k best items, best first.

        Overlap and cosine add at most one point each, so once the k-th best total is out of reach for all that
        follow by their other terms, the rest need not be looked at.
        """
        sums = self._sums(query)
        best: list[tuple[int, int]] = []
        for i in sorted(range(len(sums)), key=sums.__getitem__, reverse=True) if k else ():
            if len(best) == k and (sums[i] >> _COUNT_BITS) + 2 * UNIT < -best[-1][0]:
                break
            insort(best, (-self._total(query, i, sums[i]), i))
            del best[k:]
        return [self.items[i] for _, i in best]

    def listed(self, query: Query, keys: set[tuple[Kind, str]]) -> list[Item]:
        """Return the items with these keys, best first."""
        sums = self._sums(query)
        chosen = [i for i, item in enumerate(self.items) if item.key in keys]
        chosen.sort(key=lambda i: self._total(query, i, sums[i]), reverse=True)  # stable: ties keep their order
        return [self.items[i] for i in chosen]

    def explain(self, query: Query, item: Item) -> Score:
        """Return the terms of one item's score, computed the plain way."""
        i = self.items.index(item)
        prior = similarity.importance(item.passes, item.attempts, item.support)
        cosine = query.cosine(self._vector(i))
        return similarity.score(query.tokens, self._text[i], self._scope[i], self._either, prior, cosine)

    def _sums(self, query: Query) -> list[int]:
        """Return, for every item, prior and IDF terms in the high bits, the number of shared words in the low.

        This is the hot loop: it touches an item once per shared word, and only adds.
        """
        runs: list[tuple[int, Sequence[int]]] = []
        for word in query.tokens & self._places.keys():
            start, scope, both, end = self._places[word]
            weight = similarity.idf(len(self.items), end - start)
            scoped = similarity.scope_weight(weight)
            runs.append((weight, self._positions[start:scope]))
            runs.append((scoped, self._positions[scope:both]))
            runs.append((weight + scoped, self._positions[both:end]))
        if runs and len(self.items) >= LARGE:
            return _summed_by_numpy(self._priors, runs)
        sums = self._priors.copy()
        for weight, positions in runs:
            packed = weight << _COUNT_BITS | 1
            for i in positions:
                sums[i] += packed
        return sums

    def _total(self, query: Query, i: int, packed: int) -> int:
        """Return s(i, q) from an item's packed sum."""
        shared = similarity.overlap(packed & _COUNT_MASK, len(query.tokens), len(self._either[i]))
        return (packed >> _COUNT_BITS) + shared + query.cosine(self._vector(i))

    def _vector(self, i: int) -> Vector:
        if i not in self._vectors:
            self._vectors[i] = self._encode(self.items[i].markdown)
        return self._vectors[i]


class Index:
    """One bank, ready to be asked. Threads may share it."""

    def __init__(self, bank: Bank, vectors: Embedding) -> None:
        self.bank = bank
        self.vectors = vectors
        self.shelves: dict[Kind, Shelf] = {
            "principle": Shelf(bank.principles, vectors.body),
            "skill": Shelf(bank.skills, vectors.body),
        }

    @cached_property
    def bank_hash(self) -> str:
        """The bank's hash, computed once: it reads every byte of the bank."""
        return self.bank.hash

    def ask(self, task_id: str, issue: str) -> Query:
        """Return the query of one task: its id and its issue."""
        text = f"{task_id}\n{issue}"[:QUERY_LIMIT]
        return Query(frozenset(tokens(text)), similarity.cosine_to(self.vectors.query(text)))

    def quotas(self, settings: Settings) -> list[tuple[Shelf, int]]:
        """Return each shelf with the number of items it may give."""
        limits: dict[Kind, int] = {"principle": settings.top_principles, "skill": settings.top_skills}
        return [(self.shelves[kind], limits[kind]) for kind in KINDS]


_RECENT: list[Index] = []
_RECENT_LOCK = threading.Lock()
_RECENT_MAX = 4  # the current and the enlarged bank of a gate, and some room


def _index(bank: Bank, settings: Settings) -> Index:
    """Return the index of this bank object; banks are frozen, so the same object is the same content."""
    vectors = embedding.choose(settings.embedding)
    with _RECENT_LOCK:
        for index in _RECENT:
            if index.bank is bank and index.vectors is vectors:
                return index
    index = Index(bank, vectors)
    with _RECENT_LOCK:
        _RECENT.insert(0, index)
        del _RECENT[_RECENT_MAX:]
    return index


def _postings(
    text: Sequence[frozenset[str]], scope: Sequence[frozenset[str]]
) -> tuple[Sequence[int], dict[str, tuple[int, int, int, int]]]:
    """Return positions of items, word after word, and where each word's are.

    A word's four numbers bound three runs: items that hold it in their search sentence only, in their scope
    hint only, and in both.
    """
    found: defaultdict[str, tuple[list[int], list[int], list[int]]] = defaultdict(lambda: ([], [], []))
    for i, (c, m) in enumerate(zip(text, scope, strict=True)):
        both = c & m
        for words, which in ((c - both, 0), (m - both, 1), (both, 2)):
            for word in words:
                found[word][which].append(i)
    positions: list[int] = []
    places = {}
    for word, runs in found.items():
        bounds = [len(positions)]
        for run in runs:
            positions += run
            bounds.append(len(positions))
        places[word] = (bounds[0], bounds[1], bounds[2], bounds[3])
    if len(text) < LARGE:
        return positions, places
    import numpy

    return cast("Sequence[int]", numpy.array(positions, dtype=numpy.intp)), places


def _summed_by_numpy(priors: list[int], runs: Sequence[tuple[int, Sequence[int]]]) -> list[int]:
    """Return what adding run by run gives: floats hold the sums exactly, as integers far below 2^53."""
    import numpy

    positions = numpy.concatenate([p for _, p in runs])
    weights = numpy.repeat([float(w) for w, _ in runs], [len(p) for _, p in runs])
    total = numpy.bincount(positions, weights, minlength=len(priors)).astype(numpy.int64)
    shared = numpy.bincount(positions, minlength=len(priors))
    sums: list[int] = ((total << _COUNT_BITS) + shared + numpy.array(priors)).tolist()
    return sums


def _context(index: Index, items: Sequence[Item]) -> Context:
    return Context(
        text=block.render(items),
        items=tuple(item.key for item in items),
        bank_hash=index.bank_hash,
        embedding=index.vectors.name,
    )
