"""Items in the order to read: what is in the bank first, and tries of one text that were all rejected as one. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from valve_plugin.report.run import Proposed


class Shelf(NamedTuple):
    """Items that are shown together."""

    told: str
    """What they are; empty: those in the bank."""
    places: list[int]
    """Where they are in the list of items."""


def shelves(items: Sequence[Proposed]) -> list[Shelf]:
    """Return the items of the bank, then the others, each the newest first; what another try stands for is left out."""
    gone = gathered(items)
    order = [place for place in newest(items) if place not in gone]
    rest = [place for place in order if items[place].version is None]
    states = Counter(items[place].state for place in rest)
    told = f"Not in the bank: {', '.join(f'{n} {state}' for state, n in states.items())}"
    found = [Shelf("", [place for place in order if items[place].version is not None]), Shelf(told, rest)]
    return [shelf for shelf in found if shelf.places]


def newest(items: Sequence[Proposed]) -> list[int]:
    """Return the places of all items in the order to read: those in the bank first, and of each the newest first."""
    return sorted(range(len(items)), key=lambda n: (items[n].version is None, -items[n].line, n))


def gathered(items: Sequence[Proposed]) -> dict[int, int]:
    """Return, by place, the last try of each item that was rejected before and is proposed again word by word."""
    same: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, item in enumerate(items):
        if item.state == "rejected" and (item.text or item.markdown):
            same[item.kind, item.name, item.text, item.markdown].append(place)
    return {place: places[-1] for places in same.values() for place in places[:-1]}


def whole(items: Sequence[Proposed]) -> list[Proposed]:
    """Return the items, each last try with the attempts behind those it stands for."""
    found = list(items)
    for place, last in sorted(gathered(items).items(), reverse=True):
        found[last] = replace(found[last], sources=(*found[last].sources, *items[place].sources))
    return found
