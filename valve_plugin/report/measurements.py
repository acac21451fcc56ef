"""Measurements by task: the cells of a heatmap, and tasks on which one measurement is above another. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from valve_plugin.report.run import PanelCell, PanelColumn, Rollout, RunReport
from valve_plugin.theory import estimates


class Tally(NamedTuple):
    """Counts of one task's rollouts. Errored ones are neither passes nor failures."""

    passed: int
    graded: int
    lost: int = 0

    @property
    def text(self) -> str:
        """`1/3`; `1/2 +1!` if one of three errored; `3!` if all errored; `·` if none ran."""
        parts = [f"{self.passed}/{self.graded}"] if self.graded else []
        parts += [f"{'+' * bool(parts)}{self.lost}!"] if self.lost else []
        return " ".join(parts) or "·"


def tally(rollouts: Sequence[Rollout]) -> Tally:
    """Return how many rollouts resolved their task, were graded, and errored."""
    outcomes = Counter(r.outcome for r in rollouts)
    return Tally(outcomes["resolved"], len(rollouts) - outcomes["errored"], outcomes["errored"])


class HeatCell(NamedTuple):
    """One task in one measurement."""

    column: str
    style: str
    """CSS classes: `full`, `part`, `zero`, `lost` or `none` (not evaluated), and `kept`."""
    ran: Tally = Tally(0, 0)
    attempts: tuple[str, ...] = ()
    """Ids of the kept attempts."""


def heatmap(columns: Sequence[PanelColumn]) -> dict[str, list[HeatCell]]:
    """Return the cells of each task of these measurements, those that fail most first."""
    by_task = [{cell.task_id: cell for cell in column.cells} for column in columns]

    def share(task: str) -> float:
        ran = tally([r for cells in by_task if task in cells for r in cells[task].rollouts])
        return ran.passed / (ran.graded or 1)

    tasks = dict.fromkeys(task for cells in by_task for task in cells)
    return {
        task: [heat_cell(c.label, cells.get(task)) for c, cells in zip(columns, by_task, strict=True)]
        for task in sorted(tasks, key=share)
    }


def heat_cell(column: str, cell: PanelCell | None) -> HeatCell:
    """Return the cell of one task in a column; None: the task was not evaluated."""
    if cell is None:
        return HeatCell(column, "none")
    ran = tally(cell.rollouts)
    style = "lost" if ran.lost else "full" if ran.passed == ran.graded else "part" if ran.passed else "zero"
    ids = tuple(r.attempt for r in cell.rollouts if r.attempt)
    return HeatCell(column, style + " kept" * cell.kept, ran, ids)


def resolved_by_task(column: PanelColumn) -> dict[str, int]:
    """Return, by task, the resolved rollouts of a measurement."""
    return {cell.task_id: tally(cell.rollouts).passed for cell in column.cells}


class Signs(NamedTuple):
    """Numbers of tasks on which one measurement is above, below or equal to another."""

    above: int
    below: int
    equal: int

    @property
    def p(self) -> float:
        """Two-sided p value of a sign test, which is no certificate."""
        return estimates.sign_test(self.above, self.below)


def count_signs(pairs: Sequence[tuple[float, float]]) -> Signs:
    """Return the numbers of pairs whose first value is above, below or equal to the second."""
    found = [(x > y) - (x < y) for x, y in pairs]
    return Signs(found.count(1), found.count(-1), found.count(0))


def holdout_pairs(run: RunReport) -> list[tuple[int, int]]:
    """Return, by holdout task, the passes of the last version and of version 0; nothing if one is not fully known."""
    read = run.checkpoints
    if not read or read[0].version or not read[-1].version or any(c.low != c.high for c in (read[0], read[-1])):
        return []
    before, after = (resolved_by_task(run.evaluations[n]) for n in (0, -1))
    return [(after[task], before[task]) for task in after]


def holdout_signs(run: RunReport) -> Signs | None:
    """Return the signs of the last version against version 0 on the holdout, or None if unknown."""
    pairs = holdout_pairs(run)
    return count_signs(pairs) if pairs else None
