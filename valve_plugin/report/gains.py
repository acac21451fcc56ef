"""How a gate's gain is said: what was measured of an accept, the most that a reject could still have reached. Pure."""

from __future__ import annotations

from valve_plugin.report.overview import signed
from valve_plugin.report.reach import SELECTED, caveat, repeated
from valve_plugin.report.run import Column, Gate, Run
from valve_plugin.report.words import counted


def open_(gate: Gate) -> int:
    """Return how many rollouts of a gate's last measurement its gain does not know: not run, or lost."""
    return round((gate.high - gate.low) * _panel(gate))


def bounded(gate: Gate) -> bool:
    """Return whether only a reject's upper end says something: what did not run is no failure."""
    return gate.decision == "reject" and gate.low < gate.high


def gain(gate: Gate, unit: str = "") -> str:
    """Return a gate's gain in points: `+4.2`, `at best 0.0`, `-4.2 to +8.3`; the unit stands behind the number."""
    last = signed(gate.low) if gate.low == gate.high else f"{signed(gate.low)} to {signed(gate.high)}"
    if bounded(gate):
        last = f"at best {signed(gate.high)}"
    return f"{last}{unit}" if gate.first is None else f"{signed(gate.first)} at first, {last}{unit} when repeated"


def at_best(gate: Gate) -> str:
    """Return the most that a reject could have gained, and why."""
    rest = open_(gate)
    others = "the other rollout" if rest == 1 else f"all {rest:,} other rollouts"
    again = "" if gate.first is None else f"{signed(gate.first)} points at first; repeated, "
    return f"{again}even if {others} had passed, the gain would have been {signed(gate.high)} points"


def stopped(run: Run, gate: Gate) -> str:
    """Return what ran of a reject that stopped, beside the reference: `of what ran, 10 of 12 passed`.

    The reference's are those of the same tasks. Empty: no such reject, or its reference is not known.
    """
    mine = [c for c in run.columns if c.line == gate.line]
    base = {c.label: c for c in run.columns}.get(mine[-1].against) if mine else None
    if not bounded(gate) or base is None:
        return ""
    tasks = {cell.task_id for cell in mine[-1].cells if any(r.outcome != "errored" for r in cell.rollouts)}
    passed, of = _passed(mine[-1], tasks)
    before, of_before = _passed(base, tasks)
    same = f"the reference {before} of {of_before} on the same {_tasks(len(tasks))}"
    return f"of what ran, {passed} of {of} passed; {same}"


def told(run: Run, gate: Gate) -> str:
    """Return what explains a gate's gain; empty: the caption of the table says enough."""
    said = repeated(run, gate) or stopped(run, gate)
    return f"{said[:1].upper()}{said[1:]}." if said else ""


def caption(run: Run) -> str:
    """Return the caption of the gates' table."""
    parts = ["Every verdict in the order asked."]
    if any(map(bounded, run.gates)):
        parts.append(
            "A gate stops when its verdict is certain: a reject's gain is the most it could still have reached."
        )
    if any(g.decision == "indecisive" for g in run.gates):
        parts.append("Lost rollouts leave an interval.")
    if any(caveat(run, g) == SELECTED for g in run.gates):
        parts.append("An accept's gain is measured on the tasks that selected it, so it flatters.")
    return " ".join(parts)


def _tasks(number: int) -> str:
    return "task" if number == 1 else counted(number, "task")


def _panel(gate: Gate) -> int:
    return gate.total // (2 if gate.again else 1)


def _passed(column: Column, tasks: set[str]) -> tuple[int, int]:
    ran = [r for cell in column.cells if cell.task_id in tasks for r in cell.rollouts if r.outcome != "errored"]
    return sum(r.outcome == "resolved" for r in ran), len(ran)
