"""Answers and statements from the numbers of a run, or of two compared. The sentences: `assets/sentences.j2`. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from math import fsum, log
from typing import Any, Literal, NamedTuple

from valve_plugin.bank.entries import PanelFixed
from valve_plugin.evidence.certify import Certificate, too_few
from valve_plugin.evidence.cost import APART, run_cost, sum_costs
from valve_plugin.report.run import PanelCell, PanelColumn, ProposedItem, Rollout, RunReport
from valve_plugin.report.templates import Statement, statement, task_name, text
from valve_plugin.theory import estimates
from valve_plugin.theory.confidence_sequence import mean_floor
from valve_plugin.theory.gate_rule import needed_passes

Tone = Literal["yes", "no", "open", ""]
_DELTA = 0.05


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


class AnswerCard(NamedTuple):
    """One card of the overview. Its text follows from its state and its numbers."""

    about: str
    """`better`, `gain`, `certainty`, `cost` or `versus`."""
    state: str
    values: dict[str, Any]
    tone: Tone = ""
    """Good, bad or undecided; an empty string is neutral."""

    @property
    def headline(self) -> Statement:
        """The answer in a few words."""
        return statement(f"{self.about}_headline", state=self.state, v=self.values)

    @property
    def reason(self) -> Statement:
        """The reason for the answer."""
        return statement(f"{self.about}_reason", state=self.state, v=self.values)

    @property
    def texts(self) -> tuple[str, str]:
        """Headline and reason as plain text."""
        return text(self.headline), text(self.reason)


def answers(run: RunReport) -> list[AnswerCard]:
    """Return the first four answers: is it better, by how much, how sure, at what cost."""
    held = bool(run.version and run.checkpoints)
    state, tone = _better(run)
    better = AnswerCard("better", state, {"run": run, "signs": holdout_signs(run)}, tone)
    cost = AnswerCard("cost", "elsewhere" if run.ran else "nothing", {"run": run})
    if run.spent:
        gate = sum(s.rollouts for s in run.spent if s.role == "gate")
        sums = {"own": run_cost(run.spent), "all": sum_costs(run.spent), "gate": gate}
        cost = AnswerCard("cost", "known", {"run": run, **sums})
    gain = AnswerCard("gain", "unmeasured", {"run": run})
    if run.checkpoints and (run.version or len(run.checkpoints) > 1):  # nothing was selected on the holdout
        last = run.checkpoints[-1]
        unknown = last.gain is None or (run.version and not last.version)
        gain = AnswerCard("gain", "unread" if unknown else "holdout", {"run": run})
    elif len(run.scores) > 1:
        first, final = (score.passes / score.rollouts for score in (run.scores[0], run.scores[-1]))
        gain = AnswerCard("gain", "panel", {"run": run, "gain": final - first})
    return [better, gain, certainty(run.certificate, held=held), cost]


def _better(run: RunReport) -> tuple[str, Tone]:
    """Return the answer by the holdout if it was evaluated, because the gate selected on the panel."""
    if not run.version:
        return "empty", ""
    if not run.checkpoints:
        if not run.accepts:
            return "unmeasured", "open"
        unmet = run.certificate.unmet("panel")
        safe = [m for m in run.certificate.moves if not m.vacuous and m.floor >= 0 and not unmet]
        return ("on_panel", "open") if len(safe) < len(run.accepts) else ("certified_on_panel", "yes")
    last, certified = run.checkpoints[-1], run.certificate.gain
    if last.gain is None or not last.version:
        return "unread", "open"
    low, high = last.gain
    if low <= 0 <= high:
        return ("same" if low == high else "unclear"), "open"
    if high < 0:
        # whether the interval of the loss, at 95 %, lies above zero; a certificate is only of a gain
        losses = [(before - after) / last.rollouts for after, before in holdout_pairs(run)]
        return ("lower", "no") if mean_floor(losses, math.log(2 / 0.05)) > 0 else ("perhaps_lower", "open")
    if certified and not certified.vacuous and certified.value > 0:
        return "higher", "yes"
    return "perhaps_higher", "open"


def certainty(proved: Certificate, *, held: bool) -> AnswerCard:
    """Return how sure the gain is.

    Args:
        held: True if a holdout was evaluated. Then only its certificate counts, even if that proves nothing.
    """
    needed = "gain" if held else "panel"
    rests, unmet = [a for a in proved.assumptions if needed in a.needed_for], proved.unmet(needed)
    certified = [m for m in proved.moves if not too_few(m)]
    worst = min(certified, key=lambda m: m.floor, default=None)
    if held:
        gain = proved.gain
        state = "unread" if gain is None else "too_few" if too_few(gain) else "gain" if gain.value >= 0 else "open"
    else:
        state = "no_accept" if not proved.moves else "panel" if worst else "too_few_panel"
    if unmet and state in ("gain", "open", "panel"):
        state = "unmet"
    values = {
        "proved": proved,
        "unproven": [a.name for a in rests if a.status == "unknown"],
        "unmet": unmet,
        "certified": len(certified),
        "worst": worst,
    }
    return AnswerCard("certainty", state, values)


def lesson(run: RunReport, item: ProposedItem, names: Mapping[str, str]) -> Statement:
    """Return where an item of the bank was learned, what the gate said, and how often it was used."""
    gate = next(reversed(run.verdicts.get(item.proposal_id, ())), None)
    return statement("lesson", run=run, item=item, gate=gate, place=task_name(item.task_id, names))


def origins(run: RunReport) -> Statement:
    """Return where the items of the bank are from."""
    items = [item for item in run.items if item.version is not None]
    return statement("origins", run=run, items=len(items), owned=sum(item.owned for item in items))


def findings(run: RunReport) -> dict[str, list[Statement]]:
    """Return the statements of sections of the page; a list may be empty."""
    measured = any(line.type == "left_out" for line in run.ledger)  # the effect of single items
    some = any(i.version is not None for i in run.items)
    found: dict[str, list[Statement | None]] = {
        "gates": [
            statement("selected") if run.accepts else None,
            statement("outlook", odds=run.odds, run=run.outlook) if run.outlook else None,
        ],
        "items": [statement("items_unmeasured") if run.scores and some and not measured else None],
        "certificates": [*holdout_certificates(run), room_to_improve(run)],
    }
    return {section: [s for s in statements if s] for section, statements in found.items()}


def room_to_improve(run: RunReport) -> Statement | None:
    """Return how many accepts can follow, as `valve certify` says; None before an epoch has its baseline."""
    last = {line.type: line.number for line in run.ledger}
    if (
        run.panel is None
        or not (run.scores and run.certificate.caps)
        or last.get("baseline", 0) < last.get("epoch_opened", 0)
    ):
        return None
    cap = run.certificate.caps[-1]
    if not cap.carried:
        return statement("measured_anew", cap=cap)
    reference = run.scores[-1]
    needed = needed_passes(run.panel.rho, run.panel.tasks, run.panel.rollouts)
    return statement("room", reference=reference, needed=needed, fit=(reference.rollouts - reference.passes) // needed)


def holdout_certificates(run: RunReport) -> list[Statement]:
    """Return statements of the holdout's two certificates, and of their joint probability."""
    gain, drawdown = run.certificate.gain, run.certificate.drawdown
    if not gain or not drawdown:
        return []
    found = [
        statement("holdout_gain", v=certainty(run.certificate, held=True).values),
        statement("holdout_drawdown", drawdown=drawdown, read=sorted({c.version for c in run.checkpoints})),
    ]
    if not (gain.vacuous or drawdown.vacuous):
        found.append(statement("together", gain=gain, drawdown=drawdown))
    return found


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
        seeds = [line.data.panel.seed for line in run.ledger if isinstance(line.data, PanelFixed)]
        shared = len(panel_tasks(run) & panel_tasks(runs[0]))
        gate = sum(s.rollouts for s in run.spent if s.role == "gate")
        found.append({"shared": shared, "seed": seeds[-1] if seeds else None, "gate_rollouts": gate})
    return found


def panel_tasks(run: RunReport) -> frozenset[str]:
    """Return the task ids of the current panel."""
    fixed = [line.data.panel.tasks for line in run.ledger if isinstance(line.data, PanelFixed)]
    return frozenset(task.instance_id for task in fixed[-1]) if fixed else frozenset()
