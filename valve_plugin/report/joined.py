"""Two streams of the same tasks, as one table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from valve_plugin.report.fates import Step, steps
from valve_plugin.report.run import Run, StreamPoint


class Half(NamedTuple):
    """One task in one of the runs."""

    point: StreamPoint
    step: Step


class Pair(NamedTuple):
    """One task in both."""

    task: str
    a: Half
    b: Half
    higher: str
    """`A`, `B` or `equal`: whose attempts passed more often; empty: no attempt of one was graded."""


def joined(runs: Sequence[Run]) -> list[Pair]:
    """Return the tasks of two runs in A's order; empty: it is one run, or their tasks are not the same."""
    if len(runs) != 2:
        return []
    a, b = ({p.task_id: Half(p, step) for p, step in zip(run.stream, steps(run), strict=True)} for run in runs)
    if set(a) != set(b):
        return []
    return [Pair(task, a[task], b[task], _higher(a[task].point, b[task].point)) for task in a]


def attempts(point: StreamPoint) -> str:
    """Return the ids of a task's attempts that are kept here, with blanks between."""
    return " ".join(r.attempt for r in point.rollouts if r.attempt)


def _higher(a: StreamPoint, b: StreamPoint) -> str:
    if not a.graded or not b.graded:
        return ""
    ahead = a.passed * b.graded - b.passed * a.graded
    return "A" if ahead > 0 else "B" if ahead else "equal"
