"""Strategies for banks whose items share words with queries often enough for rankings to mean something."""

from __future__ import annotations

from hypothesis import strategies as st

from valve_plugin.records import Bank, Item, Kind
from valve_plugin.words import hiding_places

WORDS = [
    "parser",
    "delta",
    "ignoreOrder",
    "get_item",
    "the",
    "of",
    "Ünïcode",
    "日本",
    "utf8",
    "A",
    "3",
    "--",
    "{{ x }}",
]

sentences = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
some_sentence = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join)
shown = st.characters(exclude_categories=["C", "M", "Z"])
bodies = st.one_of(some_sentence, st.text(shown, min_size=1, max_size=60).filter(lambda t: not hiding_places(t)))
names = st.from_regex(r"[a-d][a-d\-]{0,2}", fullmatch=True)


@st.composite
def items(draw: st.DrawFn, kind: Kind) -> Item:
    attempts = draw(st.integers(0, 3))
    return Item(
        kind=kind,
        name=draw(names),
        text=draw(some_sentence),
        markdown=draw(bodies),
        scope_hint=draw(sentences) if kind == "skill" else "",
        support=draw(st.integers(1, 4)),
        created_step=draw(st.integers(0, 4)),
        passes=draw(st.integers(0, attempts)),
        attempts=attempts,
    )


def shelf(kind: Kind, max_size: int = 8) -> st.SearchStrategy[tuple[Item, ...]]:
    """Items of one kind with distinct names."""
    return st.lists(items(kind), max_size=max_size, unique_by=lambda i: i.name).map(tuple)


def banks(max_size: int = 8) -> st.SearchStrategy[Bank]:
    """Banks of up to `max_size` items of each kind."""
    return st.builds(
        Bank, repo=st.just("a/b"), principles=shelf("principle", max_size), skills=shelf("skill", max_size)
    )
