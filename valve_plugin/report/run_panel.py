"""What the panel measured: gates, columns of the heatmap, scores by version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Literal

from msgspec.structs import replace

from valve_plugin.bank.entries import AttemptNote, Baseline, Entry, Judged, Remeasured, Taken
from valve_plugin.bank.entries import Proposed as ProposedEntry
from valve_plugin.evolve.savings import Saved
from valve_plugin.records import Attempt, PanelOutcome, Proposal, Verdict
from valve_plugin.report.certify import Move
from valve_plugin.report.run import REPEAT, Cell, Column, Gate, Rollout, Score


class Kept:
    """The attempts this machine has, found by what the ledger says of a rollout."""

    def __init__(self, attempts: Iterable[Attempt]) -> None:
        self._ids = {(a.task_id, a.context_hash, a.ordinal): a.id for a in attempts if a.outcome != "errored"}

    def rollout(self, o: PanelOutcome | AttemptNote) -> Rollout:
        """Return the rollout with the id of its attempt, where that is kept."""
        known = self._ids.get((o.task_id, o.context_hash, o.ordinal), "")
        return Rollout(ordinal=o.ordinal, outcome=o.outcome, attempt=known)

    def noted(self, notes: Iterable[AttemptNote]) -> tuple[Rollout, ...]:
        """Return the rollouts behind a proposal."""
        return tuple(map(self.rollout, notes))


def came_in(entry: Entry) -> str:
    """Return the id of the proposal that this entry brought into the bank; empty: none."""
    if isinstance(entry, Judged) and entry.verdict.decision == "accept":
        return entry.verdict.proposal_id
    return entry.proposal_id if isinstance(entry, Taken) else ""


def gates(
    entries: Iterable[Entry], moves: Sequence[Move], savings: Mapping[str, Saved], kept: Mapping[str, int]
) -> tuple[Gate, ...]:
    """Return every verdict with its gain, or the interval it lies in.

    Args:
        savings: proposal id -> what its decided gate ran here, rollouts beyond its decisive prefix included, and saved.
        kept: proposal id -> of its rollouts kept here, those that the verdict does not name; they count where known.
    """
    certified = {(m.epoch, m.query): m for m in moves}
    proposals: dict[str, Proposal] = {}
    found: list[Gate] = []
    version = 0
    for number, entry in enumerate(entries, 1):
        if isinstance(entry, ProposedEntry):
            proposals[entry.proposal.id] = entry.proposal
        elif isinstance(entry, Judged):
            version += entry.verdict.decision == "accept"
            v = entry.verdict
            move = certified.get((v.epoch, v.query)) if v.decision == "accept" else None
            gate = _gate(len(found) + 1, number, v, proposals.get(v.proposal_id), move, version)
            found.append(gate if v.decision == "indecisive" else _saving(gate, savings.get(v.proposal_id), kept))
    return tuple(found)


def _saving(gate: Gate, known: Saved | None, kept: Mapping[str, int]) -> Gate:
    """With what ran on when its verdict was certain, and what was saved."""
    rest = gate.total - gate.kept - gate.ran
    beyond = min(rest, kept.get(gate.proposal_id, max(0, known.ran - gate.ran) if known else 0))
    usd = known.usd / known.rollouts * (rest - beyond) if known and known.rollouts else 0.0
    return replace(gate, beyond=beyond, saved=rest - beyond, saved_usd=usd)


def columns(
    entries: Iterable[Entry], kept: Kept, more: Mapping[str, Iterable[Attempt]] | None = None
) -> tuple[Column, ...]:
    """Return each measurement with the rollouts of every task it evaluated.

    Args:
        more: proposal id -> rollouts of its gate that its verdict does not name.
    """
    found: list[Column] = []
    counts: Counter[str] = Counter()
    reference = ""
    for number, entry in enumerate(entries, 1):
        if isinstance(entry, Baseline | Remeasured):
            name, kind = _KINDS[type(entry)]
            counts[name] += 1
            label = "Start" if (name, counts[name]) == ("Start", 1) else f"{name} {counts[name]}"
            cells = _cells(entry.result.outcomes, kept, reused=False)
            found.append(Column(label=label, kind=kind, line=number, cells=cells))
            reference = label if isinstance(entry, Baseline) else reference
        elif isinstance(entry, Judged):
            counts["Gate"] += 1
            judged = _judged(f"Gate {counts['Gate']}", number, entry.verdict, kept, reference)
            judged[-1] = _with(judged[-1], (more or {}).get(entry.verdict.proposal_id, ()))
            found += judged
            reference = judged[-1].label if entry.verdict.decision == "accept" else reference
    return tuple(found)


_KINDS: dict[type, tuple[str, Literal["baseline", "measurement"]]] = {
    Baseline: ("Start", "baseline"),
    Remeasured: ("Recheck", "measurement"),
}


def _judged(label: str, line: int, v: Verdict, kept: Kept, against: str) -> list[Column]:
    """A gate's columns: its candidate, and its repeat, which is what an accept carries on."""
    stages = [(label, v.outcomes), *([(f"{label}{REPEAT}", v.confirming)] if v.confirming else [])]
    reused = _cells(v.reused, kept, reused=True)
    return [
        Column(
            label=name,
            kind="gate",
            line=line,
            decision=v.decision,
            against=against,
            cells=(*_cells(outcomes, kept, reused=False), *reused),
        )
        for name, outcomes in stages
    ]


