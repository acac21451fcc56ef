"""What the certificates say, in words: measured, guaranteed, and under which conditions. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from valve_plugin.report.assumptions import Assumption
from valve_plugin.report.bounds import Bound, guarantee
from valve_plugin.report.provenance import listed
from valve_plugin.report.run import Run
from valve_plugin.report.words import counted

Number = Literal["panel", "gain", "drawdown"]
_PLAIN = {
    ("panel", "tasks like yours"): "the panel is like your tasks",
    ("gain", "tasks like yours"): "the holdout is like your tasks",
    ("panel", "panel age"): "your tasks are still like the panel's",
    ("panel", "variance"): "the estimated variance is right",
    ("gain", "holdout variance"): "the estimated variance is right",
    ("gain", "holdout sealed"): "nobody steered the run by what the holdout said",
    ("panel", "panel reuse"): "no epoch was opened because of what the holdout said",
}


def unproven(run: Run, number: Number) -> list[str]:
    """Return, in words, the assumptions behind a certified number that nothing here shows."""
    return [_PLAIN.get((number, a.name), f"“{a.name}” holds") for a in _open(run, number, "unknown")]


def unmet(run: Run, number: Number) -> str:
    """Return which assumptions behind a number do not hold, as a sentence; empty: none."""
    names = ", ".join(f"“{a.name}”" for a in _open(run, number, "unmet"))
    return f"Where {names} is unmet, it does not apply." if names else ""


def conditions(run: Run, number: Number) -> str:
    """Return what a certified number takes: `, if (1) the holdout is like your tasks and (2) …`; empty: nothing."""
    found = unproven(run, number)
    if len(found) < 2:
        return "".join(f", if {one}" for one in found)
    numbered = [f"({n}) {one}" for n, one in enumerate(found, 1)]
    return f", if {', '.join(numbered[:-1])} and {numbered[-1]}"


def of_gain(run: Run, gain: Bound) -> str:
    """Return the holdout's gain: measured, guaranteed, on what conditions."""
    said = f"Measured {100 * gain.measured:+.1f} points on {counted(gain.tasks, 'holdout task')}."
    if gain.vacuous:
        return f"{said} Guaranteed: {guarantee(gain)}."
    sure = f"Guaranteed, with probability {1 - gain.delta:.4g}: {guarantee(gain)}{conditions(run, 'gain')}."
    return " ".join(filter(None, [said, sure, unmet(run, "gain")]))


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
    found = [f"Holdout gain. {of_gain(run, gain)}", of_drawdown(run, drawdown)]
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


def _open(run: Run, number: Number, status: str) -> Iterable[Assumption]:
    return [a for a in run.certificate.assumptions if number in a.needed_for and a.status == status]
