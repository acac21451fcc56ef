"""Recompute all decisions in a ledger from stored data: without keys, network or rollouts, on any machine.

`bank.verify` finds damage and recomputes verdicts. This module also recomputes the contexts of attempts, panels and
readings of the holdout (with the bank version of that time), rollout numbers, the order of panel tasks, the content of
panel and holdout tasks, every proposal's duplicates and what its items say about their attempts, and the certificates.
Checks that need data which is not here are listed as missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from msgspec import UnsetType

from valve_plugin import records
from valve_plugin.bank import entries, ledger, moves
from valve_plugin.bank.replay import Replay
from valve_plugin.bank.store import BankStore, LedgerState
from valve_plugin.bank.verify import BankFinding, verify
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError, TaskError, ValveError
from valve_plugin.evidence.certify import certify_ledger
from valve_plugin.evidence.evaluations import read_measurements
from valve_plugin.extract.duplicates import sort_duplicates
from valve_plugin.gate.plan import (
    Plan,
    Retrieve,
    baseline_plan,
    deployed_share,
    gate_plan,
    left_out_plan,
    panel_settings,
    panel_tasks,
    reaches,
    screen_context,
)
from valve_plugin.retrieval import contexts
from valve_plugin.tasks import task_set
from valve_plugin.theory import panel_order

_SETTINGS = "were the settings (top_principles, top_skills), the task set or the retrieval plugin different?"


class Receipt(records.Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of a recomputation."""

    recomputed: dict[str, int]
    """Number of recomputed results of each kind."""
    findings: tuple[BankFinding, ...]
    """Results that differ from the ledger, and damage."""
    missing: tuple[str, ...]
    """Results that could not be recomputed, with the reason."""


@dataclass
class _LedgerReader(LedgerState):
    """The ledger up to one line, and counts of the checks."""

    settings: Settings
    tasks: list[records.Task] | None
    """Tasks of the task set; None if it is not here."""
    retrieve: Retrieve
    taught: bool
    replayed: Replay = field(default_factory=lambda: Replay(trusting=True))  # `verify` was first
    seen: list[entries.Entry] = field(default_factory=list)
    left_out: set[records.Merge | records.Suppressed] = field(default_factory=set)
    """Every duplicate so far."""
    count: Counter[str] = field(default_factory=lambda: Counter(verdicts=0, contexts=0, duplicates=0))
    missing: Counter[str] = field(default_factory=Counter)

    @cached_property
    def by_id(self) -> dict[str, records.Task]:
        return {task.instance_id: task for task in self.tasks or ()}

    @property
    def state(self) -> Replay:
        return self.replayed

    def context(self, settings: Settings, bank: records.Bank, task: records.Task) -> records.Context:
        """Return what a bank gives for a task."""
        return self.retrieve(settings=settings, bank=bank, task_id=task.instance_id, issue=task.problem_statement)

    def panel_settings(self) -> Settings | None:
        """Return the settings of the panel's measurements, or None (counted as missing) without its embedding."""
        panel = self.state.panel
        if panel is None:
            return self.settings
        try:
            return panel_settings(self.settings, panel)
        except ConfigError:
            self.missing[f"measurements with contexts from embedding {panel.embedding!r}, which is not here"] += 1
            return None

    def measured_panel(self, rollouts: int) -> tuple[Settings, list[records.Task]] | None:
        """Return settings and tasks of a panel measurement, or None (counted as missing) if they are not here."""
        settings = self.panel_settings()
        if settings is None:
            return None
        if self.tasks is None:
            reason = "the task set is not here; name it with --tasks"
        else:
            assert self.state.panel is not None  # replay refuses a measurement without a panel
            try:
                return settings, panel_tasks(self.state.panel, self.tasks)
            except TaskError as e:
                reason = str(e)
        self.missing[f"contexts of panel rollouts ({reason})"] += rollouts
        return None


