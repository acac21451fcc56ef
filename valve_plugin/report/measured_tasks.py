"""Every measurement task by task, beside what it is compared with: readable where a ledger line is raw. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby, takewhile
from typing import NamedTuple

from valve_plugin.report.run import Checkpoint, Column, Run
from valve_plugin.report.words import counted

_UNKNOWN = "unknown"


class TaskRow(NamedTuple):
    """One task: passes of the rollouts that ran, in each measurement, and the candidates' differences."""

    task: str
    passes: tuple[str, ...]
    differences: tuple[str, ...]


class TaskTable(NamedTuple):
    """One measurement, tasks that changed first."""

    heads: tuple[str, ...]
    rows: tuple[TaskRow, ...]


Seen = Mapping[str, tuple[int, int, int]]
"""Task -> passes, graded rollouts, rollouts that would be all."""


def tables(run: Run) -> dict[int, TaskTable]:
    """Return ledger line -> what it measured, task by task, for gates, baselines, A/A and holdout readings."""
    by_label = {column.label: column for column in run.columns}
    r = {c.line: max((len(cell.rollouts) for cell in c.cells), default=0) for c in run.columns}
    found: dict[int, TaskTable] = {}
    for line, group in groupby(run.columns, key=lambda c: c.line):
        columns = list(group)
        if against := by_label.get(columns[0].against):
            full = r[against.line]
            ran = ("First run", "Repeat") if len(columns) > 1 else ("Candidate",)
            changes = tuple(f"Change, {which.lower()}" for which in ran) if len(columns) > 1 else ("Change",)
            heads = (f"Reference, {against.label}", *ran, *changes)
            found[line] = _table(heads, [_seen(c, full) for c in (against, *columns)], _late(columns[-1]))
        else:
            found[line] = _table((columns[0].label,), [_seen(columns[0], r[line])])
    return found | _holdout(run)


def resolved(run: Run, line: int) -> dict[str, int]:
    """Return task -> resolved rollouts, as a ledger line with outcomes has them."""
    outcomes = run.ledger[line - 1].data["outcomes"]
    return {o["task_id"]: 0 for o in outcomes} | Counter(o["task_id"] for o in outcomes if o["outcome"] == "resolved")


def again(run: Run) -> list[str]:
    """Return, for each bank that was measured again unchanged, by how much its measurements differ, beside the margin.

    Nothing changed between them, so a gain within their spread is no sign of an item's.
    """
    margin = min((g.margin for g in run.gates), default=None)
    return [_spread(group, version, margin) for version, group in _groups(run.columns)]


def passed(column: Column) -> int:
    """Return how many rollouts of a measurement resolved their task."""
    return sum(r.outcome == "resolved" for cell in column.cells for r in cell.rollouts)


def _groups(columns: Sequence[Column]) -> list[tuple[int, list[Column]]]:
    """Measurements of one unchanged bank that follow each other, with its version."""
    found: list[tuple[int, list[Column]]] = []
    version, left = 0, list(columns)
    while left:
        group = list(takewhile(lambda c: c.kind == "measurement", left))
        if group:
            found.append((version, group))
        else:
            version += left[0].decision == "accept" and not left[0].repeat
        left = left[len(group) or 1 :]
    return found


def _wide(group: Sequence[Column]) -> float:
    """The distance between the highest and the lowest, in rate units."""
    passes = list(map(passed, group))
    return (max(passes) - min(passes)) / (sum(len(cell.rollouts) for cell in group[0].cells) or 1)


def _spread(group: Sequence[Column], version: int, margin: float | None) -> str:
    passes = list(map(passed, group))
    of = sum(len(cell.rollouts) for cell in group[0].cells)
    if len(group) == 1:
        return f"{group[0].label} measured version {version} once more, unchanged: {passes[0]} of {of} passes."
    told = ", ".join(map(str, passes))
    wide = _wide(group)
    first, last = (column.label.split()[-1] for column in (group[0], group[-1]))
    said = (
        f"Rechecks {first} to {last} measured one unchanged bank, version {version}: {told} of {of} passes. "
        f"Without any change they spread over {100 * wide:.1f} points"
    )
    if margin is None:
        return f"{said}."
    return f"{said}; the margin is {100 * margin:.1f}."


