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
from valve_plugin.retrieval.ranking import MOST, keywords

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "relevance.py"
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
    fits = retrieve(FUSED, bank, "task", "del_in changes its argument\n\nWith a nested path del_in removes too much.")
    assert fits.items == (NOTE.key,)
    assert fits.embedding == "fused"
    assert NOTE.markdown in fits.text
    for issue in ("Documentation: dead link\n\nPlease update the page.", "", "the of and", "\ud800", "!!! 123"):
        assert retrieve(FUSED, bank, "nested-paths del_in", issue).text == "", issue


def test_what_the_repositorys_name_says_is_no_evidence() -> None:
    note = replace(NOTE, text="Group classes of sql.py derive from TokenList", scope_hint="sqlparse/sql.py, parse")
    issue = "sql: assert 1 == 2\n\nimport sqlparse\nfrom sqlparse import sql\nsql.parse(sql)"
    assert retrieve(FUSED, Bank(repo="o/other", skills=(note,)), "t", issue).items == (note.key,)
    assert retrieve(FUSED, Bank(repo="o/sqlparse", skills=(note,)), "t", issue).items == ()


def test_words_that_say_nothing_do_not_count() -> None:
    assert keywords("Please find the cause in the source and fix it. All other behaviour must stay as it is.") == []
    assert keywords("## Steps to reproduce\n**Expected behavior**") == []
    assert set(keywords("del_in(a, 3) in parseHTTP")) == {"del", "delin", "parse", "http", "parsehttp"}


@given(banks(), sentences, st.integers(0, 7), st.integers(0, 7))
def test_no_more_than_the_limits_and_five_of_a_kind(bank: Bank, issue: str, p: int, s: int) -> None:
    kinds = [kind for kind, _ in retrieve(replace(FUSED, top_principles=p, top_skills=s), bank, "task", issue).items]
    assert kinds.count("principle") <= min(MOST, p)
    assert kinds.count("skill") <= min(MOST, s)
    assert kinds == sorted(kinds)


def test_a_bank_goes_on_under_the_ranking_that_it_was_judged_under() -> None:
    panel = Panel(tasks=(), rollouts=3, rho="0.02", pairing="paper", embedding="hashing", seed=1)
    assert as_judged(Settings(), panel).retrieval == "paper"
    assert as_judged(Settings(), replace(panel, embedding="fused")).retrieval == "fused"
    assert as_judged(Settings(retrieval="fused"), panel).retrieval == "fused"
    for settings in (FUSED, Settings(retrieval="paper", embedding="hashing")):
        assert as_recorded(recorded_name(settings), Settings(embedding="hashing")) == settings


def test_relevance_does_not_fall(benchmark: Any) -> None:
    """The figures of `docs/explanation/retrieval.md`, with a little room."""
    cases = benchmark.cases()
    assert len(cases) == 75
    found, paper = benchmark.measure(cases, benchmark.fused()), benchmark.measure(cases, benchmark.paper)
    assert found.mrr >= 0.92
    assert found.recall >= 0.9
    assert found.precision >= 0.55
    assert paper.mrr < found.mrr
    assert paper.precision < 0.15
    assert paper.size > 5 * found.size
