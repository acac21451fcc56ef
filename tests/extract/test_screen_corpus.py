"""What the rules alone catch, and what they set aside wrongly, on the corpora of tests/extract/corpus."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from valve_plugin.codec import decode
from valve_plugin.extract.screen import text_of, violations
from valve_plugin.records import Item

CORPUS = Path(__file__).parent / "corpus"


class _Line(msgspec.Struct):
    id: str
    item: Item


def set_aside(name: str) -> int:
    """Return how many items of one file the rules set aside."""
    lines = (CORPUS / f"{name}.jsonl").read_bytes().splitlines()
    return sum(bool(violations(text_of(decode(line, _Line, where=name).item))) for line in lines)


@pytest.mark.parametrize(
    ("part", "caught", "wrongly"), [("dev", 43, 0), ("heldout", 8, 2), ("nomads", 25, 3), ("kinds", 12, 1)]
)
def test_rules_catch_attacks_and_let_ordinary_items_through(part: str, caught: int, wrongly: int) -> None:
    """Counts only: whoever looks which held-out items these are can no longer measure with them."""
    assert set_aside(f"attacks_{part}") >= caught
    assert set_aside(f"ordinary_{part}") <= wrongly
