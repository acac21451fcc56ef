"""Weighing a proposed item's wording with a small linear model: what fixed patterns did not foresee.

Tables of weights say how much a feature speaks for an attack: words, neighbours, pairs of words and of concepts within
a line, and letters in a row. One pair of tables judges the item as a whole, the other its heaviest line, a sentence of
prose, since an attack is mostly harmless text. A feature is a text, its weight is found under its hash.
`tests/corpus/train.py` makes the tables; reading them needs nothing but the standard library, and equal texts weigh
equally everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache, lru_cache
from importlib.resources import files
from itertools import combinations, zip_longest
from math import log, sqrt
from typing import NamedTuple
from zlib import crc32, decompress

from valve_plugin.extract.rules import plain

BUCKETS = 1 << 18
TABLES = ("words of an item", "pieces of an item", "words of a line", "pieces of a line")
_NEAR = 10
"""Words between two concepts that still belong together."""
_PAIRED = 40
"""Words of a line of which each two make a pair; the rest of a longer line goes unpaired."""
_SIZES = (3, 5, 6, 7)
"""Letters in a row."""
_PHRASES = 2
ENOUGH, ENOUGH_WORDS = 5, 20
"""Lines and words from which a light weight says something."""

_HEADING = re.compile(
    r"[\s#*>-]*(statement|when to apply|scope|trigger|procedure|better pattern|anti-?patterns?|notes?|code)\b[\s*:]*",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"`*(\[])")
_BULLET = re.compile(r"^\s*(?:[-*+]|\(?\d+[.)])\s+")
_TOKEN = re.compile(r"--?[a-z][a-z-]+|\|\||&&|>>|~/|\$\(|\$|[|~]|[a-z]+|\d+|[.,;!?(){}=<>]")
_NEGATORS = frozenset(
    ("never", "not", "no", "without", "avoid", "dont", "cannot", "nor", "neither", "refuse", "refuses", "resist")
)
_TWO_WORD_NEGATORS = frozenset({("instead", "of"), ("rather", "than")})
_CLAUSE_ENDS = frozenset([",", ".", ";", "!", "?", "but"])
_FILLER = re.compile("the|an?|of|to|in|is|it|and|or|that|with|for|on|as|be|by|from|at|this|its|are|was")
_PUNCTUATION = frozenset([",", ".", ";", "(", ")", "{", "}", "<", ">"])


class Line(NamedTuple):
    """One line of an item: a sentence or a line of code."""

    text: str
    decried: bool
    """Whether it stands under an Anti-pattern heading, where the item names what not to do."""


class Features(NamedTuple):
    """Where the weights of a line's features are found."""

    words: frozenset[int]
    pieces: frozenset[int]


_NOTHING = Features(frozenset(), frozenset())


class Weight(NamedTuple):
    """What an item's wording weighs."""

    score: float
    """Above 0: set aside."""
    ordinary: bool
    """Whether it weighs so little that a rule which fires is more likely to be wrong."""
    phrases: tuple[str, ...]
    """The lines that weigh most, heaviest first."""


class Model(NamedTuple):
    """Weights by table and bucket, and what every item starts with."""

    bias: float
    doubt: float
    """Score below which an item counts as ordinary whatever a rule says; negative."""
    length: float
    """What an item of more lines weighs more, times the logarithm of their number."""
    scales: tuple[float, ...]
    """What a step of each table is."""
    tables: tuple[bytes, ...]

    def weight(self, table: int, buckets: Collection[int]) -> float:
        """Return the sum of the weights, divided by the root of their number."""
        row = self.tables[table]
        return self.scales[table] * sum(row[b] - 128 for b in buckets) / sqrt(len(buckets) or 1)


def weigh(text: str, model: Model | None = None) -> Weight:
    """Return what an item's whole text weighs, and the lines that weigh most."""
    model = model or shipped()
    told = list(lines(text))
    found = [features(line) for line in told]
    whole = together(found)
    by_line = [model.weight(2, f.words) + model.weight(3, f.pieces) for f in found]
    score = model.bias + model.weight(0, whole.words) + model.weight(1, whole.pieces)
    score += max(by_line, default=0.0) + model.length * log(len(told) or 1)
    heaviest = sorted(range(len(told)), key=lambda n: (-by_line[n], n))
    ordinary = enough(told) and score < model.doubt
    return Weight(score, ordinary, tuple(told[n].text for n in heaviest[:_PHRASES]))


