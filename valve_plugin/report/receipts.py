"""Deciding anew all that a ledger decided, from stored data alone: no key, no network, no rollouts, on any machine.

`bank.verify` finds damage and recomputes verdicts. This also makes every context again, with the bank as it was then,
numbers the rollouts again, sorts every proposal's duplicates again, and derives the certificates. What takes data that
is not here is listed, not passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from msgspec import UnsetType

from valve_plugin.bank import ledger, moves, retrieval
from valve_plugin.bank.entries import Baseline, Entry, Judged, LeftOut, Proposed, Remeasured
from valve_plugin.bank.measured import measured
from valve_plugin.bank.replay import Replay
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import Finding, verify
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError, TaskError, ValveError
from valve_plugin.extract.duplicates import split
from valve_plugin.gate.plan import (
    Cell,
    baseline_plan,
    deployed_share,
    gate_plan,
    left_out_plan,
    panel_settings,
    panel_tasks,
)
from valve_plugin.records import Bank, Context, Merge, PanelOutcome, Proposal, Record, Suppressed, Task, Verdict
from valve_plugin.report.certify import Move, from_ledger
from valve_plugin.tasks import folder
from valve_plugin.tasks.load import load
from valve_plugin.theory.bennett import radius

_NEAR = 0.45  # least similarity of a near-duplicate, eq:impl-dedup
_SETTINGS = "under other settings (top_principles, top_skills), another task set or another retrieval plugin?"


class Receipt(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was recomputed, what of it differs, and what could not be."""

    recomputed: dict[str, int]
    """How many of each kind."""
    findings: tuple[Finding, ...]
    missing: tuple[str, ...]
    """What could not be recomputed, and why."""


@dataclass
class _Walk:
    """The ledger so far, as a store would show it at that line, and what was found."""

    settings: Settings
    tasks: list[Task] | None
    """None: the task set is not here."""
    state: Replay = field(default_factory=Replay)
    seen: list[Entry] = field(default_factory=list)
    names: set[tuple[str, str]] = field(default_factory=set)
    """Kind and name of every item proposed or accepted so far."""
    left_out: set[Merge | Suppressed] = field(default_factory=set)
    """Every duplicate that was decided about so far."""
    count: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("verdicts", "contexts", "duplicates"), 0))
    missing: dict[str, int] = field(default_factory=dict)

    @property
    def bank(self) -> Bank:
        return self.state.bank

    def entries(self) -> Iterator[Entry]:
        return iter(self.seen)

    def current_outcomes(self) -> tuple[PanelOutcome, ...] | None:
        return self.state.outcomes

    def ordinals(self, task_id: str, context_hash: str) -> int:
        return self.state.ordinals.get((task_id, context_hash), 0)

    def lacks(self, what: str, number: int = 1) -> None:
        if number:
            self.missing[what] = self.missing.get(what, 0) + number


def examine(path: Path, tasks: str = "") -> Receipt:
    """Recompute all that a bank directory's ledger decided.

    Args:
        tasks: the task set the panel was chosen from; empty: the one the bank was last used with, if it is here.
    Raises:
        BankNotFoundError: there is no bank.
        TaskError: a task set was named, and it is not there.
    """
    findings = verify(path)
    if any(f.level == "error" for f in findings):
        return Receipt(recomputed={}, findings=tuple(findings), missing=("all: the ledger itself is not intact",))
    store = BankStore.open(path)
    walk = _Walk(store.settings(), _tasks(store, tasks))
    for number, entry in enumerate(store.entries(), start=1):
        findings += [_finding(f"line {number}", problem) for problem in _recomputed(walk, entry)]
        walk.state.feed(entry)
        walk.seen.append(entry)
    moves_ = from_ledger(measured(walk.seen)).moves
    findings += [_finding(f"accept {m.accept}", problem) for m in moves_ for problem in _uncertified(m)]
    missing = tuple(f"{what}: {number}" for what, number in walk.missing.items())
    return Receipt(recomputed={**walk.count, "certificates": len(moves_)}, findings=tuple(findings), missing=missing)


