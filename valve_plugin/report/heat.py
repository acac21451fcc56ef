"""The panel as a heatmap: tasks by measurements."""

from __future__ import annotations

from typing import NamedTuple

from valve_plugin.report.run import REPEAT, Cell, Column, Run


class HeatCell(NamedTuple):
    """One cell of a heatmap, ready to show."""

    text: str
    style: str
    attempts: str
    """Ids of the attempts kept, with blanks between; empty: nothing to open."""
    column: str


class HeatRow(NamedTuple):
    """One panel task."""

    task: str
    short: str
    cells: list[HeatCell]


class HeatColumn(NamedTuple):
    """One measurement's head."""

    label: str
    line: int
    decision: str
    reference: str
    """`Gate 2 to Gate 4`: the gates that are compared with it; empty: none is."""
    against: str


class Heat(NamedTuple):
    """A run's heatmap."""

    columns: list[HeatColumn]
    rows: list[HeatRow]

    @property
    def styles(self) -> set[str]:
        """What occurs in it, for the legend."""
        found = {word for row in self.rows for cell in row.cells for word in cell.style.split()}
        return found | ({"reference"} if any(column.reference for column in self.columns) else set())


def heat(run: Run) -> Heat:
    """Return the heatmap: every task of a panel, those that fail most first."""
    cells = [{cell.task_id: cell for cell in column.cells} for column in run.columns]
    tasks = dict.fromkeys(task for column in cells for task in column)

    def share(task: str) -> float:
        seen = [r.outcome == "resolved" for column in cells if task in column for r in column[task].rollouts]
        return sum(seen) / (len(seen) or 1)

    rows = [
        HeatRow(task, short(task), [_heat_cell(run.columns[i], column.get(task)) for i, column in enumerate(cells)])
        for task in sorted(tasks, key=share)
    ]
    return Heat([_head(column, run) for column in run.columns], rows)


def _head(column: Column, run: Run) -> HeatColumn:
    gates = list(dict.fromkeys(c.label.removesuffix(REPEAT) for c in run.columns if c.against == column.label))
    ends = gates if len(gates) < 2 else [gates[0], gates[-1]]
    return HeatColumn(column.label, column.line, column.decision or "", " to ".join(ends), column.against)


def short(task_id: str) -> str:
    """Return a task id without the repository and commit that SWE-smith's begin with."""
    return task_id.rpartition(".")[2] or task_id


def _heat_cell(column: Column, cell: Cell | None) -> HeatCell:
    if cell is None:
        return HeatCell("·", "none", "", column.label)
    passed, ran = sum(r.outcome == "resolved" for r in cell.rollouts), len(cell.rollouts)
    lost = any(r.outcome == "errored" for r in cell.rollouts)
    style = "lost" if lost else "full" if passed == ran else "part" if passed else "zero"
    ids = " ".join(r.attempt for r in (*cell.rollouts, *cell.late) if r.attempt)
    text = f"{passed}/{ran}{'!' if lost else ''}" if ran else ""
    if cell.late:
        more = sum(r.outcome == "resolved" for r in cell.late)
        text, style = f"{text} ({more}/{len(cell.late)})".strip(), f"{style if ran else 'none'} late"
    return HeatCell(text, f"{style} kept" if cell.kept else style, ids, column.label)
