"""What a run took: by role and by phase, and by the clock, as recorded on this machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from valve_plugin.bank.entries import Baseline, Entry, Evaluated, Judged, LeftOut, Proposed, Remeasured
from valve_plugin.bank.evaluated import path
from valve_plugin.records import Attempt
from valve_plugin.report.run_spent import APART, CUT_SHORT, Clock, Phase, Spent
from valve_plugin.theory.budget import ROLES, Role, by_role

Rolled = tuple[str, str, int]
"""Task, context hash and ordinal of a rollout: unique, since ordinals are never reused."""
Place = tuple[Role, str]
"""Role and phase."""
_ROLE_OF: dict[str, Role] = {"evolve": "solver", "panel": "gate", "eval": "evaluation"}
_ELSE: dict[Role, str] = {
    "solver": "tasks that all attempts solved, or none",
    "gate": "beyond what decided a verdict",
    "evaluation": "of readings that are not complete",
}
_LOST = "errored, tried again"
_CALLS: Place = ("extractor", "reflection")


def places(entries: Iterable[Entry]) -> dict[Rolled, Place]:
    """Return what each rollout that a ledger names was for; where it names one twice, the first."""
    found: dict[Rolled, Place] = {}
    for entry in entries:
        for place, notes in _named(entry):
            for note in notes:
                found.setdefault((note.task_id, note.context_hash, note.ordinal), place)
    return found


def spent(
    attempts: Iterable[Attempt],
    calls: Iterable[Mapping[str, Any]],
    entries: Sequence[Entry],
    cut: Iterable[Mapping[str, Any]] = (),
) -> tuple[Spent, ...]:
    """Return what the run took by role and phase; roles that did nothing are left out, and a person's own live runs.

    What a rollout took is kept as of the panel, whoever asked for it. The ledger knows: A/A and the bank without one
    item are measurement.

    Args:
        attempts: rollouts kept on this machine.
        calls: records of the extractor's calls.
        entries: the ledger's.
        cut: records of rollouts that were ended before they were done; what they cost is known as far as it was noted.
    """
    known = places(entries)
    records: dict[Place, list[dict[str, Any]]] = defaultdict(list)
    for a in attempts:
        if a.source != "live":
            records[_place(a, known)].append({"cost_usd": a.cost_usd, "seconds": a.seconds})
    for one in cut:
        if "cost_usd" in one and one.get("source") in _ROLE_OF:
            records[_ROLE_OF[one["source"]], CUT_SHORT].append(dict(one))
    for call in calls:
        records[_CALLS].append(dict(call))
    return tuple(_role(role, records) for role in ROLES if any(place[0] == role for place in records))


def clock(
    attempts: Iterable[Attempt], calls: Iterable[tuple[float, Mapping[str, Any]]], entries: Sequence[Entry]
) -> Clock | None:
    """Return the wall-clock hours in which something of the run ran, and of what looks at it; None: not all is known.

    Args:
        attempts: rollouts kept on this machine; `recorded_at` is when one ended.
        calls: when each of the extractor's calls ended, in seconds since the epoch, and its record.
        entries: the ledger's.

    Source: tab:main-time, tab:ablation-time (held-out evaluation excluded).
    """
    entries = list(entries)
    known = places(entries)
    own = [(at, float(call.get("seconds", 0.0))) for at, call in calls]
    apart: list[tuple[float, float]] = []
    for a in attempts:
        if a.source != "live":
            (apart if _place(a, known)[0] in APART else own).append((a.recorded_at, a.seconds))
    if not own or any(not at for at, seconds in (*own, *apart) if seconds):
        return None
    return Clock(hours=busy(own), apart=busy(apart), steps=path(entries)[-1].step)


def busy(spans: Iterable[tuple[float, float]]) -> float:
    """Return for how many hours at least one of these ran; time in which none did is left out.

    Args:
        spans: when each ended, and how long it took, in seconds.
    """
    seconds, until = 0.0, float("-inf")
    for start, end in sorted((at - took, at) for at, took in spans):
        seconds += max(0.0, end - max(start, until))
        until = max(until, end)
    return round(seconds / 3600, 6)


def _named(entry: Entry) -> Iterable[tuple[Place, Iterable[Any]]]:
    """What a ledger line says about rollouts."""
    if isinstance(entry, Proposed):
        yield ("solver", "tasks learned from"), entry.attempts
    elif isinstance(entry, Baseline):
        yield ("gate", "baselines"), entry.result.outcomes
    elif isinstance(entry, Judged):
        yield ("gate", "candidates"), entry.verdict.outcomes
        yield ("gate", "repeats of apparent accepts"), entry.verdict.confirming or ()
    elif isinstance(entry, Remeasured):
        yield ("measurement", "the bank once more (A/A)"), entry.result.outcomes
    elif isinstance(entry, LeftOut):
        yield ("measurement", "the bank without one item"), entry.outcomes
    elif isinstance(entry, Evaluated):
        yield ("evaluation", "single items" if entry.only else "versions"), entry.outcomes


def _place(a: Attempt, known: Mapping[Rolled, Place]) -> Place:
    role = _ROLE_OF[a.source]
    named = known.get((a.task_id, a.context_hash, a.ordinal), (role, _ELSE[role]))
    if named[0] != role and (role, named[0]) != ("gate", "measurement"):
        named = (role, _ELSE[role])  # what an attempt is kept for is not in doubt but between those two
    return (named[0], _LOST) if a.outcome == "errored" else named


def _role(role: Role, records: Mapping[Place, Sequence[Mapping[str, Any]]]) -> Spent:
    """Return one role's sum, phase by phase in the order first met."""
    phases = []
    for (of, name), ran in records.items():
        if of == role:
            (took,) = by_role({**record, "source": ""} for record in ran).values()
            phases.append(Phase(name=name, rollouts=took.rollouts, usd=round(took.usd, 6), hours=round(took.hours, 6)))
    return Spent(
        role=role,
        rollouts=sum(p.rollouts for p in phases),
        usd=round(sum(p.usd for p in phases), 6),
        hours=round(sum(p.hours for p in phases), 6),
        phases=tuple(phases),
    )
