"""What became of an item in the other run, where both runs' models wrote it word by word. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from valve_plugin.report.run import Proposed
from valve_plugin.report.shelves import gathered
from valve_plugin.report.words import counted


class Twin(NamedTuple):
    """The same text in the other run."""

    place: int
    """In that run's list of items."""
    said: str
    """`taken, in the prompt of 13 stream tasks and live runs`."""


def elsewhere(items: Sequence[Proposed], others: Sequence[Proposed]) -> dict[int, list[Twin]]:
    """Return, by place, the other run's items of the same text that its page shows."""
    same: dict[tuple[str, ...], list[Twin]] = defaultdict(list)
    hidden = gathered(others)
    for place, other in enumerate(others):
        if place not in hidden and (other.text or other.markdown):
            same[other.kind, other.text, other.markdown].append(Twin(place, _said(other)))
    found = {place: same.get((item.kind, item.text, item.markdown), []) for place, item in enumerate(items)}
    return {place: twins for place, twins in found.items() if twins}


def _said(item: Proposed) -> str:
    if item.version is None or not item.uses:
        return item.state
    uses = counted(item.uses, "stream task or live run", "stream tasks and live runs")
    return f"{item.state}, in the prompt of {uses}"
