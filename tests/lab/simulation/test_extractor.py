"""The extractor's replies: all kinds occur, by draw, and its lessons are usable items."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.lab.simulation.rows import row
from valve_plugin.errors import ModelOutputError
from valve_plugin.extract.duplicates import sort_duplicates
from valve_plugin.extract.parse import Draft, parse
from valve_plugin.extract.screen import Source, screen
from valve_plugin.lab.simulation import parameters as p
from valve_plugin.lab.simulation.extractor import answer
from valve_plugin.lab.simulation.parameters import Draw
from valve_plugin.records import Bank, Item
from valve_plugin.redact import Redactor
from valve_plugin.retrieval import block

LESSONS = p.lessons()
QUALITY = {x.item("total", "shop/cart.py").name: x.quality for x in LESSONS}


def _answers(count: int, known: str = "") -> list[str]:
    task = row("func_pm_ctrl_shuffle")
    prompt = f'{{"markdown": "the body"}}\n{known}'  # every prompt shows the fields of an item
    return [answer(task, prompt, Draw(seed, task.instance_id, "extractor")) for seed in range(count)]


def test_all_kinds_of_reply_occur_and_good_ones_parse() -> None:
    kinds: Counter[str] = Counter()
    for reply in _answers(300):
        try:
            found = parse(reply)
        except ModelOutputError:
            kinds["malformed"] += 1
            continue
        drafts = (*found.principles, *found.skills)
        assert 1 <= len(drafts) <= 3
        kinds.update({QUALITY[d.name] for d in drafts})
    assert set(kinds) == {"malformed", "good", "useless", "harmful"}


def test_known_lessons_are_only_repeated_on_purpose() -> None:
    known = [x.item("total", "shop/cart.py") for x in LESSONS if x.quality == "good"]
    bank = Bank(repo="acme/shop", principles=_of("principle", known), skills=_of("skill", known))
    prompt = "\n".join(f"- {x.name}" for x in known)
    fresh, repeated, suppressed = 0, 0, 0
    for reply in _answers(300, prompt):
        try:
            found = parse(reply)
        except ModelOutputError:
            continue
        items = [Item(kind="principle", name=d.name, text=d.text, markdown=d.markdown) for d in found.principles]
        for d in found.skills:
            items.append(Item(kind="skill", name=d.name, text=d.text, markdown=d.markdown, scope_hint=d.scope_hint))
        new, merges, near = sort_duplicates(items, bank)
        fresh, repeated, suppressed = fresh + len(new), repeated + len(merges), suppressed + len(near)
    assert fresh > 100
    assert repeated > 3
    assert suppressed > 3


def test_no_two_lessons_are_near_duplicates() -> None:
    items = [x.item("total", "shop/cart.py") for x in LESSONS]
    new, merges, suppressed = sort_duplicates(items, Bank(repo="acme/shop"))
    assert (new, merges, suppressed) == (tuple(items), (), ())


@pytest.mark.parametrize("function", ["total", "__init__", "_prep_dict", "DeepHash", "é"])
def test_lessons_come_through_the_screen_as_they_are(function: str) -> None:
    items = [x.item(function, "shop/cart.py") for x in LESSONS]
    drafts = [(x.kind, Draft(name=x.name, text=x.text, markdown=x.markdown, scope_hint=x.scope_hint)) for x in items]
    screened = screen(drafts, Source(("t",), 1, 3), Redactor({}))
    assert screened.withheld == ()
    assert [(x.name, x.markdown) for x in screened.items] == [(x.name, x.markdown) for x in items]
    block_text = block.render(screened.items)
    assert [x.count_in(block_text) for x in LESSONS] == [1] * len(LESSONS)


def _of(kind: str, items: list[Item]) -> tuple[Item, ...]:
    return tuple(x for x in items if x.kind == kind)
