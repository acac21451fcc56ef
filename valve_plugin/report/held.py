"""What the certificates say, in words: measured, guaranteed, and under which conditions. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from valve_plugin.report.assumptions import Assumption
from valve_plugin.report.bounds import Bound, guarantee, sizes
from valve_plugin.report.certify import Certificate
from valve_plugin.report.provenance import listed
from valve_plugin.report.run import Run
from valve_plugin.report.words import counted, points

Number = Literal["panel", "gain", "drawdown"]
TOO_FEW = "Not at all: too few tasks"
_PLAIN = {
    ("panel", "tasks like yours"): "the panel is like your tasks",
    ("gain", "tasks like yours"): "the holdout is like your tasks",
    ("panel", "panel age"): "your tasks are still like the panel's",
    ("panel", "variance"): "the estimated variance is right",
    ("gain", "holdout variance"): "the estimated variance is right",
    ("gain", "holdout sealed"): "nobody steered the run by what the holdout said",
    ("panel", "panel reuse"): "no epoch was opened because of what the holdout said",
}


def how_sure(proved: Certificate, *, held: bool) -> tuple[str, str]:
    """Return how sure the gain is, in a few words, and why.

    Args:
        proved: all that can be said.
        held: a holdout was read. Then its certificate alone counts: where it says nothing, the panel's says nothing of
            the holdout either.
    """
    if held:
        return _held_out(proved)
    moves = proved.moves
    if not moves:
        return "Nothing to certify", "No accept is recorded."
    speaking = [m for m in moves if not m.vacuous]
    if not speaking:
        few = f"{counted(moves[-1].tasks, 'panel task')} cannot speak for other tasks."
        return TOO_FEW, f"{few} {sizes(moves[-1])}"
    worst = min(speaking, key=lambda m: m.floor)
    answer = f"An accept may have lost {-100 * worst.floor:.1f} points"
    if worst.floor >= 0:
        answer = f"No accept lost anything{_if(proved, 'panel')}"
    sure = f"{len(speaking)} of {counted(len(moves), 'accept')} certified, with probability {1 - worst.delta:.4g}"
    return answer, " ".join(filter(None, [f"{sure}{conditions(proved, 'panel')}.", unmet(proved, "panel")]))


def _held_out(proved: Certificate) -> tuple[str, str]:
    gain = proved.gain
    if gain is None:
        return "Unknown", f"No certificate on the holdout: {proved.unevaluated}."
    if gain.vacuous:
        return TOO_FEW, f"{counted(gain.tasks, 'holdout task')} cannot speak for other tasks. {sizes(gain)}"
    said = "A loss cannot be excluded"
    if gain.value >= 0:
        said = f"At least {points(gain.value)}{_if(proved, 'gain')}"
    return said, of_gain(proved, gain)


def _if(proved: Certificate, number: Number) -> str:
    """On how much a good answer rests; what is unmet takes it back."""
    if unmet(proved, number):
        return ", where what it rests on is met"
    open_ = len(unproven(proved, number))
    return f", if {open_} unproven {'assumption holds' if open_ == 1 else 'assumptions hold'}" if open_ else ""


def unproven(proved: Certificate, number: Number) -> list[str]:
    """Return, in words, the assumptions behind a certified number that nothing here shows."""
    return [_PLAIN.get((number, a.name), f"“{a.name}” holds") for a in _open(proved, number, "unknown")]


def unmet(proved: Certificate, number: Number) -> str:
    """Return which assumptions behind a number do not hold, as a sentence; empty: none."""
    names = ", ".join(f"“{a.name}”" for a in _open(proved, number, "unmet"))
    return f"Where {names} is unmet, it does not apply." if names else ""


def conditions(proved: Certificate, number: Number) -> str:
    """Return what a certified number takes: `, if (1) the holdout is like your tasks and (2) …`; empty: nothing."""
    found = unproven(proved, number)
    if len(found) < 2:
        return "".join(f", if {one}" for one in found)
    numbered = [f"({n}) {one}" for n, one in enumerate(found, 1)]
    return f", if {', '.join(numbered[:-1])} and {numbered[-1]}"


def of_gain(proved: Certificate, gain: Bound) -> str:
    """Return the holdout's gain: measured, guaranteed, on what conditions."""
    said = f"Measured {100 * gain.measured:+.1f} points on {counted(gain.tasks, 'holdout task')}."
    if gain.vacuous:
        return f"{said} Guaranteed: {guarantee(gain)}."
    sure = f"Guaranteed, with probability {1 - gain.delta:.4g}: {guarantee(gain)}{conditions(proved, 'gain')}."
    return " ".join(filter(None, [said, sure, unmet(proved, "gain")]))


def of_drawdown(run: Run, drawdown: Bound) -> str:
    """Return how far the last version lies below the best one that was read, measured and guaranteed."""
    versions = {c.version for c in run.checkpoints}
    missing = [v for v in range(max(versions)) if v not in versions]
    left_out = f"; {'version' if len(missing) == 1 else 'versions'} {listed(missing)} not read" if missing else ""
    measured = f"{100 * drawdown.measured:.1f} points" if drawdown.measured else "none"
    sure = f"guaranteed: {guarantee(drawdown)}"
    return f"Drawdown: {measured} measured (versions {listed(sorted(versions))}{left_out}); {sure}."


def told(run: Run) -> list[str]:
    """Return both of the holdout's certificates, and how sure they are together."""
    gain, drawdown = run.certificate.gain, run.certificate.drawdown
    if not gain or not drawdown:
        return []
    found = [f"Holdout gain. {of_gain(run.certificate, gain)}", of_drawdown(run, drawdown)]
    if drawdown.by_gain is not None:
        found.append(
            "Only one other bank was read, the one that the gain is over, so the gain's guarantee covers both: "
            f"together they hold with probability {1 - gain.delta:.4g}; the conditions are the same."
        )
    elif not gain.vacuous and not drawdown.vacuous:
        found.append(
            f"Each of the two holds with probability {1 - gain.delta:.4g} by itself, and both together with at least "
            f"{1 - gain.delta - drawdown.delta:.4g}; the conditions are the same."
        )
    return found


def _open(proved: Certificate, number: Number, status: str) -> Iterable[Assumption]:
    return [a for a in proved.assumptions if number in a.needed_for and a.status == status]
