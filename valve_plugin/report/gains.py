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

    The reference's are those of the same tasks, where it is known. Empty: no such reject.
    """
    mine = [c for c in run.columns if c.line == gate.line]
    base = {c.label: c for c in run.columns}.get(mine[-1].against) if mine else None
    if not bounded(gate) or not mine:
        return ""
    tasks = {cell.task_id for cell in mine[-1].cells if any(r.outcome != "errored" for r in cell.rollouts)}
    passed, of = _passed(mine[-1], tasks)
    if base is None:
        return f"of what ran, {passed} of {of} passed"
    before, of_before = _passed(base, tasks)
    same = f"the reference {before} of {of_before} on the same {_tasks(len(tasks))}"
    return f"of what ran, {passed} of {of} passed; {same}"


def rest(gate: Gate, unseen: int) -> str:
    """Return what became of a gate's other rollouts: `1 more ran on when the verdict was certain, 8 rollouts saved`.

    Args:
        unseen: of those that ran on, how many the panel cannot show.
    """
    ran = f"{gate.beyond} more ran on when the verdict was certain" if gate.beyond else ""
    if unseen:
        which, them = ("not" if unseen == gate.beyond else f"{unseen} not"), "it" if unseen == 1 else "them"
        ran += f" ({which} kept on this machine, so the panel does not show {them})"
    saved = f"{counted(gate.saved, 'rollout')} saved" if gate.saved else ""
    if gate.saved and gate.saved_usd >= 0.005:
        saved += f" (about ${gate.saved_usd:,.2f})"
    kept, lost = (f"{n} {word}" if n else "" for n, word in ((gate.kept, "kept"), (gate.unknown, "lost")))
    return ", ".join(filter(None, [ran, saved, kept, lost]))


def told(run: Run, gate: Gate, unseen: int = 0) -> str:
    """Return what explains a gate's gain and its rollouts; empty: the caption of the table says enough."""
    said = [repeated(run, gate) or stopped(run, gate), rest(gate, unseen)]
    return " ".join(f"{part[:1].upper()}{part[1:]}." for part in said if part)


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