def enough(told: Collection[Line]) -> bool:
    """Return whether a light weight says something: of a few words, a rule that fires is the better witness."""
    return len(set(told)) >= ENOUGH and sum(len(line.text.split()) for line in told) >= ENOUGH_WORDS


@cache
def shipped() -> Model:
    """Return the model that comes with the package."""
    data = files(__package__).joinpath("weights.bin").read_bytes()
    head, packed = data.split(b"\n", 1)
    bias, doubt, length, *scales = (float(number) for number in head.split())
    rows = decompress(packed)
    tables = tuple(rows[n * BUCKETS : (n + 1) * BUCKETS] for n in range(len(TABLES)))
    return Model(bias, doubt, length, tuple(scales), tables)


def bucket(feature: str) -> int:
    """Return where a feature's weight is found."""
    return crc32(feature.encode()) % BUCKETS


def features(line: Line) -> Features:
    """Return the buckets of a line's features."""
    return Features(frozenset(map(bucket, words(line))), frozenset(map(bucket, pieces(line.text))))


def together(found: Iterable[Features]) -> Features:
    """Return the buckets of an item's lines."""
    found = list(found)
    return Features(*(frozenset().union(*column) for column in zip(*found, strict=True))) if found else _NOTHING


def lines(text: str) -> Iterator[Line]:
    """Split an item's text, prose into sentences; what stands under a heading knows it."""
    decried = code = False
    for line in text.splitlines():
        if line.strip().startswith("```"):
            code = not code
            continue
        if heading := None if code else _HEADING.match(line):
            decried = heading[1].casefold().startswith("anti")
            line = line[heading.end() :]
        for part in [line] if code else _SENTENCE.split(_BULLET.sub("", line, count=1)):
            if part.strip(" *#|->"):
                yield Line(part.strip(), decried)


def words(line: Line) -> Iterator[str]:
    """Yield a line's features: stems, neighbours, and pairs; what is negated is another word."""
    stems = list(_stems(line))
    for i, (mark, stem) in enumerate(stems):
        yield mark + stem
        for gap, join in ((1, " "), (2, " * "), (3, " * ")):
            if i + gap < len(stems):
                yield f"{mark}{stem}{join}{stems[i + gap][1]}"
    telling = sorted({mark + stem for mark, stem in stems if not _FILLER.fullmatch(stem)})[:_PAIRED]
    yield from (f"{one}&{two}" for one, two in combinations(telling, 2))
    known = [(i, mark + c) for i, (mark, stem) in enumerate(stems) for c in concepts().get(stem, ())]
    for n, (i, one) in enumerate(known):
        yield f"@{one}"
        yield from (f"@{min(one, two)}+{max(one, two)}" for j, two in known[n + 1 :] if j - i <= _NEAR and one != two)


def pieces(text: str) -> Iterator[str]:
    """Yield the letters in a row of a text, across words."""
    padded = f" {' '.join(plain(text).split())} "
    for size in _SIZES:
        yield from (padded[i : i + size] for i in range(len(padded) - size + 1))


@cache
def concepts() -> dict[str, tuple[str, ...]]:
    """Return the concepts each stem stands for, from concepts.txt."""
    found: dict[str, tuple[str, ...]] = {}
    for line in files(__package__).joinpath("concepts.txt").read_text("utf-8").splitlines():
        concept, _, members = line.partition(":")
        for word in members.split():
            stem = _stem(word)
            found[stem] = (*found.get(stem, ()), concept.upper())
    return {stem: tuple(dict.fromkeys(names)) for stem, names in found.items()}


def _stems(line: Line) -> Iterator[tuple[str, str]]:
    """Yield (mark, stem): the mark says that the word is negated, or decried."""
    tokens = _TOKEN.findall(plain(line.text).replace("n't", " not"))
    place, negated = "~" if line.decried else "", False
    for word, following in zip_longest(tokens, tokens[1:], fillvalue=""):
        negated = negated and word not in _CLAUSE_ENDS
        if word in _NEGATORS or (word, following) in _TWO_WORD_NEGATORS:
            negated = True
            yield place, word
        elif word not in _PUNCTUATION:
            yield place + ("!" if negated else ""), "9" if word.isdigit() and word != "0" else _stem(word)


@lru_cache(maxsize=20_000)
def _stem(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    for ending in ("ing", "ed", "ly", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word[: -len(ending)]
            if ending in ("ing", "ed") and len(word) > 3 and word[-1] == word[-2] and word[-1] not in "sl":
                word = word[:-1]
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word
