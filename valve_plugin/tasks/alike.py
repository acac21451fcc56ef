"""Bugs that fail the same tests as another: one fault in three copies of a function is hardly three tasks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from valve_plugin.tasks.load import Row


def enough(rows: Sequence[Row], wanted: int) -> bool:
    """True when so many rows each fail tests of their own, or twice as many are there: looking has an end."""
    return len(set(map(tests_of, rows))) >= wanted or len(rows) >= 2 * wanted


def chosen(rows: Sequence[Row], wanted: int) -> list[Row]:
    """Return at most `wanted` of the rows, in their order.

    No tests are taken twice before all others were once, nor a third time before all that can be were twice.
    """
    taken: Counter[frozenset[str]] = Counter()
    ranks = []
    for place, row in enumerate(rows):
        ranks.append((taken[tests_of(row)], place))
        taken[tests_of(row)] += 1
    return [rows[place] for place in sorted(place for _, place in sorted(ranks)[:wanted])]


def tests_of(row: Row) -> frozenset[str]:
    """Return what makes two bugs alike: the tests that fail."""
    return frozenset(row.fail_to_pass)
