"""Build a report's numbers from a bank's ledger and the rollouts on this machine."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import UnsetType
from msgspec.structs import asdict

from valve_plugin.bank.entries import (
    FAILED_AGAIN,
    AttemptNote,
    Baseline,
    Entry,
    Judged,
    OwnerAct,
    PanelFixed,
    Proposed,
    Remeasured,
    Taken,
    makes_version,
    sets_aside,
)
from valve_plugin.bank.local import LocalStore
from valve_plugin.bank.scripted_bank import is_scripted
from valve_plugin.bank.store import BankStore
from valve_plugin.config import SCRIPTED_MODEL
from valve_plugin.evidence import plan
from valve_plugin.evidence.certify import CertifiedAccept, certify_ledger
from valve_plugin.evidence.cost import clock_time, cost_by_role
from valve_plugin.evidence.evaluations import EvaluatedCheckpoint, gain_over_empty, read_measurements, solve_rate
from valve_plugin.evidence.history import words
from valve_plugin.evidence.summary import (
    Savings,
    advise,
    fallen_by_accept,
    gate_savings,
    proposal_results,
    version_scores,
)
from valve_plugin.evolve.open import LAST_TASKS
from valve_plugin.evolve.trial import ANSWERS
from valve_plugin.gate.panel_run import CUT
from valve_plugin.paths import trials_dir
from valve_plugin.records import Attempt, Bank, Item, Kind, PanelOutcome, Proposal, Verdict, is_live, owner_task
from valve_plugin.report.run import (
    BankSize,
    GateResult,
    HoldoutReading,
    ItemState,
    LedgerLine,
    PanelCell,
    PanelColumn,
    PanelFacts,
    ProposedItem,
    Rollout,
    RunReport,
    SourceAttempt,
    StreamPoint,
    TriedText,
)
from valve_plugin.tasks.names import put_names, task_names

Key = tuple[Kind, str]
_STATES: dict[str, ItemState] = {"accept": "accepted", "reject": "rejected", "indecisive": "waiting"}
LATEST = 20
"""Number of trials in the list."""
_PLACE = re.compile(r"line (\d+)")


class KeptAttempts:
    """The attempts on this machine, found by task, context hash and ordinal."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self._ids = {(a.task_id, a.context_hash, a.ordinal): a.id for a in attempts if a.outcome != "errored"}
        self._rollouts: dict[tuple[int, str, str], Rollout] = {}  # one of each: a long ledger names few

    def rollout(self, o: PanelOutcome | AttemptNote) -> Rollout:
        """Return the rollout, with the id of its attempt if that is kept."""
        known = self._ids.get((o.task_id, o.context_hash, o.ordinal), "")
        cell = (o.ordinal, o.outcome, known)
        if cell not in self._rollouts:
            self._rollouts[cell] = Rollout(ordinal=o.ordinal, outcome=o.outcome, attempt=known)
        return self._rollouts[cell]

    def source(self, note: AttemptNote) -> SourceAttempt:
        """Return a source attempt of a proposal, with its id if it is kept."""
        return SourceAttempt(task_id=note.task_id, **asdict(self.rollout(note)))


def accepted_proposal(entry: Entry) -> str:
    """Return the id of the proposal that this entry accepts, or an empty string."""
    if isinstance(entry, Judged) and entry.verdict.decision == "accept":
        return entry.verdict.proposal_id
    return entry.proposal_id if isinstance(entry, Taken) else ""