def _with(column: Column, more: Iterable[Attempt]) -> Column:
    """A gate's last column with what ran on when its verdict was certain."""
    cells = {cell.task_id: cell for cell in column.cells}
    for a in more:
        cell = cells.get(a.task_id, Cell(task_id=a.task_id, rollouts=()))
        late = Rollout(ordinal=a.ordinal, outcome=a.outcome, attempt=a.id)
        cells[a.task_id] = replace(cell, late=(*cell.late, late))
    return replace(column, cells=tuple(cells.values()))


def scores(entries: Iterable[Entry]) -> tuple[Score, ...]:
    """Return each version's complete panel score: baselines, then accepts."""
    found: list[Score] = []
    version = 0
    for entry in entries:
        if isinstance(entry, Baseline):
            found.append(Score(version=version, passes=entry.result.passes, rollouts=len(entry.result.outcomes)))
        elif isinstance(entry, Judged) and entry.verdict.decision == "accept":
            version += 1
            v = entry.verdict
            passes = sum(o.outcome == "resolved" for o in v.measured)
            found.append(Score(version=version, passes=passes, rollouts=len(v.measured)))
    return tuple(found)


def _gate(number: int, line: int, v: Verdict, proposal: Proposal | None, move: Move | None, version: int) -> Gate:
    total = v.n_tasks * v.rollouts
    low, high = v.net
    judged = (*v.outcomes, *(v.confirming or ()))
    return Gate(
        number=number,
        line=line,
        epoch=v.epoch,
        query=v.query,
        proposal_id=v.proposal_id,
        task_id=proposal.task_id if proposal else "",
        items=_moves(proposal) if proposal else (),
        decision=v.decision,
        pairing=v.pairing,
        low=_rate(low, total),
        high=_rate(high, total),
        first=_rate(v.first_net, total) if v.confirming else None,
        margin=_rate(v.needed, total),
        reference=v.current_passes,
        floor=move.floor if move else None,
        vacuous=bool(move and move.vacuous),
        ran=v.ran,
        again=len(v.confirming or ()),
        total=2 * total if v.confirming else total,
        kept=len(v.reused),
        unknown=sum(o.outcome == "errored" for o in judged),
        version=version,
    )


def _moves(proposal: Proposal) -> tuple[str, ...]:
    adds = tuple(f"{i.kind}: {i.name}" for i in proposal.items)
    return adds + tuple(f"without {kind}: {name}" for kind, name in proposal.removed)


def _rate(passes: int, total: int) -> float:
    return float(Fraction(passes, total))


def _cells(outcomes: Sequence[PanelOutcome], kept: Kept, *, reused: bool) -> tuple[Cell, ...]:
    tasks = dict.fromkeys(o.task_id for o in outcomes)
    by_task: dict[str, list[Rollout]] = {task: [] for task in tasks}
    for o in outcomes:
        by_task[o.task_id].append(kept.rollout(o))
    return tuple(Cell(task_id=task, rollouts=tuple(rollouts), kept=reused) for task, rollouts in by_task.items())
