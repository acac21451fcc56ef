"""Tokens, duplicates, hashing vectors and the five terms of the score."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.retrieval.banks import sentences
from valve_plugin.theory import similarity
from valve_plugin.theory.similarity import UNIT, cosine_to, hashing_vector, jaccard, near_duplicate, tokens, vector

word_sets = st.frozensets(st.sampled_from("abcdefghijklmnopqrstuvwxyz"))
texts = st.one_of(st.text(), sentences)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("--- !!", ""),
        ("parseHTTPResponse2", "parse http response2"),
        ("get_item.__class__", "get item class"),
        ("DeepDiff(t1, ignore_order=True)", "deep diff t1 ignore order true"),
        ("IOError iPhone x86_64 utf8 3f2a9bc", "io error i phone x86 64 utf8 3f2a9bc"),
        ("UPPER_CASE", "upper case"),
        ("don't", "don t"),
        ("ÉtéFini", "été fini"),
        ("e\u0301te\u0301", "été"),
        ("STRASSE straße", "strasse strasse"),
        ("ignore顺序faster", "ignore 顺 序 faster"),
        ("\ud800ok", "ok"),
        ("a\x00b", "a b"),
    ],
)
def test_tokens(text: str, expected: str) -> None:
    assert tokens(text) == expected.split()


@given(st.text())
def test_tokens_agree_on_composed_and_decomposed_text(text: str) -> None:
    assert tokens(unicodedata.normalize("NFC", text)) == tokens(unicodedata.normalize("NFD", text))


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_both_ways_to_split_agree_on_ascii(text: str) -> None:
    """A non-ASCII word elsewhere sends the whole text the slow way; its other words must not change."""
    assert tokens(text + " \u00e9") == [*tokens(text), "\u00e9"]


@given(word_sets, word_sets)
def test_near_duplicate_compares_the_ratio_exactly(a: frozenset[str], b: frozenset[str]) -> None:
    union = a | b
    expected = bool(union) and Fraction(len(a & b), len(union)) >= Fraction("0.45")
    assert near_duplicate(a, b) == near_duplicate(b, a) == expected
    assert jaccard(a, b) == (len(a & b), len(union))


def test_hashing_vector_is_the_same_on_every_machine() -> None:
    found = hashing_vector("Parse the parser: parse Ünïcode, parse parse")
    assert found.indices == (3537208424, 1011183078, 800244595, 248075434)
    assert found.values == (3, 1, 1, 1)
    assert found.square == 12


@given(texts, texts)
def test_cosine_is_symmetric_and_that_of_the_vectors(a: str, b: str) -> None:
    u, v = hashing_vector(a), hashing_vector(b)
    cosine = cosine_to(u)(v)
    assert cosine == cosine_to(v)(u)
    assert 0 <= cosine <= UNIT
    if u.square and v.square:
        other = dict(zip(v.indices, v.values, strict=True))
        dot = sum(x * other.get(i, 0) for i, x in zip(u.indices, u.values, strict=True))
        assert cosine / UNIT == pytest.approx(dot / math.sqrt(u.square * v.square), abs=1e-9)
    else:
        assert cosine == 0


@given(st.lists(st.integers(-32_767, 32_767), min_size=1, max_size=20))
def test_cosine_of_a_vector_with_itself_and_its_opposite(values: list[int]) -> None:
    u = vector(range(len(values)), values)
    expected = UNIT if any(values) else 0
    assert cosine_to(u)(u) == expected
    assert cosine_to(u)(vector(range(len(values)), [-x for x in values])) == -expected


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_idf(n: int, df: int) -> None:
    assert similarity.idf(n, df) / UNIT == pytest.approx(max(math.log2(n / df), 0), abs=1e-9)


@given(word_sets, word_sets, word_sets, st.lists(word_sets, max_size=5), st.integers(0, UNIT), st.integers(0, UNIT))
def test_score_is_the_equation(
    query: frozenset[str],
    text: frozenset[str],
    scope: frozenset[str],
    others: list[frozenset[str]],
    prior: int,
    cosine: int,
) -> None:
    """eq:impl-retrieval, written once more in floating point."""
    bank = [text | scope, *others]

    def information(word: str) -> float:
        return math.log2(max(len(bank) / sum(word in either for either in bank), 1))

    smaller = min(len(query), len(text | scope))
    expected = (
        (len(query & (text | scope)) / smaller if smaller else 0)
        + sum(information(w) for w in query & text)
        + 0.45 * sum(information(w) for w in query & scope)
        + 0.5 * prior / UNIT
        + cosine / UNIT
    )
    counts = Counter(word for either in bank for word in either)
    score = similarity.score(query, text, scope, len(bank), counts, prior, cosine)
    assert score.total / UNIT == pytest.approx(expected, abs=1e-6)
