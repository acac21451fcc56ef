"""What extraction calls cost, for whoever runs the step: the step's answer, a proposal, holds no cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_CALLS: ContextVar[list[dict[str, Any]] | None] = ContextVar("valve_extract_calls", default=None)


@contextmanager
def counted() -> Iterator[list[dict[str, Any]]]:
    """Collect the calls made while the block runs: model, cost_usd (left out: unknown), seconds."""
    calls: list[dict[str, Any]] = []
    token = _CALLS.set(calls)
    try:
        yield calls
    finally:
        _CALLS.reset(token)


def note(model: str, cost_usd: float | None, seconds: float) -> None:
    """Note a call that was answered; a cost of None is unknown."""
    calls = _CALLS.get()
    if calls is not None:
        known = {} if cost_usd is None else {"cost_usd": cost_usd}
        calls.append({"source": "extract", "model": model, **known, "seconds": round(seconds, 3)})
