"""What is not injected: items that hide what they say, and what does not fit."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.retrieval.banks import items as some_items
from valve_plugin.config import Settings
from valve_plugin.records import Bank, Item, Kind, Proposal
from valve_plugin.retrieval import contexts
from valve_plugin.retrieval.block import fitting, render

PAPER = Settings(retrieval="paper")


def item(name: str, body: str, kind: Kind = "principle") -> Item:
    return Item(kind=kind, name=name, text=f"about {name}", markdown=body, passes=1, attempts=3)


def test_items_that_hide_something_are_not_injected() -> None:
    hiding = [
        item("a", "pay \u202edaer"),
        item("b", "run\u200b it"),
        item("g", "x <!-- y -->"),
        item("h", "a\ufff0b"),
        replace(item("c", "x"), text="t\U000e0041"),
    ]
    bank = Bank(repo="o/r", principles=(*hiding, item("d", "fine")))
    assert contexts.retrieve(PAPER, bank, "", "about a b c d g h").items == (("principle", "d"),)
    proposal = Proposal(task_id="t", items=(item("e", "\x1b[8m"),))
    enlarged = replace(bank, principles=(*bank.principles, *proposal.items))
    assert contexts.candidate(PAPER, bank, enlarged, proposal, "", "about e").items == (("principle", "d"),)


@given(
    st.lists(some_items("principle") | some_items("skill"), max_size=8, unique_by=lambda i: i.key), st.integers(1, 3000)
)
def test_what_fits_is_whole_and_the_lowest_ranks_go_first(chosen: list[Item], most: int) -> None:
    chosen.sort(key=lambda i: i.kind)
    kept = fitting(Settings(context_bytes=most), chosen)
    assert len(render(kept).encode()) <= most
    assert kept == [i for i in chosen if i in kept]
    for kind in ("principle", "skill"):
        of_kind = [i for i in chosen if i.kind == kind]
        assert [i for i in kept if i.kind == kind] == of_kind[: sum(i.kind == kind for i in kept)]
    if len(render(chosen).encode()) <= most:
        assert kept == chosen


def test_proposed_items_are_left_out_last() -> None:
    chosen = [item(name, "x" * 1000) for name in "abcd"]
    kept = fitting(Settings(context_bytes=2500), chosen, {("principle", "d")})
    assert [i.name for i in kept] == ["a", "d"]


def test_what_is_left_out_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    bank = Bank(repo="o/r", principles=tuple(item(f"n{n}", f"{n} " * 1500) for n in range(10)))
    with caplog.at_level(logging.WARNING):
        small = [contexts.retrieve(replace(PAPER, context_bytes=8000), bank, "", "about") for _ in range(2)]
    assert len(small[0].text.encode()) <= 8000
    assert small[0].items + small[0].left_out == contexts.retrieve(PAPER, bank, "", "about").items
    (record,) = caplog.records
    assert [name for _, name in small[0].left_out if f"principle {name}" not in record.getMessage()] == []
