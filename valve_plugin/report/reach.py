"""How far the panel's score still is from full, and which rejects that alone explains. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from valve_plugin.report.measured_tasks import passed, within
from valve_plugin.report.overview import signed
from valve_plugin.report.provenance import listed
from valve_plugin.report.run import Column, Gate, Run
from valve_plugin.report.words import counted
from valve_plugin.theory.gate import needed_passes

FULL = 0.95
"""Share of the panel's rollouts from which on an accept can hardly be reached: one in twenty may still fail."""


def required(gate: Gate) -> tuple[int, int]:
    """Return how many passes an accept needed at a gate, and of how many."""
    of = gate.total // (2 if gate.again else 1)
    return gate.reference + round(gate.margin * of), of


def capped(gate: Gate) -> str:
    """Return what a reject under the ceiling needed: `24 of 24 needed`; empty: it was no such reject."""
    needed, of = required(gate)
    return f"{needed} of {of} needed" if gate.decision == "reject" and needed >= FULL * of else ""


def ceiling(run: Run) -> str:
    """Return which gates rejected where hardly any candidate could be accepted; empty: none."""
    gates = [g for g in run.gates if capped(g)]
    if not gates:
        return ""
    who = f"Gate{'s' * (len(gates) > 1)} {listed(g.number for g in gates)}"
    asked = {required(g) for g in gates}
    what = f"{_of(asked.pop())} passes" if len(asked) == 1 else f"{FULL:.0%} or more of the panel's passes"
    return (
        f"{who} rejected where an accept needed {what}: that is the panel's ceiling, and a reject there alone is no "
        "evidence that the items are bad."
    )


def left(run: Run) -> list[str]:
    """Return what the current reference leaves to gain, and whether it is higher than the same bank measured again."""
    if not run.panel or not run.scores or not _stands(run):
        return []
    stands, of = run.scores[-1].passes, run.scores[-1].rollouts
    needed = needed_passes(run.panel.rho, run.panel.tasks, run.panel.rollouts)
    fit = (of - stands) // needed
    said = f"Now {stands} of {of} passes stand, and the margin is {counted(needed, 'pass', 'passes')}"
    if not fit:
        return [f"{said}: no further accept fits on this panel.", *_lucky(stands, repeats(run.columns))]
    more = f"a next accept needs {stands + needed} of {of}, and at most {counted(fit, 'more accept')} can fit"
    return [f"{said}: {more}.", *_lucky(stands, repeats(run.columns))]


def repeats(columns: Sequence[Column]) -> list[int]:
    """Return the passes of the measurements of the current reference's bank that were made for their own sake."""
    found: list[int] = []
    for column in columns:
        if column.kind == "measurement":
            found.append(passed(column))
        elif column.kind == "baseline" or column.decision == "accept":
            found = []
    return found


def chance(run: Run) -> str:
    """Return which accepts gained no more than an unchanged bank's measurements differ by; empty: none, or unknown."""
    gates, wide = within(run)
    if not gates:
        return ""
    each = ", ".join(f"gate {g.number}'s {signed(g.low)}{' when repeated' * (g.first is not None)}" for g in gates)
    return f"An unchanged bank's measurements differ by up to {100 * wide:.1f} points: {each} is within that."


def _lucky(stands: int, again: Sequence[int]) -> list[str]:
    if not again or stands <= sum(again) / len(again):  # an accept was selected for being high
        return []
    mean = sum(again) / len(again)
    what = f"a repeated measurement of the same bank ({again[0]})"
    if len(again) > 1:
        told = ", ".join(map(str, again))
        what = f"the mean of {len(again)} repeated measurements of the same bank ({told}; mean {mean:.1f})"
    return [
        f"The reference ({stands}) is above {what}: chance may have raised it, and a candidate has to beat that too."
    ]


def _stands(run: Run) -> bool:
    """Whether the last epoch has its baseline, so that the last score is its reference."""
    last = {line.type: line.number for line in run.ledger}
    return last.get("baseline", 0) > last.get("epoch_opened", 0)


def _of(asked: tuple[int, int]) -> str:
    return f"{asked[0]} of {asked[1]}"