def examine(path: Path, tasks: str = "", retrieve: Retrieve = contexts.retrieve, *, taught: bool = False) -> Receipt:
    """Recompute all decisions in a bank directory's ledger.

    Args:
        tasks: the panel's task set; if empty, the task set the bank was last used with, if it is here.
        retrieve: what composed the contexts.
        taught: another learner than VALVE made the attempts, under texts that are not in the ledger.

    Raises:
        BankNotFoundError: there is no bank.
        TaskError: the named task set does not exist.
    """
    findings = verify(path)
    if any(f.level == "error" for f in findings):
        return Receipt(recomputed={}, findings=tuple(findings), missing=("all: the ledger is damaged",))
    store = BankStore.open(path)
    reader = _LedgerReader(store.settings(), _tasks(store, tasks), retrieve, taught)
    for number, entry in enumerate(store.entries(), start=1):
        findings += [
            BankFinding(level="error", file=ledger.FILE_NAME, place=f"line {number}", message=problem)
            for problem in _entry_problems(reader, entry)
        ]
        reader.state.feed(entry)
        reader.seen.append(entry)
    certified = certify_ledger(read_measurements(reader.seen)).moves
    return Receipt(
        recomputed={**reader.count, "certificates": len(certified)},
        findings=tuple(findings),
        missing=tuple(f"{what}: {number}" for what, number in reader.missing.items() if number),
    )


def _entry_problems(reader: _LedgerReader, entry: entries.Entry) -> Iterator[str]:
    """Yield what differs from an entry when it is recomputed. `verify` has already recomputed the verdicts."""
    if isinstance(entry, entries.Proposed):
        yield from _item_problems(reader, entry)
        yield from _aside_problems(reader, entry)
        yield from _attempt_problems(reader, entry)
    elif isinstance(entry, entries.PanelFixed):
        yield from _content_problems(reader, entry.panel.tasks)
    elif isinstance(entry, entries.Evaluated):
        yield from _content_problems(reader, entry.holdout)
        yield from _reading_problems(reader, entry)
    elif isinstance(entry, entries.Baseline | entries.Remeasured):
        if known := reader.measured_panel(len(entry.result.outcomes)):
            reader.count["contexts"] += len(known[1])
            plan = baseline_plan(known[0], reader, known[1], reader.retrieve)
            yield from _rollout_problems(entry.result.outcomes, plan)
    elif isinstance(entry, entries.LeftOut):
        yield from _left_out_problems(reader, entry)
    elif isinstance(entry, entries.Judged):
        reader.count["verdicts"] += 1
        yield from _verdict_problems(reader, entry.verdict)


def _item_problems(reader: _LedgerReader, entry: entries.Proposed) -> Iterator[str]:
    """Check that a proposal's items were new to the bank, that its duplicates repeat the item they name, and passes."""
    proposal = entry.proposal
    reader.count["duplicates"] += len(proposal.items)
    exact = records.is_owners(proposal.task_id)
    if sort_duplicates(proposal.items, reader.bank, proposal.removed, exact=exact) != (proposal.items, (), ()):
        yield f"proposal {proposal.id} has an item that is a duplicate, or has the name, of an item in the bank"
    duplicates: list[records.Merge | records.Suppressed] = [*proposal.merges, *proposal.suppressed]
    for left in duplicates:
        if left in reader.left_out:
            continue  # copied from the earlier proposal that this one replaces, and checked there
        reader.left_out.add(left)
        if isinstance(left.item, UnsetType):
            reader.missing["duplicates (older ledgers do not contain their text)"] += 1
            continue
        reader.count["duplicates"] += 1
        twin = left.name if isinstance(left, records.Merge) else left.duplicate_of
        own = [item for item in proposal.items if item.key == (left.kind, twin)]
        _, merges, suppressed = sort_duplicates([*own, left.item], reader.bank, proposal.removed, exact=exact)
        if left not in (*merges, *suppressed):
            yield f"{left.kind} {left.item.name!r} is recorded as a duplicate of {twin!r}, but it is not one"
    # Items that were learned from these attempts have their passes. A proposal without a prompt of ours comes from
    # a plugin, whose items may count otherwise.
    tasks = {note.task_id for note in entry.attempts}
    proposed = [left.item for left in duplicates if not isinstance(left.item, UnsetType)]
    for item in (*proposal.items, *proposed):
        if proposal.prompt_hash and tasks == set(item.source_tasks):
            graded = [n.outcome for n in entry.attempts if n.outcome in ("resolved", "unresolved")]
            found = graded.count("resolved"), len(graded)
            if (item.passes, item.attempts) != found:
                said, of = (f"{passes} of {attempts}" for passes, attempts in ((item.passes, item.attempts), found))
                yield f"{item.kind} {item.name!r} says that {said} source attempts passed, but {of} did"


