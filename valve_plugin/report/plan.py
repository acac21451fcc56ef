"""What a gate like this one does, and how many tasks a promise takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from valve_plugin.records import Attempt, Conditions, Record
from valve_plugin.report.words import counted
from valve_plugin.theory import gate, planning, power, repeated
from valve_plugin.theory.repeated import Gate

FALSE_ACCEPT, POWER, WORTH = 0.05, 0.8, 0.05
"""What a good gate does: accepts nothing for something at most 1 in 20 times, finds +5 points 4 in 5 times."""
_MOST_ROLLOUTS, _LARGEST_PANEL = 30, 5000
"""Per task, and in all: no advice goes beyond."""

Source = Literal["these tasks", "tasks like these", "tasks as given"]
"""Whose rates: the panel's own recorded ones, a population like it (another panel size), or numbers typed."""


class Row(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tolerance of the sizing table."""

    tolerance: float
    holdout: dict[str, int]
    """Banks A -> tasks with which the certified drawdown exceeds the measured one by at most the tolerance."""
    panel: dict[str, int]
    """Accepts K -> tasks with which no accept is certified to lose more than the tolerance."""


class Sizing(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sizing table and what it was computed for."""

    variance: float
    delta: float
    horizon: int
    anchor: float
    rows: tuple[Row, ...]


class Odds(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the gate does with proposals of one true effect."""

    effect: float
    fresh: float | None
    """Chance of an accept after a fresh baseline; None where there is less than that to gain."""
    carried: float | None
    """The same against the outcomes carried now; None also where none are."""
    rollouts: float | None
    """Expected until the verdict: against carried outcomes where there are some, else after a fresh baseline."""


class GatePlan(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gate's chances and cost."""

    tasks: int
    rollouts: int
    rho: str
    needed: int
    """Net additional passes."""
    confirm: bool = False
    """Whether an apparent accept has to repeat."""
    guard: int = 0
    """Passes no task may lose; 0: no guard."""
    mean_rate: float
    """Expected share of panel rollouts that pass."""
    noise: float
    """E[p(1-p)] of the panel's tasks, believed."""
    source: Source
    odds: tuple[Odds, ...]
    baseline: int
    """Rollouts of a complete baseline."""
    advice: str


class Cost(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an epoch takes when every proposal changes nothing, the most common case."""

    queries: int
    rollouts: int
    """A baseline and all gates, expected."""
    measured: int
    """Panel attempts recorded on this machine that the means below are from."""
    usd_each: float | None
    """None: no cost is recorded."""
    seconds_each: float | None
    usd: float | None
    hours: float | None
    """One rollout after the other."""


class Carried(NamedTuple):
    """What an open epoch carries forward."""

    passes: tuple[int, ...]
    """Of each task, in panel order."""
    order: tuple[int, ...]
    """Indices of the tasks in the order the next gate uses."""


def sizing(
    tolerances: Sequence[float],
    banks: Sequence[int],
    accepts: Sequence[int],
    *,
    variance: float,
    delta: float,
    horizon: int,
    anchor: float,
) -> Sizing:
    """Return the sizing table (tab:sizing) for other tolerances, counts and parameters.

    Raises:
        ValueError: an argument is out of range.
    """
    rows = tuple(
        Row(
            tolerance=t,
            holdout={str(a): planning.holdout_size(t, a, delta, variance) for a in banks},
            # No more accepts than queries can happen.
            panel={str(k): planning.panel_size(t, min(k, horizon), horizon, delta, variance, anchor) for k in accepts},
        )
        for t in tolerances
    )
    return Sizing(variance=variance, delta=delta, horizon=horizon, anchor=anchor, rows=rows)


def gate_plan(
    beliefs: Sequence[power.Belief],
    rollouts: int,
    rho: str,
    effects: Sequence[float],
    uniform: Callable[[], float],
    *,
    source: Source,
    recorded: Sequence[tuple[int, int]] = (),
    carried: Carried | None = None,
    conditions: Conditions = Conditions(),  # noqa: B008 (immutable)
    told: Callable[[float], None] = lambda _: None,
) -> GatePlan:
    """Return what a gate over these tasks does with proposals of these effects.

    Args:
        conditions: what an accept takes beyond the margin.
        recorded: (passes, rollouts) of each task in complete panels, where the beliefs are about those tasks.
        carried: what the next gate compares with, where an epoch is open.
        uniform: gives numbers in [0, 1), for the baselines that the expected rollouts are averaged over.
        told: is given the share that is computed, now and then.
    """
    rule = Gate(rollouts, gate.needed_passes(rho, len(beliefs), rollouts), conditions.confirm, conditions.guard)
    drawn = 1 if carried else _baselines(len(beliefs), rule)
    steps = itertools.count(1)

    def step() -> None:
        told(next(steps) / (len(effects) * (1 + drawn) + 1))

    odds = tuple(_odds(beliefs, rule, e, uniform, recorded, carried, step) for e in effects)
    means = [b.moment(1, 0) for b in beliefs]
    return GatePlan(
        tasks=len(beliefs),
        rollouts=rollouts,
        rho=rho,
        needed=rule.needed,
        confirm=rule.confirm,
        guard=rule.guard,
        mean_rate=sum(means) / len(means),
        noise=sum(b.moment(1, 1) for b in beliefs) / len(beliefs),
        source=source,
        odds=odds,
        baseline=len(beliefs) * rollouts,
        advice=advice(beliefs, rollouts, rho, conditions),
    )


def cost(plan: GatePlan, queries: int, attempts: Sequence[Attempt]) -> Cost | None:
    """Return what an epoch of so many queries takes; None when its effect-free gates cannot be foreseen."""
    idle = next((o.rollouts for o in plan.odds if o.effect == 0), None)
    if idle is None:
        return None
    seen = [a for a in attempts if a.source == "panel" and a.outcome in ("resolved", "unresolved")]
    usd = sum(a.cost_usd for a in seen) / len(seen) if seen else 0.0
    seconds = sum(a.seconds for a in seen) / len(seen) if seen else 0.0
    total = round(plan.baseline + queries * idle)
    return Cost(
        queries=queries,
        rollouts=total,
        measured=len(seen),
        usd_each=usd or None,
        seconds_each=seconds or None,
        usd=total * usd or None,
        hours=total * seconds / 3600 or None,
    )


def advice(
    beliefs: Sequence[power.Belief],
    rollouts: int,
    rho: str,
    conditions: Conditions = Conditions(),  # noqa: B008 (immutable)
) -> str:
    """Return one sentence: is this gate any good, and what would make it so."""
    rule = Gate(rollouts, gate.needed_passes(rho, len(beliefs), rollouts), conditions.confirm, conditions.guard)
    false, found = repeated.accept_fresh(beliefs, rule, power.Change()), _found(beliefs, rule)
    size = f"{len(beliefs)} x {rollouts} at margin {rho}{beyond(rule)}"
    if found is None:
        return f"{size}: these tasks leave less than 5 points to gain, so choose harder panel tasks."
    now = (
        f"{size} accepts {percent(false)} of the proposals that change nothing and {percent(found)} of those worth "
        "5 points"
    )
    if false <= FALSE_ACCEPT and found >= POWER:
        return f"{now}, which is good enough: keep it."
    for more in range(rollouts, min(_MOST_ROLLOUTS, _LARGEST_PANEL // len(beliefs)) + 1):
        asked = power.margin_for(beliefs, more, FALSE_ACCEPT)
        better = _found(beliefs, Gate(more, asked))
        if better is not None and better >= POWER:
            margin = _margin(asked, len(beliefs) * more)
            return (
                f"{now}; for at most 5 % and at least 80 % take {counted(more, 'rollout')} per task and margin "
                f"{margin} "
                f"({percent(better)} found, {len(beliefs) * more} rollouts a full panel), or more tasks."
            )
    return f"{now}; at most 5 % and at least 80 % need more tasks, not more rollouts of these."


def percent(chance: float) -> str:
    """Return a chance in whole percent, never rounded to certainty."""
    return "< 1 %" if chance < 0.01 else "> 99 %" if chance > 0.99 else f"{100 * chance:.0f} %"


def beyond(rule: Gate | GatePlan) -> str:
    """Return in words what an accept takes beyond the margin; empty for nothing."""
    again = ", accepts repeated" if rule.confirm else ""
    return again + (f", no task losing {counted(rule.guard, 'pass', 'passes')}" if rule.guard else "")


def _odds(
    beliefs: Sequence[power.Belief],
    rule: Gate,
    effect: float,
    uniform: Callable[[], float],
    recorded: Sequence[tuple[int, int]],
    carried: Carried | None,
    step: Callable[[], None],
) -> Odds:
    try:
        how = power.change(beliefs, effect)
    except ValueError:
        return Odds(effect=effect, fresh=None, carried=None, rollouts=None)
    fresh = repeated.accept_fresh(beliefs, rule, how)
    step()

    def used(ordered: Sequence[power.Belief], passes: Sequence[int]) -> float:
        step()
        return repeated.used_carried(ordered, rule, passes, how)

    if carried is None:
        few = _baselines(len(beliefs), rule)
        cost = power.used_fresh(
            beliefs, rule.rollouts, rule.needed, how, uniform, recorded=recorded, baselines=few, used=used
        )
        return Odds(effect=effect, fresh=fresh, carried=None, rollouts=cost)
    now = [carried.passes[i] for i in carried.order]
    return Odds(
        effect=effect,
        fresh=fresh,
        carried=repeated.accept_carried(beliefs, rule, carried.passes, how),
        rollouts=used([beliefs[i] for i in carried.order], now),
    )


def _baselines(tasks: int, rule: Gate) -> int:
    """How many are drawn; large panels differ less between them."""
    return max(4, 2400 // (tasks * rule.rollouts)) if rule.confirm else max(8, 3200 // tasks)


def _found(beliefs: Sequence[power.Belief], rule: Gate) -> float | None:
    try:
        how = power.change(beliefs, WORTH)
    except ValueError:
        return None
    return repeated.accept_fresh(beliefs, rule, how)


def _margin(needed: int, total: int) -> str:
    """Return the shortest decimal margin that asks for exactly so many net passes of so many rollouts."""
    for digits in range(2, 12):
        scale = 10**digits
        margin = f"0.{min(needed * scale // total, scale - 1):0{digits}d}"  # down: asking is rounded up
        if gate.needed_passes(margin, total, 1) == needed:
            return margin
    raise ValueError(f"no decimal margin asks for {needed} of {total}")
