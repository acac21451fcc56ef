"""The fused ranking: the fitting note first, nothing for an issue that no note fits, five of a kind at most."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.retrieval.banks import banks, sentences
from valve_plugin.config import Settings, as_judged
from valve_plugin.records import Bank, Item, Panel
from valve_plugin.retrieval.contexts import recorded_name, retrieve
from valve_plugin.retrieval.embedding import as_recorded
from valve_plugin.retrieval.ranking import MOST, keywords, stem

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "relevance.py"
STEMMED = Settings(retrieval="stemmed", embedding="hashing")
FUSED = Settings(retrieval="fused", embedding="hashing")
NOTE = Item(
    kind="skill",
    name="nested-paths",
    text="Nested path functions get_in and del_in never change their argument",
    markdown="Each level is copied on the way down and put back.",
    scope_hint="funcy/colls.py",
)


@pytest.fixture(scope="module")
def benchmark() -> Any:
    spec = importlib.util.spec_from_file_location("relevance", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_only_what_fits_is_injected() -> None:
    bank = Bank(repo="a/b", skills=(NOTE,))
    fits = retrieve(STEMMED, bank, "task", "del_in changes its argument\n\nWith a nested path del_in removes too much.")
    assert fits.items == (NOTE.key,)
    assert fits.embedding == "stemmed"
    assert NOTE.markdown in fits.text
    for issue in ("Documentation: dead link\n\nPlease update the page.", "", "the of and", "\ud800", "!!! 123"):
        assert retrieve(STEMMED, bank, "nested-paths del_in", issue).text == "", issue


def test_what_the_repositorys_name_says_is_no_evidence() -> None:
    note = replace(NOTE, text="Group classes of sql.py derive from TokenList", scope_hint="sqlparse/sql.py, parse")
    issue = "sql: assert 1 == 2\n\nimport sqlparse\nfrom sqlparse import sql\nsql.parse(sql)"
    assert retrieve(STEMMED, Bank(repo="o/other", skills=(note,)), "t", issue).items == (note.key,)
    assert retrieve(STEMMED, Bank(repo="o/sqlparse", skills=(note,)), "t", issue).items == ()


def test_words_that_say_nothing_do_not_count() -> None:
    assert keywords("Please find the cause in the source and fix it. All other behaviour must stay as it is.") == []
    assert keywords("## Steps to reproduce\n**Expected behavior**") == []
    assert set(keywords("del_in(a, 3) in parseHTTP")) == {"del", "delin", "parse", "http", "parsehttp"}


@pytest.mark.parametrize("issue", [
    "The discount is wrong", "price is a float", "The total is off by one cent when there is a discount",
    "discounts are wrong", "Discounted prices",
])  # fmt: skip
def test_a_note_is_found_in_another_form_of_its_words(issue: str) -> None:
    note = replace(NOTE, text="Prices, totals, discounts", markdown="Money is in integer cents; never floats.")
    bank = Bank(repo="o/cart", skills=(replace(note, scope_hint=""),))
    assert retrieve(STEMMED, bank, "t", issue).items == (note.key,)
    exact = issue in ("discounts are wrong", "Discounted prices")
    assert bool(retrieve(FUSED, bank, "t", issue).items) == exact, "what was judged by exact words stays so"


@pytest.mark.parametrize(
    "word", ["match", "price", "copy", "stop", "size", "float", "query", "class", "raise", "embed"]
)
def test_the_forms_of_a_word_have_one_stem(word: str) -> None:
    base, plural = (word[:-1], "ies") if word.endswith("y") else (word, "es" if word[-2:] in ("ch", "ss") else "s")
    assert stem(base + plural) == stem(word)
    assert {stem(w) for w in ("status", "analysis", "need", "string", "utf8", "être")} == {
        "status", "analysis", "need", "string", "utf8", "être",
    }  # fmt: skip


@given(banks(), sentences, st.integers(0, 7), st.integers(0, 7))
def test_no_more_than_the_limits_and_five_of_a_kind(bank: Bank, issue: str, p: int, s: int) -> None:
    kinds = [kind for kind, _ in retrieve(replace(STEMMED, top_principles=p, top_skills=s), bank, "task", issue).items]
    assert kinds.count("principle") <= min(MOST, p)
    assert kinds.count("skill") <= min(MOST, s)
    assert kinds == sorted(kinds)


def test_a_bank_goes_on_under_the_ranking_that_it_was_judged_under() -> None:
    panel = Panel(tasks=(), rollouts=3, rho="0.02", pairing="paper", embedding="hashing", seed=1)
    assert as_judged(Settings(), panel).retrieval == "paper"
    assert as_judged(Settings(), replace(panel, embedding="fused")).retrieval == "fused"
    assert as_judged(Settings(retrieval="fused"), panel).retrieval == "fused"
    assert recorded_name(Settings(embedding="hashing")) == "stemmed"
    for settings in (STEMMED, FUSED, Settings(retrieval="paper", embedding="hashing")):
        assert as_recorded(recorded_name(settings), Settings(embedding="hashing")) == settings


def test_relevance_does_not_fall(benchmark: Any) -> None:
    """The figures of `docs/explanation/retrieval.md`, with a little room."""
    cases = benchmark.cases()
    assert len(cases) == 75
    found, paper = benchmark.measure(cases, benchmark.fused()), benchmark.measure(cases, benchmark.paper)
    exact = benchmark.measure(cases, benchmark.fused(ranking="fused"))
    assert found.mrr >= exact.mrr >= 0.94
    assert found.recall >= exact.recall >= 0.9
    assert found.precision >= exact.precision >= 0.64
    assert paper.mrr < found.mrr
    assert paper.precision < 0.15
    assert paper.size > 5 * found.size
