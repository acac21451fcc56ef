"""Bugs that fail the same tests as another: one fault in three copies of a function is hardly three tasks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from valve_plugin.tasks.load import Row


def enough(rows: Sequence[Row], wanted: int) -> bool:
    """True when so many rows each fail tests of their own, or twice as many are there: looking has an end."""
    return len(set(map(tests_of, rows))) >= wanted or len(rows) >= 2 * wanted


def chosen(
    rows: Sequence[Row], wanted: int, held: Collection[str] = frozenset(), *, distinct: bool = True
) -> list[Row]:
    """Return at most `wanted` of the rows, in their order: those a set already holds, then others.

    No tests are taken twice before all others were once, nor a third time before all that can be were twice.

    Args:
        held: ids of what the set holds.
        distinct: False: the first ones, whichever tests they fail.
    """
    taken: Counter[frozenset[str]] = Counter()
    ranks = []
    for place, row in enumerate(rows):
        ranks.append((row.instance_id not in held, taken[tests_of(row)] if distinct else 0, place))
        taken[tests_of(row)] += 1
    return [rows[place] for place in sorted(place for *_, place in sorted(ranks)[:wanted])]


def tests_of(row: Row) -> frozenset[str]:
    """Return what makes two bugs alike: the tests that fail."""
    return frozenset(row.fail_to_pass)