def proposed_items(
    entries: Sequence[Entry], bank: Bank, kept: KeptAttempts, uses: Mapping[Key, int]
) -> tuple[ProposedItem, ...]:
    """Return the items of every proposal in ledger order, without proposals that a later one of the task replaces.

    Args:
        uses: number of injections of each item on this machine.
    """
    now = {item.key: item for item in bank.items}
    proposed = {e.proposal.id: (n, e) for n, e in enumerate(entries, 1) if isinstance(e, Proposed)}
    states: dict[str, ItemState] = {}  # of decided proposals
    for act in entries:
        if isinstance(act, Judged):
            states[act.verdict.proposal_id] = _STATES[act.verdict.decision]
        elif isinstance(act, Taken):
            states[act.proposal_id] = "taken"
    made = dict(_made(entries))
    stands = {item.key: made.get(item.created_step) for item in bank.items}  # the proposal that brought it in
    last = {e.proposal.task_id: id_ for id_, (_, e) in proposed.items()}  # a task's last proposal replaces its others
    found: list[ProposedItem] = []
    for line, entry in proposed.values():
        proposal = entry.proposal
        if proposal.id not in states and last[proposal.task_id] != proposal.id:
            continue
        where: dict[str, Any] = {
            "task_id": proposal.task_id,
            "proposal_id": proposal.id,
            "line": line,
            "model": proposal.model,
            "sources": tuple(map(kept.source, entry.attempts)),
        }
        decided = states.get(proposal.id, "waiting")
        for item in proposal.items:
            here = now[item.key] if stands.get(item.key) == proposal.id else None
            found.append(
                ProposedItem(
                    **where,
                    **_text(item),
                    kind=item.kind,
                    name=item.name,
                    state="retired" if decided in ("accepted", "taken") and not here else decided,
                    version=here.created_step if here else None,
                    support=(here or item).support,
                    uses=uses.get(item.key, 0),
                )
            )
        found += _excluded_items(proposal, where)
    return (*found, *_owned_items(entries, now, uses))


def _owned_items(entries: Sequence[Entry], now: Mapping[Key, Item], uses: Mapping[Key, int]) -> Iterable[ProposedItem]:
    """Yield the current items that the bank's owner put in, each from the last act about it."""
    acts = {item.key: (line, e) for line, e in enumerate(entries, 1) if isinstance(e, OwnerAct) for item in e.items}
    for key, (line, entry) in acts.items():
        item = now.get(key)
        if item and item.judged is False:
            yield ProposedItem(
                task_id=owner_task(entry.reason), proposal_id="", line=line, **_text(item), kind=item.kind,
                name=item.name, state="taken", version=item.created_step, support=item.support,
                uses=uses.get(key, 0),
            )  # fmt: skip


def _excluded_items(proposal: Proposal, where: Mapping[str, Any]) -> Iterable[ProposedItem]:
    """Yield a proposal's duplicates and withheld items."""
    merged = [(m, m.item, f"the same text as {m.name}: counts as support") for m in proposal.merges]
    near = [(s, s.item, f"repeats {s.duplicate_of}, similarity {s.similarity:.2f}") for s in proposal.suppressed]
    withheld = [(w, w.item, w.why) for w in proposal.withheld]
    groups: tuple[tuple[ItemState, list[Any]], ...] = (
        ("merged", merged), ("near-duplicate", near), ("withheld", withheld)
    )  # fmt: skip
    for state, group in groups:
        for record, item, why in group:
            yield ProposedItem(**where, **_text(item), kind=record.kind, name=record.name, state=state, why=why)


def _text(item: Item | UnsetType | None) -> dict[str, Any]:
    """Return an item's texts, if the ledger holds them."""
    if not isinstance(item, Item):
        return {}
    return {"text": item.text, "markdown": item.markdown, "scope_hint": item.scope_hint}


def _made(entries: Iterable[Entry]) -> Iterable[tuple[int, str]]:
    """Yield each version that a proposal made, with the proposal's id."""
    version = 0
    for entry in entries:
        version += makes_version(entry)
        if id_ := accepted_proposal(entry):
            yield version, id_


