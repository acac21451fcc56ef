"""What a run took, as numbers: by role, by phase, and by the clock."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from valve_plugin.records import Record
from valve_plugin.theory.budget import Role

APART: tuple[Role, ...] = ("measurement", "evaluation")
"""Roles that are no part of a run: they look at what it made."""


CUT_SHORT = "cut short"
"""The phase of rollouts that were ended before they were done: paid for, and no measure of what one takes."""


class Phase(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of what one role did."""

    name: str
    rollouts: int
    """Of the extractor: calls."""
    usd: float
    hours: float


class Spent(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one role of the run took, as recorded on this machine."""

    role: Role
    rollouts: int
    """Of the extractor: calls."""
    usd: float
    hours: float
    """Of rollouts, one after the other; several workers take less wall-clock time."""
    phases: tuple[Phase, ...] = ()
    """They add up to it."""


def ended(spent: Spent) -> Spent:
    """Return what a role took without the rollouts that were cut short."""
    cut = [p for p in spent.phases if p.name == CUT_SHORT]
    return replace(
        spent, rollouts=spent.rollouts - sum(p.rollouts for p in cut), usd=spent.usd - sum(p.usd for p in cut),
        phases=tuple(p for p in spent.phases if p not in cut),
    )  # fmt: skip


class Clock(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Wall-clock hours in which at least one rollout or call ran: time in which none did is left out."""

    hours: float
    """Of the run itself."""
    apart: float
    """Of evaluation and measurement."""
    steps: int
    """Evolution steps: mixed tasks learned from (raw tasks, where every task is)."""


class Total(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What several roles took together."""

    rollouts: int
    calls: int
    usd: float
    hours: float


def total(spent: Sequence[Spent]) -> Total:
    """Return the run's own sum: evaluation and measurement look at it and are no part of it."""
    return everything([s for s in spent if s.role not in APART])


def everything(own: Sequence[Spent]) -> Total:
    """Return the sum of all roles."""
    return Total(
        rollouts=sum(s.rollouts for s in own if s.role != "extractor"),
        calls=sum(s.rollouts for s in own if s.role == "extractor"),
        usd=sum(s.usd for s in own),
        hours=sum(s.hours for s in own),
    )
