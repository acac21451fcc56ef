"""What became of an item in the other run, where both runs' models wrote it word by word. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from valve_plugin.report.run import Proposed
from valve_plugin.report.words import counted


class Twin(NamedTuple):
    """The same text in the other run."""

    place: int
    """In that run's list of items."""
    said: str
    """`taken, in the prompt of 13 stream tasks and live runs`."""


def elsewhere(items: Sequence[Proposed], others: Sequence[Proposed], *, live: bool = True) -> dict[int, list[Twin]]:
    """Return, by place, the other run's items of the same text.

    Args:
        live: whether some of the other run's uses may be of live runs.
    """
    same: dict[tuple[str, ...], list[Twin]] = defaultdict(list)
    for place, other in enumerate(others):
        if other.text or other.markdown:
            same[other.kind, other.text, other.markdown].append(Twin(place, _said(other, live=live)))
    found = {place: same.get((item.kind, item.text, item.markdown), []) for place, item in enumerate(items)}
    return {place: twins for place, twins in found.items() if twins}


def _said(item: Proposed, *, live: bool) -> str:
    if item.version is None or not item.uses:
        return item.state
    return f"{item.state}, in the prompt of {prompts(item.uses, live=live)}"


def prompts(uses: int, *, live: bool) -> str:
    """Return whose prompts an item was put into: `11 stream tasks`, or with live runs among them."""
    if live:
        return counted(uses, "stream task or live run", "stream tasks and live runs")
    return counted(uses, "stream task")