def _attempt_problems(reader: _LedgerReader, entry: entries.Proposed) -> Iterator[str]:
    """Check the contexts of a proposal's source attempts, if their task is in the task set.

    The choice of attempts and their outcomes are only in the ledger, so they cannot be checked.
    """
    reader.missing["source attempts of proposals (their choice, numbers and outcomes)"] += len(entry.attempts)
    screened = reader.state.proposals.get(entries.sets_aside(entry, entries.FAILED_AGAIN))
    for note in entry.attempts:
        task = None if reader.taught else reader.by_id.get(note.task_id)
        if task is None:
            why = "their texts are not in the ledger" if reader.taught else "their task is not in the task set"
            reader.missing[f"contexts of attempts ({why})"] += 1
            continue
        settings = reader.panel_settings()
        if settings is None:
            continue
        reader.count["contexts"] += 1
        context = reader.context(settings, reader.bank, task)
        if screened:
            context = screen_context(settings, reader.bank, task, screened, reader.retrieve)
        if context.hash != note.context_hash:
            recorded = note.context_hash[:12]
            yield f"an attempt at {note.task_id} had context {recorded}, recomputed: {context.hash[:12]}; {_SETTINGS}"


def _aside_problems(reader: _LedgerReader, entry: entries.Proposed) -> Iterator[str]:
    """Check that no panel task retrieves what was set aside for that reason, and that a failed screen failed."""
    screened = reader.state.proposals.get(entries.sets_aside(entry, entries.FAILED_AGAIN))
    *passed, last = [(n.task_id, n.outcome == "resolved") for n in entry.attempts] or [("", False)]
    if screened and (set(passed) - {(screened.task_id, True)} or last != (screened.task_id, False)):
        yield f"proposal {screened.id} was set aside, but its attempts do not end with their first failure at its task"
    known = reader.state.proposals.get(entries.sets_aside(entry, entries.UNREACHED))
    if known and (found := reader.measured_panel(0)):
        settings, tasks = found
        if reaches(settings, reader.bank, tasks, known, reader.retrieve):
            yield f"proposal {known.id} was set aside, but panel tasks retrieve it; {_SETTINGS}"


def _content_problems(reader: _LedgerReader, pinned: Sequence[records.PanelTask]) -> Iterator[str]:
    """Check that panel or holdout tasks are those of the task set."""
    for pin in pinned:
        task = reader.by_id.get(pin.instance_id)
        if task and task.content_hash != pin.content_hash:
            now = f"{task.content_hash[:12]} in the task set"
            yield f"{pin.instance_id} has content {pin.content_hash[:12]}, but {now}; is it another task set?"


