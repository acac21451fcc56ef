"""What the evaluations on record certify: gain and drawdown, and whether the holdout was still sealed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from valve_plugin.bank.evaluated import Point, gain, peak
from valve_plugin.bank.measured import Measured
from valve_plugin.report.assumptions import HOLDOUT, Assumption, assumption
from valve_plugin.report.bounds import Bound, implied, of_drawdown, of_gain
from valve_plugin.report.words import counted
from valve_plugin.theory import estimates


class Held(NamedTuple):
    """Both certificates, or why there are none."""

    gain: Bound | None
    drawdown: Bound | None
    unknown: str
    """Why they are None."""
    assumptions: list[Assumption]


def of_ledger(found: Measured, variance: float | None = None) -> Held:
    """Return what the final version's evaluation certifies against step 0.

    Only the last version evaluated is certified: any other, the peak above all, is chosen by this holdout.

    Args:
        found: a ledger, measured.
        variance: bound on the variance of a paired difference; None: the plug-in of these evaluations.
    Source: eq:gaincert, eq:ddcert.
    """
    points = found.points
    sealed = assumption("holdout sealed", *found.sealed, HOLDOUT)
    if reason := _missing(points) or _void(found):
        return Held(None, None, reason, [sealed])
    delta = float(found.epochs[-1].opened.delta) if found.epochs else 0.05
    seen = _variance(points)
    used = seen if variance is None else variance
    first, last = points[0].entry, points[-1].entry
    n = len(first.holdout)
    banks = len({p.entry.bank_hash for p in points})
    checkpoints = f"{counted(len(points), 'checkpoint')} of {counted(banks, 'different bank')}"
    what = f"versions 0 and {last.version}, {checkpoints}; {counted(n, 'task')} x {first.rollouts}"
    floor = of_gain(float(gain(first, last).low), n, delta, used)
    ceiling = of_drawdown(float(gain(last, peak(points).entry).low), n, delta, used, banks)
    one_pair = banks == 2 and first.bank_hash != last.bank_hash  # a gain and a drawdown over the same bank
    return Held(
        floor,
        implied(floor, ceiling) if one_pair else ceiling,
        "",
        [sealed, assumption("holdout read", True, what, HOLDOUT), _about(seen, variance)],
    )


def _missing(points: Sequence[Point]) -> str:
    if not points:
        return "no evaluation on a holdout is recorded"
    if points[0].entry.version != 0:
        return "step 0 was not evaluated; `valve eval` does"
    if points[-1].entry.version == 0:
        return "only version 0 was evaluated on the holdout"
    lost = sum(o.outcome == "errored" for p in points for o in p.entry.outcomes)
    return f"{counted(lost, 'holdout rollout')} errored; `valve eval` retries only those" if lost else ""


def _void(found: Measured) -> str:
    return "void, a version was chosen after the holdout was read" if found.sealed[0] is False else ""


def _variance(points: Sequence[Point]) -> float:
    r = points[0].entry.rollouts
    passes = [_passes(p) for p in points]
    return max(estimates.variance(passes, r), estimates.paired_variance(passes[0], passes[-1], r))


def _passes(point: Point) -> tuple[int, ...]:
    outcomes, r = point.entry.outcomes, point.entry.rollouts
    solved = [o.outcome == "resolved" for o in outcomes]
    return tuple(sum(solved[i : i + r]) for i in range(0, len(solved), r))


def _about(seen: float, given: float | None) -> Assumption:
    name = "holdout variance"
    if given is None:
        why = f"{seen:.4f} is estimated from the evaluations themselves, not a bound"
        return assumption(name, None, why, HOLDOUT)
    if given < seen:
        return assumption(name, False, f"{given:g} was given, but the evaluations show about {seen:.4f}", HOLDOUT)
    why = f"{given:g} was given and nothing proves it; the evaluations show about {seen:.4f}"
    return assumption(name, None, why, HOLDOUT)
