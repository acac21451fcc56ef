"""The cost of a run on this machine: by role, by phase, and in wall-clock time. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from valve_plugin.bank.entries import (
    FAILED_AGAIN,
    AttemptNote,
    Baseline,
    Entry,
    EpochOpened,
    Evaluated,
    Judged,
    LeftOut,
    Proposed,
    Remeasured,
    sets_aside,
)
from valve_plugin.evidence.evaluations import version_path
from valve_plugin.records import Attempt, PanelOutcome, Record
from valve_plugin.theory.budget import ROLES, Role

Rollout = tuple[str, str, int]
"""Task, context hash and ordinal: unique, since ordinals are never reused."""
Purpose = tuple[Role, str]
"""Role and phase."""

APART: tuple[Role, ...] = ("measurement", "evaluation")
"""Roles that only measure a run and are not part of its own cost."""

NOT_USED = "made ahead, not used"
"""Phase of rollouts that idle workers finished and the run did not ask for. They cost money and are no results."""
CUT_SHORT = "cut short"
"""Phase of rollouts that were stopped early. They cost money but do not show the cost of a whole rollout."""


class Phase(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One phase of a role's work."""

    name: str
    rollouts: int
    """Number of rollouts; for the extractor, of calls."""
    usd: float
    hours: float


class RoleCost(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cost of one role, as recorded on this machine."""

    role: Role
    rollouts: int
    """Number of rollouts; for the extractor, of calls."""
    usd: float
    hours: float
    """Sum over the rollouts; with several workers the wall-clock time is shorter."""
    phases: tuple[Phase, ...] = ()
    """The phases; their numbers add up to the role's."""


class ClockTime(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Wall-clock hours in which at least one rollout or call ran. Idle time does not count."""

    hours: float
    """Hours of the run itself."""
    apart: float
    """Hours of evaluation and measurement."""
    steps: int
    """Evolution steps: mixed tasks learned from (all tasks, if the run learns from every task)."""


class CostSum(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The summed cost of several roles."""

    rollouts: int
    calls: int
    usd: float
    hours: float


def run_cost(costs: Iterable[RoleCost]) -> CostSum:
    """Return the run's own cost, without evaluation and measurement."""
    return sum_costs([cost for cost in costs if cost.role not in APART])


def sum_costs(costs: Sequence[RoleCost]) -> CostSum:
    """Return the sum over all given roles."""
    return CostSum(
        rollouts=sum(c.rollouts for c in costs if c.role != "extractor"),
        calls=sum(c.rollouts for c in costs if c.role == "extractor"),
        usd=sum(c.usd for c in costs),
        hours=sum(c.hours for c in costs),
    )


_ROLE_OF: dict[str, Role] = {"evolve": "solver", "panel": "gate", "eval": "evaluation"}
_UNNAMED: dict[Role, str] = {
    "solver": "tasks that all attempts solved, or none",
    "gate": "beyond what decided a verdict",
    "evaluation": "of readings that are not complete",
}
_ERRORED = "errored, tried again"
_SCREENS: Purpose = ("solver", "screens of proposals")
_CALLS: Purpose = ("extractor", "reflection")


def cost_by_role(
    attempts: Iterable[Attempt],
    calls: Iterable[Mapping[str, Any]],
    entries: Sequence[Entry],
    cut: Iterable[Mapping[str, Any]] = (),
    unused: Iterable[Attempt] = (),
) -> tuple[RoleCost, ...]:
    """Return the run's cost by role and phase, without unused roles and without live runs.

    All attempts on the panel are stored in the same way. The ledger tells which of them belong to the gate, and which
    to A/A measurements or measurements without an item.

    Args:
        cut: telemetry records of rollouts that were stopped early; older ones have no cost and are ignored.
        unused: attempts that nobody asked for.
    """
    attempts = list(attempts)
    purposes = rollout_purposes(entries, attempts) if attempts else {}
    records: dict[Purpose, list[Mapping[str, Any]]] = defaultdict(list)
    for a in attempts:
        if a.source != "live":
            records[_purpose(a, purposes)].append({"cost_usd": a.cost_usd, "seconds": a.seconds})
    for a in unused:
        records[_ROLE_OF[a.source], NOT_USED].append({"cost_usd": a.cost_usd, "seconds": a.seconds})
    for one in cut:
        if "cost_usd" in one and one.get("source") in _ROLE_OF:
            records[_ROLE_OF[one["source"]], CUT_SHORT].append(one)
    if calls := list(calls):
        records[_CALLS] = calls
    return tuple(_role_cost(role, records) for role in ROLES if any(of == role for of, _ in records))


def _role_cost(role: Role, records: Mapping[Purpose, Sequence[Mapping[str, Any]]]) -> RoleCost:
    """Return one role's cost, with its phases in the order of `records`."""
    phases = [
        Phase(
            name=name,
            rollouts=len(ran),
            usd=round(sum(float(r.get("cost_usd", 0.0)) for r in ran), 6),
            hours=round(sum(float(r.get("seconds", 0.0)) for r in ran) / 3600, 6),
        )
        for (of, name), ran in records.items()
        if of == role
    ]
    return RoleCost(
        role=role,
        rollouts=sum(p.rollouts for p in phases),
        usd=round(sum(p.usd for p in phases), 6),
        hours=round(sum(p.hours for p in phases), 6),
        phases=tuple(phases),
    )


def clock_time(
    attempts: Iterable[Attempt], calls: Iterable[tuple[float, Mapping[str, Any]]], entries: Sequence[Entry]
) -> ClockTime | None:
    """Return the wall-clock hours of the run and of its evaluation, or None if a time is unknown.

    Args:
        attempts: rollouts kept on this machine; `recorded_at` is the end of one.
        calls: end of each extractor call, in seconds since the epoch, and its record.

    Source: tab:main-time, tab:ablation-time (held-out evaluation excluded).
    """
    attempts = list(attempts)
    purposes = rollout_purposes(entries) if attempts else {}
    own = [(at, float(call.get("seconds", 0.0))) for at, call in calls]
    apart: list[tuple[float, float]] = []
    for a in attempts:
        if a.source != "live":
            (apart if _purpose(a, purposes)[0] in APART else own).append((a.recorded_at, a.seconds))
    if not own or any(not at for at, seconds in (*own, *apart) if seconds):
        return None
    return ClockTime(hours=hours_running(own), apart=hours_running(apart), steps=version_path(entries)[-1].step)


def hours_running(spans: Iterable[tuple[float, float]]) -> float:
    """Return the hours in which at least one of the given spans ran.

    Args:
        spans: end and duration of each, in seconds.
    """
    seconds, until = 0.0, float("-inf")
    for start, end in sorted((at - took, at) for at, took in spans):
        seconds += max(0.0, end - max(start, until))
        until = max(until, end)
    return round(seconds / 3600, 6)


def rollout_purposes(entries: Sequence[Entry], attempts: Sequence[Attempt] = ()) -> dict[Rollout, Purpose]:
    """Return role and phase of each rollout in the ledger; the first mention of a rollout counts.

    Args:
        attempts: this machine's. No line names those of a screen that was passed, so they are told by when they ran.
    """
    found: dict[Rollout, Purpose] = {}
    for entry in entries:
        for purpose, rollouts in _named(entry):
            for rollout in rollouts:
                found.setdefault(_key(rollout), purpose)
    found |= {_key(a): _SCREENS for a in _screens(entries, attempts) if _key(a) not in found}
    return found


def _screens(entries: Sequence[Entry], attempts: Sequence[Attempt]) -> Iterable[Attempt]:
    """Yield the attempts at a task that came after those of its proposal, and with another context than theirs."""
    if not any(isinstance(e, EpochOpened) and e.conditions and e.conditions.fresh for e in entries):
        return
    ended = {_key(a): a.recorded_at for a in attempts}
    learned: set[tuple[str, str]] = set()
    since: dict[str, float] = {}
    for entry in entries:
        if isinstance(entry, Proposed) and entry.attempts and not sets_aside(entry, FAILED_AGAIN):
            learned |= {(n.task_id, n.context_hash) for n in entry.attempts}
            if not entry.proposal.empty:
                since.setdefault(entry.proposal.task_id, max(ended.get(_key(n), 0.0) for n in entry.attempts))
    for a in attempts:
        if a.recorded_at >= since.get(a.task_id, float("inf")) and (a.task_id, a.context_hash) not in learned:
            yield a


def _named(entry: Entry) -> Iterable[tuple[Purpose, Iterable[AttemptNote | PanelOutcome]]]:
    """Yield role and phase, and the rollouts that a ledger line lists under them."""
    if isinstance(entry, Proposed):
        yield _SCREENS if sets_aside(entry, FAILED_AGAIN) else ("solver", "tasks learned from"), entry.attempts
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


def _purpose(a: Attempt, purposes: Mapping[Rollout, Purpose]) -> Purpose:
    """Return role and phase of an attempt. Its source decides the role; the ledger separates measurement from gate."""
    role = _ROLE_OF[a.source]
    found = purposes.get(_key(a), (role, _UNNAMED[role]))
    if found[0] != role and (role, found[0]) != ("gate", "measurement"):
        found = (role, _UNNAMED[role])
    return (found[0], _ERRORED) if a.outcome == "errored" else found


def _key(rollout: Attempt | AttemptNote | PanelOutcome) -> Rollout:
    return rollout.task_id, rollout.context_hash, rollout.ordinal