def _reading_problems(reader: _LedgerReader, entry: entries.Evaluated) -> Iterator[str]:
    """Check the contexts of a reading of the holdout. Its outcomes are only in the ledger."""
    settings, bank = reader.panel_settings(), reader.state.banks[entry.version]
    if settings is None:
        return
    if entry.only is not None:
        bank = moves.single_item_bank(bank, entry.only)
    hashes: dict[str, str] = {}
    for pin in entry.holdout:
        if task := reader.by_id.get(pin.instance_id):
            hashes[pin.instance_id] = reader.context(settings, bank, task).hash
        else:
            reader.missing["contexts of holdout rollouts (their task is not in the task set)"] += entry.rollouts
    reader.count["contexts"] += len(hashes)
    for o in entry.outcomes:
        if hashes.get(o.task_id, o.context_hash) != o.context_hash:
            context = hashes[o.task_id][:12]
            yield f"{o.task_id} ran under context {o.context_hash[:12]}, recomputed: {context}; {_SETTINGS}"
            return


def _verdict_problems(reader: _LedgerReader, verdict: records.Verdict) -> Iterator[str]:
    """Check the contexts and numbers of a gate's rollouts, and how many judged contexts are in use after an accept."""
    outcomes = (*verdict.outcomes, *(verdict.confirming or ()))
    state = reader.state
    assert state.panel is not None  # replay refuses a verdict without a panel
    ids = [task.instance_id for task in state.panel.tasks]
    if verdict.order != panel_order.task_order(ids, state.recorded, state.outcomes or ()):
        yield "its tasks are in another order than the one that the earlier lines give"
    found = reader.measured_panel(len(outcomes))
    if found is None:
        return
    settings, tasks = found
    proposal = reader.state.proposals[verdict.proposal_id]
    plan = gate_plan(settings, reader, tasks, proposal, reader.retrieve)
    reader.count["contexts"] += len(tasks)
    yield from _rollout_problems(outcomes, plan)
    if verdict.reused != plan.reused:
        yield "reuses other outcomes of the current bank than those with an unchanged context"
    deployed = 0
    if verdict.decision == "accept":
        deployed = deployed_share(settings, moves.apply(reader.bank, proposal), tasks, plan, reader.retrieve)
    if deployed != verdict.deployed:
        yield f"deployed is {verdict.deployed}, but {deployed} panel tasks get the judged context"


def _left_out_problems(reader: _LedgerReader, entry: entries.LeftOut) -> Iterator[str]:
    """Check which panel tasks an item changes, and the contexts and numbers of their rollouts without it."""
    found = reader.measured_panel(len(entry.outcomes))
    if found is None:
        return
    settings, tasks = found
    plan = left_out_plan(settings, reader, tasks, entry.without, reader.retrieve)
    reader.count["contexts"] += len(plan.order)
    if plan.order != tuple(dict.fromkeys(o.task_id for o in entry.outcomes)):
        yield f"without {entry.without[0]} {entry.without[1]} other panel tasks change than those that ran; {_SETTINGS}"
        return
    yield from _rollout_problems(entry.outcomes, plan)


def _rollout_problems(outcomes: Sequence[records.PanelOutcome], plan: Plan) -> Iterator[str]:
    """Yield the first rollout with a wrong context or number; one is enough."""
    cells = {c.task.instance_id: (c.context.hash, c.ordinal) for c in reversed(plan.cells)}  # each task's first
    seen: Counter[str] = Counter()
    for o in outcomes:
        context, first = cells.get(o.task_id, ("", 0))
        if o.context_hash != context:
            yield f"{o.task_id} ran under context {o.context_hash[:12]}, recomputed: {context[:12]}; {_SETTINGS}"
            return
        if o.ordinal != first + seen[o.task_id]:
            yield f"{o.task_id} has rollout {o.ordinal}, expected {first + seen[o.task_id]}"
            return
        seen[o.task_id] += 1


def _tasks(store: BankStore, given: str) -> list[records.Task] | None:
    where = given or store.settings().tasks or store.local.recall("tasks")
    try:
        return list(task_set.load(task_set.find(where)).tasks) if where else None
    except ValveError:
        if given:
            raise
        return None
