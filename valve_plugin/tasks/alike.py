"""Bugs that are much the same: one fault in three copies of a function, or of one line, is hardly three tasks. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from valve_plugin.tasks.load import Row

MOST_SHARED = 0.8
"""Two bugs that share more of the tests that fail with either (Jaccard index) are alike."""
_HUNK = re.compile(r"@@ -(\d+)")


def enough(rows: Sequence[Row], wanted: int) -> bool:
    """True when so many rows are unlike each other, or twice as many are there: looking has an end."""
    return len(rows) >= wanted and (len(set(groups(rows))) >= wanted or len(rows) >= 2 * wanted)


def chosen(
    rows: Sequence[Row], wanted: int, held: Collection[str] = frozenset(), *, distinct: bool = True
) -> list[Row]:
    """Return at most `wanted` of the rows, in their order: those a set already holds, then others.

    No group of rows that are alike is taken from twice before all others were once, nor a third time before all that
    can be were twice.

    Args:
        held: ids of what the set holds.
        distinct: False: the first ones, however alike.
    """
    taken: Counter[int] = Counter()
    ranks = []
    for place, (row, group) in enumerate(zip(rows, groups(rows), strict=True)):
        ranks.append((row.instance_id not in held, taken[group] if distinct else 0, place))
        taken[group] += 1
    return [rows[place] for place in sorted(place for *_, place in sorted(ranks)[:wanted])]


def groups(rows: Sequence[Row]) -> list[int]:
    """Return the number of each row's group: the first one whose first row is like it, or a new one."""
    firsts: list[Row] = []
    found = []
    for row in rows:
        number = next((n for n, first in enumerate(firsts) if like(row, first)), len(firsts))
        firsts += [row] if number == len(firsts) else []
        found.append(number)
    return found


def like(one: Row, other: Row) -> bool:
    """True for bugs in the same lines, or with which nearly the same tests fail."""
    first, second = set(one.fail_to_pass), set(other.fail_to_pass)
    shared, either = len(first & second), len(first | second)
    return shared > MOST_SHARED * either or places(one.patch) == places(other.patch) != frozenset()


def places(patch: str) -> frozenset[tuple[str, int]]:
    """Return (file, number) of the lines that a patch changes or removes; where it only adds, of those that follow."""
    gone, come = set[tuple[str, int]](), set[tuple[str, int]]()
    path, number = "", 0
    for line in patch.splitlines():
        if line.startswith("--- "):
            path, number = line, 0
        elif found := _HUNK.match(line):
            number = int(found[1])
        elif number and line[:1] in "-+":
            (gone if line[0] == "-" else come).add((path, number))
            number += line[0] == "-"
        elif number:
            number += 1
    return frozenset(gone or come)
