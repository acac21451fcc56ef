"""The panel as a heatmap: tasks by measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from valve_plugin.report.run import REPEAT, Cell, Column, Rollout, Run
from valve_plugin.report.words import counted


class HeatCell(NamedTuple):
    """One cell of a heatmap, ready to show."""

    text: str
    style: str
    attempts: str
    """Ids of the attempts kept, with blanks between; empty: nothing to open."""
    column: str
    said: str
    """What the text means, for who cannot see the cell: `1 of 2 attempts resolved, 1 errored`."""


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
        ran = _counted([r for column in cells if task in column for r in column[task].rollouts])
        return ran.passed / (ran.graded or 1)

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
        return HeatCell("·", "none", "", column.label, "not evaluated")
    ran, late = _counted(cell.rollouts), _counted(cell.late)
    style = "lost" if ran.lost else "full" if ran.passed == ran.graded else "part" if ran.passed else "zero"
    said = [ran.said] if ran.said else []
    if cell.late:
        style = f"{style if cell.rollouts else 'none'} late"
        said.append(f"{late.said} after the verdict, not counted")
    if cell.kept:
        style += " kept"
        said.append("kept from before")
    text = f"{ran.text} ({late.text})".strip() if cell.late else ran.text
    ids = " ".join(r.attempt for r in (*cell.rollouts, *cell.late) if r.attempt)
    return HeatCell(text, style, ids, column.label, "; ".join(said))


class Counted(NamedTuple):
    """Rollouts of one task: an errored one is neither a pass nor a failure, so it stands beside the others."""

    passed: int
    graded: int
    lost: int

    @property
    def text(self) -> str:
        """`1/3`; `1/2 +1!` where one of three errored; `3!` where all did; empty: none ran."""
        parts = [f"{self.passed}/{self.graded}"] if self.graded else []
        parts += [f"{'+' * bool(parts)}{self.lost}!"] if self.lost else []
        return " ".join(parts)

    @property
    def said(self) -> str:
        """The same in words: `1 of 2 attempts resolved, 1 errored`."""
        parts = [f"{self.passed} of {counted(self.graded, 'attempt')} resolved"] if self.graded else []
        return ", ".join([*parts, f"{self.lost} errored"] if self.lost else parts)


def _counted(rollouts: Sequence[Rollout]) -> Counted:
    outcomes = Counter(r.outcome for r in rollouts)
    lost = outcomes["errored"]
    return Counted(outcomes["resolved"], len(rollouts) - lost, lost)
