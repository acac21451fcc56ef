"""A person's own runs, apart from what the loop ran: how many, how they were graded, and the latest of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from valve_plugin.extract.digest import readable
from valve_plugin.records import Attempt, AttemptOutcome, Record

LATEST = 20
"""Shown of them."""
_TASK, _REASON = 160, 300


class LiveAttempt(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the latest."""

    attempt: str
    """Its id."""
    recorded_at: float
    """Seconds since the epoch; 0 when unknown."""
    task: str
    """How the task begins."""
    outcome: AttemptOutcome
    reason: str
    items: int
    """How many were injected."""


class Live(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `mini --plugin valve` recorded on this machine."""

    attempts: int
    outcomes: dict[str, int]
    """Outcome -> how many, of those there are."""
    latest: tuple[LiveAttempt, ...]
    """The latest first."""


def live(attempts: Iterable[Attempt]) -> Live:
    """Return what is known of the live ones.

    Args:
        attempts: all that this machine keeps, oldest first.
    """
    own = [a for a in attempts if a.source == "live"]
    return Live(
        attempts=len(own),
        outcomes=dict(sorted(Counter(a.outcome for a in own).items())),
        latest=tuple(
            LiveAttempt(
                attempt=a.id,
                recorded_at=a.recorded_at,
                task=readable(" ".join(a.task_text.split()) or a.task_id, _TASK),
                outcome=a.outcome,
                reason=readable(a.reason, _REASON),
                items=len(a.context_items),
            )
            for a in own[: -LATEST - 1 : -1]
        ),
    )