def _speculation(runs: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return what idle workers of all runs made early, and what of it was wasted, in rollouts and USD."""
    told = list(runs)
    return {
        name: sum(run.get(name, 0) for run in told) for name in ("useful", "early", "ended", "unused", "usd") if told
    }


def build_run(store: BankStore, label: str = "") -> RunReport:
    """Return all numbers of one bank's report.

    Args:
        store: the bank. Rollouts on this machine add patches, costs and the stream's tasks that are not mixed.
        label: name of the run in a comparison; if empty, the repository's.
    """
    entries = list(store.entries())
    attempts, unused = store.local.attempts(), store.local.unused()
    calls = list(store.local.read_timed_telemetry("calls"))
    kept = KeptAttempts(attempts)
    seen = read_measurements(entries)
    certificate = certify_ledger(seen)
    points, whole = stream(entries, attempts, kept)
    fallen = fallen_by_accept(entries)
    faults = store.verify()
    by_line = {int(place[1]): f.message for f in faults if (place := _PLACE.match(f.place))}
    extractors = (e.proposal.model for e in entries if isinstance(e, Proposed))
    names = task_names(store.local.recall(LAST_TASKS), attempts)
    odds, outlook = plan.plan_bank(store, seen, attempts)
    models = sorted({m for m in (*(a.model for a in attempts), *extractors) if m})
    return RunReport(
        label=label or store.bank.repo,
        repo=store.bank.repo,
        simulated=SCRIPTED_MODEL in models or is_scripted(store.dir),
        models=tuple(models),
        version=store.bank.version,
        principles=len(store.bank.principles),
        skills=len(store.bank.skills),
        gated=any(isinstance(e, Judged) for e in entries),
        panel=_panel(entries),
        stream=points,
        stream_whole=whole,
        gates=gates(
            entries,
            () if certificate.unmet("panel") else certificate.moves,
            gate_savings(entries, store.local.read_telemetry("gates")),
        ),
        scores=tuple(version_scores(entries)),
        checkpoints=checkpoints(seen.checkpoints),
        sizes=_sizes(points, store),
        columns=columns(entries, kept),
        evaluations=evaluations(seen.checkpoints, kept),
        advice=advise(store.panel(), proposal_results(entries)),
        items=proposed_items(entries, store.bank, kept, store.local.usage()),
        spent=cost_by_role(attempts, (call for _, call in calls), entries, store.local.read_telemetry(CUT), unused),
        speculation=_speculation(store.local.read_telemetry("speculation")),
        clock=clock_time([*attempts, *unused], calls, entries),
        certificate=certificate,
        odds=odds,
        outlook=outlook,
        tasks=names,
        trials=tried_texts(store.bank.repo),
        ledger=tuple(_line(n, e, by_line.get(n, ""), fallen, names) for n, e in enumerate(entries, 1)),
        problems=tuple(f"{f.file}: {f.message}" for f in faults if not _PLACE.match(f.place)),
    )


def stream(
    entries: Iterable[Entry], attempts: Sequence[Attempt], kept: KeptAttempts
) -> tuple[tuple[StreamPoint, ...], bool]:
    """Return the stream's tasks in the order attempted, and whether the tasks that are not mixed are included.

    Live tasks that are the source of a proposal are included, at the proposal's place in the ledger.
    """
    accepted = {id_ for e in entries if (id_ := accepted_proposal(e))}
    proposed = [e for e in entries if isinstance(e, Proposed) and e.attempts and not sets_aside(e, FAILED_AGAIN)]
    before = {(n.task_id, n.context_hash) for e in proposed for n in e.attempts}
    learned = {task for task, _ in before}
    grew = {e.proposal.task_id for e in proposed if e.proposal.id in accepted}
    rolled: dict[str, list[Rollout]] = defaultdict(list)
    for a in attempts:
        if a.source == "evolve" and (a.task_id not in learned or (a.task_id, a.context_hash) in before):  # no screen
            rolled[a.task_id].append(Rollout(ordinal=a.ordinal, outcome=a.outcome, attempt=a.id))
    noted = {e.proposal.task_id: list(map(kept.rollout, e.attempts)) for e in proposed}
    whole = bool(rolled) and all(task in rolled for task in noted if not is_live(task))
    points: list[StreamPoint] = []
    version = 0
    order = list(noted)
    if whole:  # tasks only in the ledger come after the task before them in the ledger
        order = list(rolled)
        place = len(order) if not any(task in rolled for task in noted) else 0
        for task in noted:
            if task not in rolled:
                order.insert(place, task)
            place = order.index(task) + 1
    for position, task in enumerate(order, 1):
        rollouts = rolled[task] if whole and task in rolled else noted[task]
        points.append(
            StreamPoint(
                task_id=task,
                position=position,
                passed=sum(r.outcome == "resolved" for r in rollouts),
                graded=sum(r.outcome != "errored" for r in rollouts),
                version=version,
                rollouts=tuple(sorted(rollouts, key=lambda r: r.ordinal)),
                accepted=task in grew,
            )
        )
        version += task in grew
    return tuple(points), whole


def gates(
    entries: Iterable[Entry], moves: Sequence[CertifiedAccept], savings: Mapping[str, Savings]
) -> tuple[GateResult, ...]:
    """Return every verdict with its gain, which may be an interval.

    Args:
        savings: proposal id -> rollouts that its gate ran on this machine and saved.
    """
    certified = {(m.epoch, m.query): m for m in moves}
    proposals: dict[str, Proposal] = {}
    entries = list(entries)
    fallen = fallen_by_accept(entries)
    found: list[GateResult] = []
    version = 0
    for line, entry in enumerate(entries, 1):
        if isinstance(entry, Proposed):
            proposals[entry.proposal.id] = entry.proposal
        version += makes_version(entry)
        if isinstance(entry, Judged):
            v = entry.verdict
            move = certified.get((v.epoch, v.query)) if v.decision == "accept" else None
            saved = savings.get(v.proposal_id) if v.decision != "indecisive" else None
            worse = fallen.get(v.proposal_id, ()) if v.decision == "accept" else ()
            where = {"number": len(found) + 1, "line": line, "version": version, "worse": worse}
            found.append(_gate(v, proposals.get(v.proposal_id), move, saved, where))
    return tuple(found)


def _gate(
    v: Verdict, proposal: Proposal | None, move: CertifiedAccept | None, saved: Savings | None, where: dict[str, Any]
) -> GateResult:
    total = v.n_tasks * v.rollouts
    low, high, first, margin = (passes / total for passes in (*v.net, v.first_net, v.needed))
    items: tuple[str, ...] = ()
    if proposal:
        items = tuple(f"{i.kind}: {i.name}" for i in proposal.items)
        items += tuple(f"without {kind}: {name}" for kind, name in proposal.removed)
    return GateResult(
        **where,
        epoch=v.epoch,
        query=v.query,
        proposal_id=v.proposal_id,
        task_id=proposal.task_id if proposal else "",
        items=items,
        decision=v.decision,
        pairing=v.pairing,
        low=low,
        high=high,
        first=first if v.confirming else None,
        margin=margin,
        reference=v.current_passes,
        floor=move.floor if move else None,
        vacuous=bool(move and move.vacuous),
        ran=v.ran,
        saved=saved.rollouts if saved else 0,
        saved_usd=saved.usd if saved else 0.0,
        again=len(v.confirming or ()),
        total=2 * total if v.confirming else total,
        kept=len(v.reused),
        unknown=sum(o.outcome == "errored" for o in (*v.outcomes, *(v.confirming or ()))),
    )


def columns(entries: Iterable[Entry], kept: KeptAttempts) -> tuple[PanelColumn, ...]:
    """Return each measurement of the panel with the rollouts of every task in it."""
    found: list[PanelColumn] = []
    counts: Counter[str] = Counter()
    reference = ""
    for line, entry in enumerate(entries, 1):
        if isinstance(entry, Baseline | Remeasured):
            start = isinstance(entry, Baseline)
            name = "Start" if start else "Recheck"
            counts[name] += 1
            label = "Start" if (name, counts[name]) == ("Start", 1) else f"{name} {counts[name]}"
            cells = _cells(entry.result.outcomes, kept)
            found.append(PanelColumn(label=label, kind="baseline" if start else "measurement", line=line, cells=cells))
            reference = label if start else reference
        elif isinstance(entry, Judged):
            counts["Gate"] += 1
            found += _gate_columns(f"Gate {counts['Gate']}", line, entry.verdict, kept, reference)
            reference = found[-1].label if entry.verdict.decision == "accept" else reference
    return tuple(found)


def _gate_columns(label: str, line: int, v: Verdict, kept: KeptAttempts, against: str) -> list[PanelColumn]:
    """Return a gate's columns: its candidate and its repeat. An accept keeps the outcomes of the last one."""
    stages = [(label, v.outcomes), *([(f"{label} repeat", v.confirming)] if v.confirming else [])]
    reused = _cells(v.reused, kept, reused=True)
    return [
        PanelColumn(
            label=name, kind="gate", line=line, decision=v.decision, against=against,
            cells=(*_cells(outcomes, kept), *reused),
        )
        for name, outcomes in stages
    ]  # fmt: skip


def evaluations(points: Sequence[EvaluatedCheckpoint], kept: KeptAttempts) -> tuple[PanelColumn, ...]:
    """Return each evaluated checkpoint with the rollouts of every holdout task."""
    return tuple(
        PanelColumn(
            label=f"Version {p.entry.version}", kind="evaluation", line=p.line, cells=_cells(p.entry.outcomes, kept)
        )
        for p in points
    )


def _cells(outcomes: Iterable[PanelOutcome], kept: KeptAttempts, *, reused: bool = False) -> tuple[PanelCell, ...]:
    by_task: dict[str, list[Rollout]] = defaultdict(list)
    for o in outcomes:
        by_task[o.task_id].append(kept.rollout(o))
    return tuple(PanelCell(task_id=task, rollouts=tuple(rollouts), kept=reused) for task, rollouts in by_task.items())


def checkpoints(points: Sequence[EvaluatedCheckpoint]) -> tuple[HoldoutReading, ...]:
    """Return the evaluated checkpoints in order."""
    found: list[HoldoutReading] = []
    for point in points:
        score, gained = solve_rate(point.entry), gain_over_empty(points, point)
        found.append(
            HoldoutReading(
                step=point.step,
                version=point.entry.version,
                low=float(score.low),
                high=float(score.high),
                gain=(float(gained.low), float(gained.high)) if gained else None,
                tasks=len(point.entry.holdout),
                rollouts=point.entry.rollouts,
                line=point.line,
            )
        )
    return tuple(found)


def tried_texts(repo: str) -> tuple[TriedText, ...]:
    """Return what `valve try` last answered about each text in a repository, on this machine."""
    log = LocalStore(trials_dir(repo)).read_timed_telemetry(ANSWERS)
    found: dict[str, TriedText] = {}
    for at, a in reversed(list(log)):
        answer = TriedText(recorded_at=at, verdict=str(a["verdict"]), pairs=int(a["pairs"]))
        found.setdefault(str(a.get("text", answer.verdict)), answer)
    return tuple(found.values())[:LATEST]


def _sizes(points: Sequence[StreamPoint], store: BankStore) -> tuple[BankSize, ...]:
    """Return the bank's size at the start and after each stream task with an accepted proposal."""
    places = [0, *(p.position for p in points if p.accepted)]
    banks = [(place, store.at(version)) for version, place in enumerate(places)]
    return tuple(
        BankSize(position=place, principles=len(bank.principles), skills=len(bank.skills)) for place, bank in banks
    )


def _panel(entries: Iterable[Entry]) -> PanelFacts | None:
    panels = [e.panel for e in entries if isinstance(e, PanelFixed)]
    if not panels:
        return None
    last = panels[-1]
    return PanelFacts(tasks=len(last.tasks), rollouts=last.rollouts, rho=last.rho, pairing=last.pairing)


def _line(
    number: int, entry: Entry, problem: str, fallen: Mapping[str, Sequence[str]], names: Mapping[str, str]
) -> LedgerLine:
    tag, said = str(type(entry).__struct_config__.tag), put_names(words(entry, fallen=fallen), names)
    return LedgerLine(number=number, type=tag, words=said, problem=problem, data=entry)
