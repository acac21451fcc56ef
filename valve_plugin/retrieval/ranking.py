"""The rankings of a bank's items for one task: the paper's (eq:impl-retrieval), and the fused one in two forms.

Common words, the headings of issue forms and words of the repository's name do not count, identifiers count as wholes
too, and words of the issue's title count more. What reaches less than a share of the best score, or shares too little
with the issue, is left out, so an issue that no note fits gets no block. `stemmed` also compares words without their
English endings; `fused` does not, and is kept for what was judged under it. `benchmarks/relevance.py` measures both.
All arithmetic is on integers.
"""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from math import isqrt
from pathlib import Path
from typing import Literal, NamedTuple

from valve_plugin.config import FUSED, STEMMED, Settings
from valve_plugin.records import Bank, Item, Kind
from valve_plugin.retrieval.embedding import HASHING, Embedding, recorded_as
from valve_plugin.theory import similarity
from valve_plugin.theory.similarity import UNIT, Score, tokens

QUERY_LIMIT = 100_000
"""Characters of task id and issue that are read; a longer text is a log file, and its head says what it is."""
MOST = 5
"""Items of a kind that are injected at most, whatever the settings allow."""
NEAR = 3
"""Items that are named at most where none fits."""
_VERB = re.compile(r"(?!.*eed$)(?=.*[aeiouy].*(?:ing|ed)$)(.{3,}?)(?:ing|ed)")
_DOUBLED = re.compile(r"([^lsz])\1$")
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


class _Rules(NamedTuple):
    """What one form of the fused ranking goes by."""

    stems: int
    """Percent of a word's weight that it has by its stem; the rest is for the same form of the word."""
    floor: int
    """Percent of the best score that an item must reach."""
    evidence: int
    """Least lexical score: about one rare word of the title in an item's sentence, or three of the text in its body."""


_RULES = {FUSED: _Rules(0, 40, 10 * UNIT), STEMMED: _Rules(70, 45, 9 * UNIT)}

_Places = defaultdict[str, dict[int, list[int]]]
"""Word or stem -> for each weight, the items with it."""


class FusedIndex:
    """One bank, ready to be asked. Threads may share it."""

    def __init__(self, bank: Bank, vectors: Embedding, ranking: Literal["stemmed", "fused"] = STEMMED) -> None:
        self.name = recorded_as(ranking, vectors.name)
        self._rules = _RULES[ranking]
        self._vectors = None if vectors.name == HASHING else vectors
        self._repo = "".join(tokens(bank.repo.rpartition("/")[2]))
        self._items = bank.items
        self._norms: list[int] = []
        self._words, self._stems = (_Places(lambda: {weight: [] for weight in _IMPACT}) for _ in range(2))
        for position, item in enumerate(self._items):
            # Each word has the weight of the best place it stands in.
            words = dict.fromkeys(keywords(item.name) + keywords(item.markdown), _BODY)
            words |= dict.fromkeys(keywords(item.text) + keywords(item.scope_hint), _HEAD)
            for word, weight in words.items():
                self._words[word][weight].append(position)
            if self._rules.stems:
                for folded, weight in _by_stem(words).items():
                    self._stems[folded][weight].append(position)
            self._norms.append(isqrt(10_000 + 200 * sum(words.values())))

    def _postings(self, places: _Places, word: str) -> Iterator[tuple[int, list[int]]]:
        """Yield what a word adds to a score, and to which items."""
        if found := places.get(word):
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
            if match.score * 100 >= best[0].score * self._rules.floor and len(chosen[item.kind]) < min(
                MOST, limits[item.kind]
            ):
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

    def near(self, issue: str) -> list[Item]:
        """Return the few items that share words with an issue, and not enough of them, best first."""
        found = sorted((m for m in self._lexical(issue) if 0 < m.score < self._rules.evidence), key=self._rank)
        return [self._items[match.position] for match in found[:NEAR]]

    def _scored(self, issue: str) -> list[_Match]:
        """Return what has evidence, best first."""
        found = sorted((m for m in self._lexical(issue) if m.score >= self._rules.evidence), key=self._rank)
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
        """Yield all items, with what their words are evidence of."""
        sums = [0] * len(self._items)
        # Not the library and what it is about: that is in every issue, however few notes have it.
        words = {word: n for word, n in _question(issue).items() if len(word) <= 2 or word not in self._repo}
        stems = self._rules.stems
        for places, asked, share in ((self._words, words, 100 - stems), (self._stems, _by_stem(words), stems)):
            for word, times in asked.items() if share else ():
                for added, positions in self._postings(places, word):
                    weight = times * added * share // 100
                    for position in positions:
                        sums[position] += weight
        for position, norm in enumerate(self._norms):
            yield _Match(position, sums[position] // norm)


@functools.lru_cache(maxsize=256)  # a gate asks for each panel task again and again
def _question(issue: str) -> dict[str, int]:
    """Return the words of an issue and how much each counts: 1 or, where repeated, 2, and more in the title."""
    title, _, rest = issue[:QUERY_LIMIT].strip().partition("\n")
    weights = {word: min(times, 2) for word, times in Counter(keywords(rest)).items()}
    for word in set(keywords(title)):
        weights[word] = weights.get(word, 0) + _TITLE
    return weights


def _by_stem(words: Mapping[str, int]) -> dict[str, int]:
    """Return the stems of words; each counts as much as the best of its words."""
    found: dict[str, int] = {}
    for word, weight in words.items():
        folded = stem(word)
        found[folded] = max(weight, found.get(folded, 0))
    return found


@functools.lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Return an English word without the ending of its plural or verb form: discounts, discounted -> discount.

    The rules stay as they are: what was judged under them is checked by them. They take off less than a Porter stemmer,
    which did not do better in `benchmarks/relevance.py`. What is not a word of four ASCII letters or more stays.
    """
    if len(word) < 4 or not (word.isascii() and word.isalpha()):
        return word
    if word.endswith(("ies", "ied")) and len(word) > 4:
        word = word[:-3] + "y"
    elif word.endswith(("sses", "xes", "ches", "shes", "zes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    if found := _VERB.fullmatch(word):
        word = found[1][:-1] if _DOUBLED.search(found[1]) else found[1]
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


def keywords(text: str) -> list[str]:
    """Return the words of a text that can say what it is about, and its compound identifiers as whole words."""
    words = [word for word in tokens(text) if word not in _COMMON and (len(word) > 1 or not word.isascii())]
    compounds = [parts for parts in map(tokens, _IDENTIFIER.findall(text)) if len(parts) > 1]
    return [word for word in words if not word.isdigit()] + ["".join(parts) for parts in compounds]
