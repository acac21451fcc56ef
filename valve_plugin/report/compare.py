"""Compare two runs on one page: their streams, holdouts, tasks and numbers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, log
from typing import Any, NamedTuple

from valve_plugin.evidence.cost import APART, run_cost
from valve_plugin.report.findings import AnswerCard, count_signs, resolved_by_task
from valve_plugin.report.run import RunReport
from valve_plugin.theory.confidence_sequence import mean_floor

_DELTA = 0.05


def comparison_card(a: RunReport, b: RunReport) -> AnswerCard:
    """Return the comparison's first card: which run is better, how sure that is, and the cost of each."""
    streams, holdouts = compare_streams(a, b), compare_holdouts(a, b)
    panels = [(panel_tasks(run), run.panel.rollouts) for run in (a, b) if run.panel]
    values: dict[str, Any] = {
        "runs": [a, b],
        "streams": streams,
        "holdouts": holdouts,
        "panels_differ": len(panels) == 2 and panels[0] != panels[1],
        "totals": [run_cost(run.spent) for run in (a, b)],
        "apart": any(s.role in APART for run in (a, b) for s in run.spent),
        "better": holdouts.get("better", ""),
        "rates": holdouts.get("rates") or streams.get("rates"),
    }
    if values["better"]:
        return AnswerCard("versus", "certified", values, "yes")
    state = "holdout" if holdouts.get("rates") else "stream" if streams.get("rates") else "nothing"
    return AnswerCard("versus", state, values, "open")


def compare_streams(a: RunReport, b: RunReport) -> dict[str, Any]:
    """Return the comparison of two streams: `state` is `unknown`, `differ` or `paired`, with its numbers."""
    if not (a.stream_whole and b.stream_whole):
        return {"state": "unknown"}
    mine, other = ([p.task_id for p in run.stream] for run in (a, b))
    both = len(set(mine) & set(other))
    if set(mine) != set(other):
        return {"state": "differ", "both": both, "only": [len(mine) - both, len(other) - both]}
    rates = [{p.task_id: p.passed / p.graded for p in run.stream if p.graded} for run in (a, b)]
    found = count_signs([(rates[0][t], rates[1][t]) for t in mine if t in rates[0] and t in rates[1]])
    sums = [(sum(p.passed for p in run.stream), sum(p.graded for p in run.stream)) for run in (a, b)]
    return {
        "state": "paired",
        "tasks": len(mine),
        "same_order": mine == other,
        "signs": found,
        "p": found.p,
        "rates": [passed / graded for passed, graded in sums] if all(graded for _, graded in sums) else None,
    }


def compare_holdouts(a: RunReport, b: RunReport) -> dict[str, Any]:
    """Return the comparison of the last evaluations: `state` is `unread`, `differ`, `errored` or `paired`.

    Both signs are possible, so each uses half of delta. A bet needs no bound on the variance.

    Source: eq:sepcert, by `mean_floor` in place of Bennett's bound.
    """
    if not (a.checkpoints and b.checkpoints):
        return {"state": "unread", "read": [x for x, run in zip("AB", (a, b), strict=True) if run.checkpoints]}
    ends = [a.checkpoints[-1], b.checkpoints[-1]]
    by_task = [resolved_by_task(run.evaluations[-1]) for run in (a, b)]
    if set(by_task[0]) != set(by_task[1]) or ends[0].rollouts != ends[1].rollouts:
        return {"state": "differ"}
    if any(end.low != end.high for end in ends):
        return {"state": "errored"}
    mine, other = ([passed[t] for t in by_task[0]] for passed in by_task)
    r, n = ends[0].rollouts, len(mine)
    each = [(x - y) / r for x, y in zip(mine, other, strict=True)]
    difference = fsum(each) / n
    sign = 1 if difference > 0 else -1
    certified = mean_floor([sign * d for d in each], log(2 / _DELTA))
    signs = count_signs(list(zip(mine, other, strict=True)))
    return {
        "state": "paired",
        "tasks": n,
        "signs": signs,
        "p": signs.p,
        "difference": difference,
        "rates": [end.low for end in ends],
        "better": ("A" if sign > 0 else "B") if certified > 0 else "",
        "certified": certified,
        "probability": 1 - _DELTA,
    }


class TaskPair(NamedTuple):
    """One stream task in both runs."""

    task: str
    a: int
    b: int
    """Positions in each run's stream."""
    higher: str
    """The run with the higher resolved rate: `A`, `B` or `equal`; empty if a run has no graded attempt."""


def task_pairs(runs: Sequence[RunReport]) -> list[TaskPair]:
    """Return the tasks of two runs in A's order, or an empty list for one run or for different tasks."""
    if len(runs) != 2:
        return []
    a, b = ({p.task_id: n for n, p in enumerate(run.stream)} for run in runs)
    if set(a) != set(b):
        return []
    found = []
    for task in a:
        one, other = runs[0].stream[a[task]], runs[1].stream[b[task]]
        ahead = one.passed * other.graded - other.passed * one.graded
        higher = "A" if ahead > 0 else "B" if ahead else "equal"
        found.append(TaskPair(task, a[task], b[task], higher if one.graded and other.graded else ""))
    return found


def comparison_columns(runs: Sequence[RunReport]) -> list[dict[str, int | None]]:
    """Return each run's panel tasks that the first also has, panel seed and gate rollouts, for the table of both."""
    found = []
    for run in runs:
        seeds = [line.data["panel"].get("seed") for line in run.ledger if line.type == "panel_fixed"]
        shared = len(panel_tasks(run) & panel_tasks(runs[0]))
        gate = sum(s.rollouts for s in run.spent if s.role == "gate")
        found.append({"shared": shared, "seed": seeds[-1] if seeds else None, "gate_rollouts": gate})
    return found


def panel_tasks(run: RunReport) -> frozenset[str]:
    """Return the task ids of the current panel."""
    fixed = [line.data["panel"]["tasks"] for line in run.ledger if line.type == "panel_fixed"]
    return frozenset(task["instance_id"] for task in fixed[-1]) if fixed else frozenset()