def _recomputed(walk: _Walk, entry: Entry) -> Iterator[str]:
    """What does not come out as it was written. Verdicts were decided anew by `verify`."""
    if isinstance(entry, Proposed):
        yield from _duplicates(walk, entry.proposal)
        yield from _notes(walk, entry)
    elif isinstance(entry, Baseline | Remeasured):
        yield from _measured(walk, entry.result.outcomes, None)
    elif isinstance(entry, LeftOut):
        yield from _left_out(walk, entry)
    elif isinstance(entry, Judged):
        walk.count["verdicts"] += 1
        verdict = entry.verdict
        outcomes = (*verdict.outcomes, *(verdict.confirming or ()))
        yield from _measured(walk, outcomes, walk.state.proposals[verdict.proposal_id], verdict)


def _duplicates(walk: _Walk, proposal: Proposal) -> Iterator[str]:
    """The items that were kept must be new to the bank as it was, and those left out must repeat what they name."""
    new, merges, suppressed = split(proposal.items, walk.bank)
    walk.count["duplicates"] += len(proposal.items)
    if (new, merges, suppressed) != (proposal.items, (), ()):
        yield f"proposal {proposal.id} keeps an item that is a duplicate of, or named like, one the bank had"
    walk.names |= {item.key for item in (*walk.bank.items, *proposal.items)}
    duplicates: list[Merge | Suppressed] = [*proposal.merges, *proposal.suppressed]
    for left in duplicates:
        if left in walk.left_out:
            continue  # of an earlier proposal that this one stands in for, decided against the bank as it was then
        walk.left_out.add(left)
        if isinstance(left.item, UnsetType):
            walk.lacks("duplicates that were left out (older ledgers do not hold their text)")
            yield from _impossible(walk, left)
            continue
        walk.count["duplicates"] += 1
        twin = left.name if isinstance(left, Merge) else left.duplicate_of
        own = [item for item in proposal.items if item.key == (left.kind, twin)]
        _, merges, suppressed = split([*own, left.item], walk.bank)
        if left not in (*merges, *suppressed):
            yield f"{left.kind} {left.item.name!r} is called a duplicate of {twin!r}, which does not come out"


def _impossible(walk: _Walk, left: Merge | Suppressed) -> Iterator[str]:
    """What cannot be true of a duplicate whose text is not stored."""
    if isinstance(left, Merge):
        if (left.kind, left.name) not in {item.key for item in walk.bank.items}:
            yield f"merges into {left.kind} {left.name!r}, which the bank did not have"
    elif (left.kind, left.duplicate_of) not in walk.names or left.similarity < _NEAR:
        found = f"{left.duplicate_of!r}, similarity {left.similarity:.2f}"
        yield f"{left.kind} {left.name!r} is called a duplicate of {found}, which cannot be"


def _notes(walk: _Walk, entry: Proposed) -> Iterator[str]:
    """The contexts of the attempts a proposal was learned from, where its task is in the task set.

    Which attempts there were and how they ended stands in the ledger alone, so nothing here can tell.
    """
    walk.lacks("attempts behind proposals (which, their numbers, how they ended)", len(entry.attempts))
    for note in entry.attempts:
        task = next((t for t in walk.tasks or () if t.instance_id == note.task_id), None)
        if task is None:
            walk.lacks("contexts of attempts (their task is in no task set here)")
            continue
        settings = _pinned(walk)
        if settings is None:
            continue
        walk.count["contexts"] += 1
        context = retrieval.retrieve(settings, walk.bank, task.instance_id, task.problem_statement)
        if context.hash != note.context_hash:
            had = note.context_hash[:12]
            yield f"an attempt at {note.task_id} had context {had}, {context.hash[:12]} comes out; {_SETTINGS}"


def _measured(
    walk: _Walk, outcomes: Sequence[PanelOutcome], proposal: Proposal | None, verdict: Verdict | None = None
) -> Iterator[str]:
    """The contexts and numbers of a measurement's rollouts, and how many contexts are in use after an accept."""
    found = _ready(walk, len(outcomes))
    if found is None:
        return
    settings, members = found
    store = cast(BankStore, walk)  # all that a plan reads of a store, as of this line
    plan = (
        gate_plan(settings, store, members, proposal, _retrieve)
        if proposal
        else baseline_plan(settings, store, members, _retrieve)
    )
    walk.count["contexts"] += len(members)
    yield from _placed(outcomes, _by_task(plan.cells))
    if verdict is None or proposal is None:
        return
    if verdict.reused != plan.reused:
        yield "keeps other outcomes of the current bank than those whose context stays the same"
    enlarged = moves.apply(walk.bank, proposal)
    accepted = verdict.decision == "accept"
    deployed = deployed_share(settings, enlarged, members, plan, _retrieve) if accepted else 0
    if deployed != verdict.deployed:
        yield f"deployed is {verdict.deployed}, and {deployed} panel tasks get the judged context"


