"""Which proposed items are new, which merge, which are suppressed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.retrieval.banks import banks, shelf
from valve_plugin.extract.duplicates import nearest, nearest_before, sort_duplicates
from valve_plugin.records import Bank, Item, Kind, Merge, Suppressed
from valve_plugin.theory.similarity import near_duplicate, tokens


def item(kind: Kind, name: str, text: str, body: str = "body", scope: str = "", **facts: object) -> Item:
    return Item(kind=kind, name=name, text=text, markdown=body, scope_hint=scope, **facts)  # type: ignore[arg-type]


def words(first: int, last: int) -> str:
    return " ".join(f"w{n}" for n in range(first, last))


KNOWN = item("skill", "run-it", "Run the tests first", "1. Run *them*.\n2. Read.", "tests")
BANK = Bank(repo="a/b", skills=(KNOWN,))


def test_an_exact_duplicate_merges_whatever_its_case_spacing_and_name() -> None:
    again = item(
        "skill",
        "other-name",
        " run THE  tests first",
        "1. run *them*.\r\n\r\n2. read.",
        "Tests",
        source_tasks=("task-9",),
        passes=1,
        attempts=3,
    )
    merge = Merge(kind="skill", name="run-it", source_task="task-9", passes=1, attempts=3, item=again)
    assert sort_duplicates([again], BANK) == ((), (merge,), ())


def test_other_punctuation_is_not_an_exact_duplicate_but_a_near_one() -> None:
    near = item("skill", "new", "Run the tests first!", "1. Run *them*.\n2. Read.", "tests")
    assert sort_duplicates([near], BANK) == (
        (),
        (),
        (Suppressed(kind="skill", name="new", duplicate_of="run-it", similarity=1.0, item=near),),
    )


def test_the_threshold_is_exactly_0_45() -> None:
    bank = Bank(repo="a/b", principles=(item("principle", "p", words(0, 9), "left"),))
    at = item("principle", "at", words(0, 9), " ".join(f"right{n}" for n in range(10)))
    below = item("principle", "below", words(0, 9), " ".join(f"right{n}" for n in range(11)))
    assert sort_duplicates([at], bank)[2] == (
        Suppressed(kind="principle", name="at", duplicate_of="p", similarity=9 / 20, item=at),
    )
    assert sort_duplicates([below], bank)[0] == (below,)


def test_a_duplicate_within_the_proposal_is_suppressed_by_the_earlier_one() -> None:
    first = item("skill", "one", words(0, 10))
    second = item("skill", "two", words(0, 10))
    third = item("skill", "three", words(0, 9))
    new, merges, suppressed = sort_duplicates([first, second, third], BANK)
    assert (new, merges) == ((first,), ())
    assert [(s.name, s.duplicate_of) for s in suppressed] == [("two", "one"), ("three", "one")]


def test_the_most_similar_item_is_named_and_the_earliest_of_equals() -> None:
    bank = Bank(
        repo="a/b",
        principles=(
            item("principle", "far", words(0, 7), "x"),
            item("principle", "near", words(0, 10), "x"),
            item("principle", "as-near", words(0, 10), "X"),
        ),
    )
    (found,) = sort_duplicates([item("principle", "n", words(0, 11), "x")], bank)[2]
    assert found.duplicate_of == "near"


def test_a_taken_name_gets_the_next_free_number() -> None:
    others = [item("skill", "run-it", words(n, n + 9), f"b{n}") for n in (100, 200)]
    assert [i.name for i in sort_duplicates(others, BANK)[0]] == ["run-it-2", "run-it-3"]
    assert sort_duplicates(others, BANK)[0][0].markdown == "b100"
    long = item("skill", "n" * 120, words(0, 9))
    new, _, _ = sort_duplicates([item("skill", "n" * 120, words(20, 29))], Bank(repo="a/b", skills=(long,)))
    assert new[0].name == "n" * 118 + "-2"


@given(banks(), shelf("principle", 4), shelf("skill", 4))
def test_every_item_has_one_fate_and_what_is_new_is_new(
    bank: Bank, principles: tuple[Item, ...], skills: tuple[Item, ...]
) -> None:
    proposed = principles + skills
    new, merges, suppressed = sort_duplicates(proposed, bank)
    assert len(new) + len(merges) + len(suppressed) == len(proposed)
    together = bank.items + new
    assert len({i.key for i in together}) == len(together)
    for position, one in enumerate(together):
        for other in together[:position] if one in new else ():
            if one.kind == other.kind:
                assert not near_duplicate(_tokens(one), _tokens(other))
    for merge in merges:
        assert any((i.kind, i.name) == (merge.kind, merge.name) for i in bank.items)
    for gone in suppressed:
        assert any((i.kind, i.name) == (gone.kind, gone.duplicate_of) for i in together)


@given(banks(), shelf("skill", 4))
def test_accepted_items_merge_when_proposed_again(bank: Bank, skills: tuple[Item, ...]) -> None:
    new, _, _ = sort_duplicates(skills, bank)
    enlarged = Bank(repo="a/b", principles=bank.principles, skills=bank.skills + new)
    again, merges, suppressed = sort_duplicates(new, enlarged)
    assert (again, suppressed) == ((), ())
    assert len(merges) == len(new)


def _tokens(one: Item) -> frozenset[str]:
    return frozenset(tokens(f"{one.text}\n{one.markdown}\n{one.scope_hint}"))


SAID = st.lists(st.integers(1, 12), max_size=9).map(lambda found: " ".join(f"w{n}" for n in found) or "...")
SEVERAL = st.lists(st.tuples(st.sampled_from(["principle", "skill"]), SAID, SAID), max_size=12)


@given(SEVERAL)
def test_the_nearest_before_each_item_is_found_without_a_look_at_all(several: list[tuple[Kind, str, str]]) -> None:
    items = [item(kind, f"n{n}", text, body) for n, (kind, text, body) in enumerate(several)]
    plainly = [nearest(one, items[:n]) for n, one in enumerate(items)]
    assert list(nearest_before(items)) == plainly
