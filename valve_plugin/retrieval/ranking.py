"""Two rankings of a bank's items for one task: the paper's (eq:impl-retrieval), and the fused one.

Common words, the headings of issue forms and words of the repository's name do not count, identifiers count as wholes
too, and words of the issue's title count more. What reaches less than a share of the best score, or shares too little
with the issue, is left out, so an issue that no note fits gets no block. `benchmarks/relevance.py` measures it. All
arithmetic is on integers.
"""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from math import isqrt
from pathlib import Path
from typing import NamedTuple

from valve_plugin.config import Settings
from valve_plugin.records import Bank, Item, Kind
from valve_plugin.retrieval.embedding import HASHING, Embedding, fused_name
from valve_plugin.theory import similarity
from valve_plugin.theory.similarity import UNIT, Score, tokens

QUERY_LIMIT = 100_000
"""Characters of task id and issue that are read; a longer text is a log file, and its head says what it is."""
MOST = 5
"""Items of a kind that are injected at most, whatever the settings allow."""
FLOOR = 40
"""Percent of the best score that an item must reach."""
EVIDENCE = 10 * UNIT
"""Least lexical score: about one rare word of the title in an item's sentence, or three of the text in its body."""
_RERANKED = 50
_TITLE = 2
_ABSENT = 20
"""Imagined notes without the word, so that a word counts for something in a bank of one note."""
_BODY, _HEAD = 1, 3
"""Weights of a word in name or body, and in search sentence or scope hint."""
_IMPACT = {_BODY: 100, _HEAD: 173}
"""Hundredths that a word of this weight counts: square roots."""
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMMON = frozenset((Path(__file__).parent / "common_words.txt").read_text("ascii").split())
"""Words that say nothing about which note fits: English, the headings of issue forms, and Python's own."""


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


class _Match(NamedTuple):
    position: int
    score: int


class FusedIndex:
    """One bank, ready to be asked. Threads may share it."""

    def __init__(self, bank: Bank, vectors: Embedding) -> None:
        self.name = fused_name(vectors.name)
        self._vectors = None if vectors.name == HASHING else vectors
        self._repo = "".join(tokens(bank.repo.rpartition("/")[2]))
        self._items = bank.items
        self._norms: list[int] = []
        self._places: defaultdict[str, dict[int, list[int]]] = defaultdict(lambda: {weight: [] for weight in _IMPACT})
        """Word -> for each weight, the items with it."""
        for position, item in enumerate(self._items):
            # Each word has the weight of the best place it stands in.
            words = dict.fromkeys(keywords(item.name) + keywords(item.markdown), _BODY)
            words |= dict.fromkeys(keywords(item.text) + keywords(item.scope_hint), _HEAD)
            for word, weight in words.items():
                self._places[word][weight].append(position)
            self._norms.append(isqrt(10_000 + 200 * sum(words.values())))

    def _postings(self, word: str) -> Iterator[tuple[int, list[int]]]:
        """Yield what a word adds to a score, and to which items."""
        if found := self._places.get(word):
            n, df = len(self._items), sum(map(len, found.values()))
            rarity = similarity.idf((n + 1 + _ABSENT) * n, df * n + _ABSENT * (df - 1))
            for weight, positions in found.items():
                # In a large bank, what many bodies hold is looked up in sentences and scopes alone.
                if weight == _HEAD or df <= 50 + n // 20:
                    yield rarity * _IMPACT[weight], positions

    def _rank(self, match: _Match) -> tuple[int, str, int, str]:
        """Return the key that sorts matches: best first; ties in order of kind, creation and name."""
        item = self._items[match.position]
        return -match.score, item.kind, item.created_step, item.name

    def select(self, settings: Settings, task_id: str, issue: str) -> list[Item]:
        """Return the items that fit the issue, best first within a kind; the task's id is not read."""
        best = self._scored(issue)
        limits: dict[Kind, int] = {"principle": settings.top_principles, "skill": settings.top_skills}
        chosen: dict[Kind, list[Item]] = {kind: [] for kind in limits}
        for match in best:
            item = self._items[match.position]
            if match.score * 100 >= best[0].score * FLOOR and len(chosen[item.kind]) < min(MOST, limits[item.kind]):
                chosen[item.kind].append(item)
        return [item for items in chosen.values() for item in items]

    def order(self, keys: set[tuple[Kind, str]], task_id: str, issue: str) -> list[Item]:
        """Return the items with these keys, best first within a kind."""
        scores = {match.position: match.score for match in self._scored(issue)}
        chosen = [_Match(i, scores.get(i, 0)) for i, item in enumerate(self._items) if item.key in keys]
        best = [self._items[match.position] for match in sorted(chosen, key=self._rank)]
        return sorted(best, key=lambda item: item.kind)

    def ranked(self, issue: str) -> list[Item]:
        """Return the items of both kinds with evidence enough, best first."""
        return [self._items[match.position] for match in self._scored(issue)]

    def _scored(self, issue: str) -> list[_Match]:
        """Return what has evidence, best first."""
        found = sorted(self._lexical(issue), key=self._rank)
        if self._vectors is None or not found:
            return found
        head = found[:_RERANKED]
        cosine = similarity.cosine_to(self._vectors.query(issue[:QUERY_LIMIT]))
        items = [self._items[match.position] for match in head]
        summaries = (f"{item.name}. {item.text}. {item.scope_hint}" for item in items)
        cosines = [max(0, cosine(self._vectors.body(summary))) for summary in summaries]
        # Half of the best lexical score for the best cosine; the median cosine says nothing.
        middle, top = sorted(cosines)[len(cosines) // 2], max(cosines)
        gains = [max(0, c - middle) * (head[0].score // 2) // max(1, top - middle) for c in cosines]
        fused = [_Match(m.position, m.score + gain) for m, gain in zip(head, gains, strict=True)]
        return sorted(fused, key=self._rank) + found[_RERANKED:]

    def _lexical(self, issue: str) -> Iterator[_Match]:
        """Yield the items whose words are evidence enough, with their scores."""
        sums = [0] * len(self._items)
        for word, times in _question(issue).items():
            if len(word) > 2 and word in self._repo:
                continue  # the library and what it is about: in every issue, however few notes have it
            for added, positions in self._postings(word):
                weight = times * added
                for position in positions:
                    sums[position] += weight
        for position, norm in enumerate(self._norms):
            score = sums[position] // norm
            if score >= EVIDENCE:
                yield _Match(position, score)


@functools.lru_cache(maxsize=256)  # a gate asks for each panel task again and again
def _question(issue: str) -> dict[str, int]:
    """Return the words of an issue and how much each counts: 1 or, where repeated, 2, and more in the title."""
    title, _, rest = issue[:QUERY_LIMIT].strip().partition("\n")
    weights = {word: min(times, 2) for word, times in Counter(keywords(rest)).items()}
    for word in set(keywords(title)):
        weights[word] = weights.get(word, 0) + _TITLE
    return weights


def keywords(text: str) -> list[str]:
    """Return the words of a text that can say what it is about, and its compound identifiers as whole words."""
    words = [word for word in tokens(text) if word not in _COMMON and (len(word) > 1 or not word.isascii())]
    compounds = [parts for parts in map(tokens, _IDENTIFIER.findall(text)) if len(parts) > 1]
    return [word for word in words if not word.isdigit()] + ["".join(parts) for parts in compounds]