def _left_out(walk: _Walk, entry: LeftOut) -> Iterator[str]:
    """Which panel tasks an item changes, and the contexts and numbers of their rollouts without it."""
    found = _ready(walk, len(entry.outcomes))
    if found is None:
        return
    settings, members = found
    plan = left_out_plan(settings, cast(BankStore, walk), members, entry.without, _retrieve)
    walk.count["contexts"] += len(plan.order)
    if plan.order != tuple(dict.fromkeys(o.task_id for o in entry.outcomes)):
        yield f"other panel tasks change without {entry.without[0]} {entry.without[1]} than were run; {_SETTINGS}"
        return
    yield from _placed(entry.outcomes, _by_task(plan.cells))


def _ready(walk: _Walk, rollouts: int) -> tuple[Settings, list[Task]] | None:
    """Settings and tasks of the fixed panel's measurements; None, and noted, where something of them is not here."""
    settings = _pinned(walk)
    if settings is None:
        return None
    if walk.tasks is None:
        walk.lacks("contexts of panel rollouts (the task set is not here; name it with --tasks)", rollouts)
        return None
    assert walk.state.panel is not None  # replay asks for one before any measurement
    try:
        return settings, panel_tasks(walk.state.panel, walk.tasks)
    except TaskError as e:
        walk.lacks(f"contexts of panel rollouts ({e})", rollouts)
        return None


def _placed(outcomes: Sequence[PanelOutcome], cells: Mapping[str, tuple[str, int]]) -> Iterator[str]:
    """The first rollout that ran under another context, or has another number, than it should; one says enough."""
    seen: Counter[str] = Counter()
    for o in outcomes:
        context, first = cells.get(o.task_id, ("", 0))
        if o.context_hash != context:
            yield f"{o.task_id} ran under context {o.context_hash[:12]}, {context[:12]} comes out; {_SETTINGS}"
            return
        if o.ordinal != first + seen[o.task_id]:
            yield f"{o.task_id} has rollout {o.ordinal}, the next unused one is {first + seen[o.task_id]}"
            return
        seen[o.task_id] += 1


def _by_task(cells: Sequence[Cell]) -> dict[str, tuple[str, int]]:
    """Each task's context and first ordinal."""
    return {c.task.instance_id: (c.context.hash, c.ordinal) for c in reversed(cells)}


def _retrieve(*, settings: Settings, bank: Bank, task_id: str, issue: str) -> Context:
    return retrieval.retrieve(settings, bank, task_id, issue)


def _pinned(walk: _Walk) -> Settings | None:
    """The settings of the panel's measurements; None, and noted, where its embedding is not here."""
    if walk.state.panel is None:
        return walk.settings
    try:
        return panel_settings(walk.settings, walk.state.panel)
    except ConfigError:
        walk.lacks(f"measurements whose contexts rest on embedding {walk.state.panel.embedding!r}, which is not here")
        return None


def _tasks(store: BankStore, given: str) -> list[Task] | None:
    where = given or store.settings().tasks or store.local.recall("tasks")
    try:
        return list(load(folder.find(where)).tasks) if where else None
    except ValveError:
        if given:
            raise
        return None


def _uncertified(move: Move) -> Iterator[str]:
    """The defining inequality of the certificate, checked by itself."""
    if move.vacuous:
        return
    slack = radius(move.tasks, move.log_term, move.variance, 1 + move.loss)
    if slack > move.panel_gain + move.loss + 1e-9:
        yield f"a loss of at most {move.loss:.6f} is certified, but the radius is {slack:.6f}"


def _finding(place: str, problem: str) -> Finding:
    return Finding(level="error", file=ledger.FILE_NAME, place=place, message=problem)
