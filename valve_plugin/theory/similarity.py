"""How alike two texts are: tokens, duplicates, hashing vectors and the retrieval score (eq:impl-retrieval).

All arithmetic is on integers in units of 1/UNIT, so sums do not depend on their order and a ranking is the
same on every machine. The one call into the C library, log2, is rounded to that grid.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import repeat
from math import isqrt, log2
from operator import mul
from typing import NamedTuple
from zlib import crc32

UNIT = 1 << 32
"""One point of score."""

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"  # written without spaces: each character is a token
_ASCII_PART = re.compile(r"[A-Z]+(?![a-z])[a-z0-9]*|[A-Z]?[a-z0-9]+")
_WORD = rf"[{_CJK}]|[^\W_{_CJK}]+"  # takes 2 ms to compile, so only when a text is not ASCII


def tokens(text: str) -> list[str]:
    """Split text into lower-case words; identifiers are split at `_`, punctuation and case changes.

    `parseHTTPResponse2` gives parse, http, response2. Digits stay with their word (utf8, a commit hash).
    Text is NFKC-normalized first, so that composed and decomposed accents agree.
    """
    if text.isascii():
        return " ".join(_ASCII_PART.findall(text)).lower().split()
    text = unicodedata.normalize("NFKC", text)
    return [part.casefold() for word in re.findall(_WORD, text) for part in _camel_parts(word)]


def _camel_parts(word: str) -> Sequence[str]:
    """Split one word where a capital starts a part: aB -> a B, ABc -> A Bc. Agrees with `_ASCII_PART`."""
    if word.isascii():
        return _ASCII_PART.findall(word)
    upper = [c.isupper() for c in word]
    cuts = [
        i
        for i in range(1, len(word))
        if upper[i] and (not upper[i - 1] or (i + 1 < len(word) and word[i + 1].islower()))
    ]
    return [word[a:b] for a, b in zip([0, *cuts], [*cuts, len(word)], strict=True)]


def jaccard(a: AbstractSet[str], b: AbstractSet[str]) -> tuple[int, int]:
    """Return (|a & b|, |a | b|), the Jaccard similarity as an exact ratio (eq:impl-dedup)."""
    shared = len(a & b)
    return shared, len(a) + len(b) - shared


def near_duplicate(a: AbstractSet[str], b: AbstractSet[str]) -> bool:
    """True when the Jaccard similarity is at least 0.45, compared exactly; empty sets are alike nothing."""
    shared, union = jaccard(a, b)
    return union > 0 and 20 * shared >= 9 * union


class Vector(NamedTuple):
    """A sparse vector of integers: what both the hashing representation and a rounded embedding are."""

    indices: Sequence[int]
    values: Sequence[int]
    square: int
    """Squared length, exact."""


def vector(indices: Sequence[int], values: Sequence[int]) -> Vector:
    """Return the sparse vector with these distinct indices and their values."""
    return Vector(indices, values, sum(map(mul, values, values)))


def hashing_vector(text: str) -> Vector:
    """Return the deterministic hashing representation of a text, at least 0 everywhere.

    Each token counts in the dimension its CRC-32 names, with weight 1 for one occurrence, 2 for two or
    three, 3 for four to seven: repeated words add little, and weights stay integers.
    """
    counts = Counter(tokens(text))
    weights = {crc32(t.encode("utf-8", "surrogatepass")): count.bit_length() for t, count in counts.items()}
    return vector(tuple(weights), tuple(weights.values()))


def cosine_to(query: Vector) -> Callable[[Vector], int]:
    """Return the function that gives a vector's cosine with `query` in units of 1/UNIT; a zero vector has 0."""
    weight = dict(zip(query.indices, query.values, strict=True)).get

    def cosine(item: Vector) -> int:
        dot = sum(map(mul, map(weight, item.indices, repeat(0)), item.values))
        if not dot:
            return 0
        size = isqrt(dot * dot * UNIT * UNIT // (query.square * item.square))
        return size if dot > 0 else -size

    return cosine


@lru_cache(maxsize=1 << 16)
def idf(n: int, df: int) -> int:
    """Return log2(max(n/df, 1)) in units of 1/UNIT, for a word in `df` (at least 1) of a bank's `n` items."""
    return round(log2(max(n / df, 1.0)) * UNIT)


def importance(passes: int, attempts: int, support: int) -> int:
    """Return I in units of 1/UNIT: the passing share of the source attempts, else support/(support+1)."""
    return passes * UNIT // attempts if attempts else support * UNIT // (support + 1)


class Score(NamedTuple):
    """The five terms of eq:impl-retrieval, weighted, in units of 1/UNIT."""

    overlap: int
    text: int
    scope: int
    importance: int
    cosine: int

    @property
    def total(self) -> int:
        """s(i, q)."""
        return sum(self)


def score(
    query: AbstractSet[str],
    text: AbstractSet[str],
    scope: AbstractSet[str],
    size: int,
    counts: Mapping[str, int],
    importance_units: int,
    cosine_units: int,
) -> Score:
    """Return s(i, q) term by term.

    Args:
        query: Q, the tokens of task id and issue.
        text: C, the tokens of the item's search sentence.
        scope: M, the tokens of a skill's scope hint; empty for a principle.
        size: N, the number of items of the same kind, this one included.
        counts: df, in how many of them a word is in C | M (the paper leaves df's documents open).
        importance_units: I, see `importance`.
        cosine_units: cos(e_q, e_i), see `cosine_to`.

    Source: eq:impl-retrieval.
    """
    weights = {w: idf(size, counts[w]) for w in query & (text | scope)}
    smaller = min(len(query), len(text | scope))
    return Score(
        overlap=len(weights) * UNIT // smaller if smaller else 0,
        text=sum(weights[w] for w in query & text),
        scope=sum(weights[w] * 9 // 20 for w in query & scope),  # 0.45
        importance=importance_units // 2,
        cosine=cosine_units,
    )
