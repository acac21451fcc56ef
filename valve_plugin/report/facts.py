"""From a bank's ledger and what this machine kept of its rollouts to the numbers of a report."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from valve_plugin.bank import verify
from valve_plugin.bank.entries import Entry, Judged, PanelFixed
from valve_plugin.bank.entries import Proposed as ProposedEntry
from valve_plugin.bank.evaluated import Point, over_empty, rate
from valve_plugin.bank.measured import measured
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import plain
from valve_plugin.evolve.savings import saved
from valve_plugin.gate.rollout import CUT
from valve_plugin.records import Attempt, is_live
from valve_plugin.report.beyond import beyond
from valve_plugin.report.certify import from_ledger
from valve_plugin.report.provenance import behind
from valve_plugin.report.run import Checkpoint, Line, PanelFacts, Rollout, Run, Size, StreamPoint
from valve_plugin.report.run_cost import clock, spent
from valve_plugin.report.run_items import items
from valve_plugin.report.run_live import live
from valve_plugin.report.run_panel import Kept, came_in, columns, gates, scores
from valve_plugin.rollouts.worker import SCRIPTED_MODEL

_PLACE = re.compile(r"line (\d+)")


def run_facts(store: BankStore, words: Callable[[Entry], str], label: str = "") -> Run:
    """Return everything a report shows of one bank.

    Args:
        store: the bank; its rollouts add the stream's unmixed tasks, patches and costs where this machine has them.
        words: a ledger entry in one sentence.
        label: what to call the run where two are compared; empty: the repository.
    """
    entries = list(store.entries())
    attempts = store.local.attempts()
    calls = list(store.local.timed("calls"))
    kept = Kept(attempts)
    found = measured(entries)
    certificate = from_ledger(found)
    savings = saved(entries, store.local.told("gates"))
    ran_on = beyond(attempts, entries)
    verdicts = gates(entries, certificate.moves, savings, {id_: len(more) for id_, more in ran_on.items()})
    points, whole = stream(entries, attempts, kept)
    faults = verify.verify(store.dir)
    by_line = {int(place[1]): f.message for f in faults if (place := _PLACE.match(f.place))}
    models = sorted({m for m in (*(a.model for a in attempts), *_extractors(entries)) if m})
    return Run(
        label=label or store.bank.repo,
        repo=store.bank.repo,
        simulated=SCRIPTED_MODEL in models,
        models=tuple(models),
        version=store.bank.version,
        principles=len(store.bank.principles),
        skills=len(store.bank.skills),
        gated=any(isinstance(e, Judged) for e in entries),
        panel=_panel(entries),
        stream=points,
        stream_whole=whole,
        gates=verdicts,
        scores=scores(entries),
        checkpoints=checkpoints(found.points),
        sizes=_sizes(entries, points, store),
        columns=columns(entries, kept, ran_on),
        items=items(
            entries, store.bank, attempts, store.local.usage(), behind(entries, attempts, store.local.trajectory)
        ),
        spent=spent(attempts, (call for _, call in calls), entries, store.local.told(CUT)),
        clock=clock(attempts, calls, entries),
        live=live(attempts),
        certificate=certificate,
        ledger=tuple(_line(n, e, words, by_line.get(n, "")) for n, e in enumerate(entries, 1)),
        problems=tuple(f"{f.file}: {f.message}" for f in faults if not _PLACE.match(f.place)),
    )


def stream(entries: Iterable[Entry], attempts: Sequence[Attempt], kept: Kept) -> tuple[tuple[StreamPoint, ...], bool]:
    """Return the stream's tasks in the order attempted, and whether the unmixed ones are among them.

    A person's own task that a proposal was learned from stands in it, where the ledger has the proposal.
    """
    accepted = {moved for e in entries if (moved := came_in(e))}
    proposed = [e for e in entries if isinstance(e, ProposedEntry) and e.attempts]
    grew = {e.proposal.task_id for e in proposed if e.proposal.id in accepted}
    rolled: dict[str, list[Rollout]] = defaultdict(list)
    for a in attempts:
        if a.source == "evolve":
            rolled[a.task_id].append(Rollout(ordinal=a.ordinal, outcome=a.outcome, attempt=a.id))
    noted = {e.proposal.task_id: list(kept.noted(e.attempts)) for e in proposed}
    whole = bool(rolled) and all(task in rolled for task in noted if not is_live(task))
    order = _ordered(list(rolled), list(noted)) if whole else list(noted)
    points: list[StreamPoint] = []
    version = 0
    for position, task in enumerate(order, 1):
        rollouts = rolled[task] if whole and task in rolled else noted[task]
        points.append(_point(task, position, rollouts, version, accepted=task in grew))
        version += task in grew
    return tuple(points), whole


def _ordered(rolled: list[str], noted: Sequence[str]) -> list[str]:
    """Return the tasks that were attempted, each of the others behind the one before it in the ledger."""
    place = len(rolled) if not any(task in rolled for task in noted) else 0
    for task in noted:
        if task not in rolled:
            rolled.insert(place, task)
        place = rolled.index(task) + 1
    return rolled


def checkpoints(points: Iterable[Point]) -> tuple[Checkpoint, ...]:
    """Return the evaluated checkpoints in order."""
    found: list[Checkpoint] = []
    points = list(points)
    for point in points:
        score, gained = rate(point.entry), over_empty(points, point)
        found.append(
            Checkpoint(
                step=point.step,
                version=point.entry.version,
                low=float(score.low),
                high=float(score.high),
                gain=(float(gained.low), float(gained.high)) if gained else None,
                tasks=len(point.entry.holdout),
                rollouts=point.entry.rollouts,
                line=point.reading.line,
            )
        )
    return tuple(found)


def _point(task: str, position: int, rollouts: Sequence[Rollout], version: int, *, accepted: bool) -> StreamPoint:
    return StreamPoint(
        task_id=task,
        position=position,
        passed=sum(r.outcome == "resolved" for r in rollouts),
        graded=sum(r.outcome in ("resolved", "unresolved") for r in rollouts),
        version=version,
        rollouts=tuple(sorted(rollouts, key=lambda r: r.ordinal)),
        accepted=accepted,
    )


def _sizes(entries: Sequence[Entry], points: Sequence[StreamPoint], store: BankStore) -> tuple[Size, ...]:
    """Bank size from the start on, and behind each stream task that made it grow."""
    places = [0, *(p.position for p in points if p.accepted)]
    banks = [store.at(version) for version in range(len(places))]
    return tuple(
        Size(position=place, principles=len(bank.principles), skills=len(bank.skills))
        for place, bank in zip(places, banks, strict=True)
    )


def _panel(entries: Iterable[Entry]) -> PanelFacts | None:
    panels = [e.panel for e in entries if isinstance(e, PanelFixed)]
    if not panels:
        return None
    last = panels[-1]
    return PanelFacts(tasks=len(last.tasks), rollouts=last.rollouts, rho=last.rho, pairing=last.pairing)


def _extractors(entries: Iterable[Entry]) -> Iterable[str]:
    return (e.proposal.model for e in entries if isinstance(e, ProposedEntry))


def _line(number: int, entry: Entry, words: Callable[[Entry], str], problem: str) -> Line:
    data: dict[str, Any] = plain(entry)
    return Line(number=number, type=data.pop("type"), words=words(entry), problem=problem, data=data)
