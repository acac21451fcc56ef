"""Items in the order to read: what is in the bank first. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from valve_plugin.report.run import Proposed


class Shelf(NamedTuple):
    """Items that are shown together."""

    told: str
    """What they are; empty: those in the bank."""
    places: list[int]
    """Where they are in the list of items."""


def shelves(items: Sequence[Proposed]) -> list[Shelf]:
    """Return the items of the bank, then the others, each the newest first."""
    order = newest(items)
    rest = [place for place in order if items[place].version is None]
    states = Counter(items[place].state for place in rest)
    told = f"Not in the bank: {', '.join(f'{n} {state}' for state, n in states.items())}"
    found = [Shelf("", [place for place in order if items[place].version is not None]), Shelf(told, rest)]
    return [shelf for shelf in found if shelf.places]


def newest(items: Sequence[Proposed]) -> list[int]:
    """Return the places of all items in the order to read: those in the bank first, and of each the newest first."""
    return sorted(range(len(items)), key=lambda n: (items[n].version is None, -items[n].line, n))
