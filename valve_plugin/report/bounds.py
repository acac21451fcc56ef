"""A bound on a measured holdout number, ready to be shown."""

from __future__ import annotations

from valve_plugin.records import Record
from valve_plugin.theory import certificates


class Bound(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A certified gain (a floor) or drawdown (a ceiling)."""

    measured: float
    value: float
    radius: float
    range: float
    """M."""
    tasks: int
    delta: float
    variance: float
    banks: int | None = None
    vacuous: bool


def of_gain(measured: float, tasks: int, delta: float, variance: float) -> Bound:
    """Return the floor under a measured holdout gain."""
    return _bound(certificates.gain(measured, tasks, delta, variance), measured, tasks, delta, variance, None)


def of_drawdown(measured: float, tasks: int, delta: float, variance: float, banks: int) -> Bound:
    """Return the ceiling over a measured holdout drawdown."""
    found = certificates.drawdown(measured, tasks, delta, variance, banks)
    return _bound(found, measured, tasks, delta, variance, banks)


def _bound(
    bound: certificates.Bound, measured: float, tasks: int, delta: float, variance: float, banks: int | None
) -> Bound:
    return Bound(
        measured=measured,
        value=bound.value,
        radius=bound.radius,
        range=bound.upper,
        tasks=tasks,
        delta=delta,
        variance=variance,
        banks=banks,
        vacuous=bound.vacuous,
    )
