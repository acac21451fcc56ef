"""What a rollout has paid, noted by its process after each answered call: whoever ends it knows what it had cost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import msgspec

from valve_plugin.codec import canonical, decode
from valve_plugin.errors import RecordError
from valve_plugin.fields import Count, Money

FILE = "paid.json"

Note = Callable[[float], None]
"""Told the USD of one answered call, as mini counts it."""


class Paid(msgspec.Struct, frozen=True):
    """What the calls that were answered came to; one under way when a rollout is ended is not known."""

    calls: Count = 0
    usd: Money = 0.0


class CutError(CancelledError):
    """A rollout was ended before it was done."""

    def __init__(self, paid: Paid) -> None:
        """Take what it had paid."""
        super().__init__(f"ended after {paid.calls} model calls")
        self.paid = paid


def of(error: CancelledError) -> Paid:
    """Return what a rollout that was ended had paid; nothing, where it does not say."""
    return error.paid if isinstance(error, CutError) else Paid()


def usd(answer: Any) -> float:
    """Return what a message of mini's says that its call cost."""
    cost = answer.get("extra", {}).get("cost") if isinstance(answer, dict) else None
    return float(cost) if isinstance(cost, int | float) else 0.0


def noting(folder: Path) -> Note:
    """Return what keeps the sum of all calls in a folder."""
    total = Paid()

    def note(cost: float) -> None:
        nonlocal total
        total = Paid(total.calls + 1, total.usd + cost)
        part = folder / f"{FILE}.part"
        part.write_bytes(canonical(total))
        part.replace(folder / FILE)

    return note


def read(folder: Path) -> Paid:
    """Return the sum in a folder; nothing, where no call was answered."""
    try:
        return decode((folder / FILE).read_bytes(), Paid, where=FILE)
    except (OSError, RecordError):
        return Paid()
