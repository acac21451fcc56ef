"""A bound on a measured holdout number, ready to be shown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec.structs import replace

from valve_plugin.records import Record
from valve_plugin.theory import certificates
from valve_plugin.theory.bennett import smallest_n
from valve_plugin.theory.intervals import sign_test

if TYPE_CHECKING:
    from valve_plugin.report.certify import Move


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
    by_gain: float | None = None
    """Of a drawdown: a lower ceiling, which the gain's floor implies where the only other bank read is version 0's."""


def of_gain(measured: float, tasks: int, delta: float, variance: float) -> Bound:
    """Return the floor under a measured holdout gain."""
    return _bound(certificates.gain(measured, tasks, delta, variance), measured, tasks, delta, variance, None)


def of_drawdown(measured: float, tasks: int, delta: float, variance: float, banks: int) -> Bound:
    """Return the ceiling over a measured holdout drawdown."""
    found = certificates.drawdown(measured, tasks, delta, variance, banks)
    return _bound(found, measured, tasks, delta, variance, banks)


def implied(gain: Bound, drawdown: Bound) -> Bound:
    """Return the drawdown from the only other bank read, the one that the gain is over: what the gain's floor implies.

    It is then max(0, -gain), so the gain's statement covers both, at the same delta and under the same assumptions.
    Where the drawdown's own ceiling is as low, that stands alone.
    """
    most = max(0.0, -gain.value)
    return drawdown if gain.vacuous or most >= min(drawdown.value, 1.0) else replace(drawdown, by_gain=most)


def guarantee(bound: Bound, where: str = "") -> str:
    """Return what is certified: `at least +12.4 points`, `not worse than -19.3 points`, `at most 58.2 points`.

    Args:
        where: said of the number: ` on tasks like these, with probability 0.95`.
    """
    if bound.by_gain is not None:
        own = "says nothing" if bound.vacuous else f"is {100 * bound.value:.1f}"
        said = f"at most {100 * bound.by_gain:.1f} points{where}"
        return f"{said}, by the gain's guarantee (the drawdown's own bound {own})"
    if bound.vacuous:
        return "nothing, the tasks are too few"
    if bound.banks is not None:
        return f"at most {100 * bound.value:.1f} points{where}"
    return f"{'not worse than' if bound.value < 0 else 'at least'} {100 * bound.value:+.1f} points{where}"


def sizes(found: Bound | Move) -> str:
    """Return, for a gain that certifies nothing, how many tasks would: all else as it was measured.

    Source: app:sizing-proof, with M = 2 for a statement at all and M = 1 for no loss (rem:range).
    """
    measured, log_term = _asked(found)
    if measured <= 0:
        return "No number of tasks certifies a gain that was not measured."
    no_loss = smallest_n(measured, log_term, found.variance)
    speaks = min(no_loss, smallest_n(1 + measured, log_term, found.variance, 2.0))
    whose = "The holdout's gain" if isinstance(found, Bound) else f"Version {found.version}'s accept"
    return (
        f"{whose} ({100 * measured:+.1f} points) would need about {speaks:,} tasks for any statement, and about "
        f"{no_loss:,} to exclude a loss."
    )


def doubt(found: Bound, better: int, worse: int) -> str:
    """Return how to take that a measured gain is not certified: why, what a plain test says, and what would do.

    Args:
        found: of a gain above 0.
        better: holdout tasks on which it was better; `worse`: on which it was worse.
    """
    measured, log_term = _asked(found)
    enough = smallest_n(measured, log_term, found.variance)
    few = f"its bound is conservative on few ({found.tasks}), and this gain would need about {enough:,}"
    test = f"The plain sign test, which is no certificate: two-sided p = {sign_test(better, worse):.2g}"
    return f"{few} holdout tasks. {test}."


def _asked(found: Bound | Move) -> tuple[float, float]:
    """The measured gain and the log term that its certificate pays."""
    if isinstance(found, Bound):
        return found.measured, math.log(1 / found.delta)
    return found.panel_gain, found.log_term


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