def _holdout(run: Run) -> dict[int, TaskTable]:
    """Each version's reading beside version 0's, where they are of the same tasks."""
    first = next((c for c in run.checkpoints if c.version == 0), None)
    found: dict[int, TaskTable] = {}
    for c in run.checkpoints:
        mine = _read(run, c)
        base = _read(run, first) if first and first.rollouts == c.rollouts else {}
        paired = first is not None and c.version and set(mine) == set(base)
        heads = ("Version 0", f"Version {c.version}", "Change") if paired else (f"Version {c.version}",)
        found[c.line] = _table(heads, [base, mine] if paired else [mine])
    return found


def _read(run: Run, c: Checkpoint) -> Seen:
    passed = resolved(run, c.line)
    ran = Counter(o["task_id"] for o in run.ledger[c.line - 1].data["outcomes"] if o["outcome"] != "errored")
    return {task: (n, ran[task], c.rollouts) for task, n in passed.items()}


def _seen(column: Column, full: int) -> Seen:
    graded = {c.task_id: [r.outcome == "resolved" for r in c.rollouts if r.outcome != "errored"] for c in column.cells}
    return {task: (sum(passed), len(passed), full) for task, passed in graded.items()}


def _late(column: Column) -> dict[str, str]:
    """Task -> what ran on there when the verdict was certain."""
    return {
        c.task_id: f"{sum(r.outcome == 'resolved' for r in c.late)} of {len(c.late)} after the verdict, not counted"
        for c in column.cells
        if c.late
    }


def _table(heads: tuple[str, ...], measured: Sequence[Seen], late: Mapping[str, str] = {}) -> TaskTable:
    """The first is what the others are compared with; the last one's changes order the rows.

    Args:
        late: task -> what its last measurement's passes leave out.
    """
    base, others = measured[0], measured[1:]
    rows = [
        ([_change(base.get(task), seen.get(task)) for seen in others], task)
        for task in dict.fromkeys(task for seen in measured for task in seen)
    ]
    if others:  # what is unknown tells least
        rows.sort(key=lambda row: (row[0][-1][2] == _UNKNOWN, -max(map(abs, row[0][-1][:2]))))
    return TaskTable(
        heads,
        tuple(
            TaskRow(
                task,
                (*(_passes(seen.get(task)) for seen in measured[:-1]), _passes(measured[-1].get(task), late.get(task))),
                tuple(c[2] for c in changes),
            )
            for changes, task in rows
        ),
    )


def _passes(seen: tuple[int, int, int] | None, late: str | None = None) -> str:
    ran = f"{seen[0]} of {seen[1]}" if seen and seen[1] else "" if late else "not run"
    return "; ".join(filter(None, [ran, late]))


def _change(before: tuple[int, int, int] | None, after: tuple[int, int, int] | None) -> tuple[int, int, str]:
    """The least and the most that passes moved, and how to say it; what did not run may be either."""
    if not before or not after or not after[1]:
        return 0, 0, _UNKNOWN
    low = after[0] - (before[0] + before[2] - before[1])
    high = after[0] + after[2] - after[1] - before[0]
    return low, high, f"{low:+d}" if low == high and low else "0" if low == high else f"{low:+d} to {high:+d}"


def signs(run: Run) -> tuple[int, int, int] | None:
    """Return on how many holdout tasks the last version is better, worse and equal to version 0; None: not known."""
    last = run.checkpoints[-1]
    first = next((c for c in run.checkpoints if c.version == 0), None)
    if first is None or first is last or any(c.low != c.high for c in (first, last)):
        return None
    before, after = resolved(run, first.line), resolved(run, last.line)
    if set(before) != set(after):
        return None
    found = [(after[t] > before[t]) - (after[t] < before[t]) for t in after]
    return found.count(1), found.count(-1), found.count(0)


def moved(run: Run) -> str:
    """Return the same in words; empty: not known."""
    found = signs(run)
    if found is None:
        return ""
    better, worse, same = (counted(n, "task") for n in found)
    return f"Better on {better}, worse on {worse}, equal on {same}."
