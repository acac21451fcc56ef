"""Plan a gate: its chances, its cost, and the number of tasks for a given tolerance.

The numbers come from a bank's complete panels or from given rates. The A/A comparison of the current bank with itself
is measured, not computed.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from valve_plugin.bank.store import BankStore
from valve_plugin.errors import ConfigError
from valve_plugin.evidence.evaluations import CompletePanel, Epoch, read_measurements
from valve_plugin.records import Attempt, Conditions, Panel, PanelOutcome, Record
from valve_plugin.theory import acceptance, certificates, estimates, panel_order, power
from valve_plugin.theory.power import Belief, Gate
from valve_plugin.words import plural

EFFECTS = (0.0, 0.03, 0.05, 0.10)
"""Of the proposals whose odds are computed, in rate units."""
FALSE_ACCEPT, POWER, WORTH = 0.05, 0.8, 0.05
"""A good gate accepts a do-nothing proposal at most 1 in 20 times, and one worth 5 points 4 in 5 times."""
_MOST_ROLLOUTS, _LARGEST_PANEL = 30, 5000
"""Limits of the advice: rollouts per task, and rollouts of a full panel."""

Source = Literal["these tasks", "tasks like these", "tasks as given"]
"""Origin of the rates: the recorded panel, a population like it (for another panel size), or given numbers."""


class SizingRow(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the sizing table."""

    tolerance: float
    holdout: dict[str, int]
    """Banks A -> tasks needed so that the certified drawdown is at most the measured one plus the tolerance."""
    panel: dict[str, int]
    """Accepts K -> tasks needed so that every accept is certified to lose at most the tolerance."""


class Sizing(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sizing table and its parameters."""

    variance: float
    delta: float
    horizon: int
    anchor: float
    rows: tuple[SizingRow, ...]


class Odds(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The gate's chances for proposals of one true effect."""

    effect: float
    fresh: float | None
    """Chance of an accept after a fresh baseline; None if the tasks leave less to gain than the effect."""
    carried: float | None
    """Chance of an accept against the current outcomes; None also if there are none."""
    rollouts: float | None
    """Expected rollouts until the verdict, against the current outcomes if there are any, else a fresh baseline."""


class GatePlan(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gate's chances and cost."""

    tasks: int
    rollouts: int
    rho: str
    needed: int
    """Net additional passes."""
    confirm: bool = False
    """True if an accept must be repeated on fresh rollouts."""
    guard: int = 0
    """A task that loses this many passes causes a reject; 0: no guard."""
    mean_rate: float
    """Expected share of panel rollouts that pass."""
    noise: float
    """Expected p(1-p) of the panel's tasks."""
    source: Source
    odds: tuple[Odds, ...]
    baseline: int
    """Rollouts of a complete baseline."""
    advice: str


class EpochCost(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cost of an epoch in which no proposal changes anything, the most common case."""

    queries: int
    rollouts: int
    """Expected rollouts of the baseline and all gates."""
    measured: int
    """Number of recorded panel attempts behind the means below."""
    usd_each: float | None
    """Mean cost of a rollout; None if no cost is recorded."""
    seconds_each: float | None
    usd: float | None
    hours: float | None
    """Sum over all rollouts; several workers take less wall-clock time."""


class AcceptShare(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Share of accepts among A/A gates, with an exact 95 % interval of the chance."""

    gates: int
    accepted: int
    low: float
    high: float


class SelfComparison(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The current bank against itself. Informational only: no gate reads it."""

    version: int
    panels: int
    """Complete measurements on fresh rollouts, each of them a do-nothing candidate."""
    carried: AcceptShare
    """Accepts of do-nothing candidates against the current outcomes."""
    fresh: AcceptShare
    """Accepts of do-nothing candidates after a fresh baseline, from disjoint sets of measurements."""
    recorded: float
    """Score of the current outcomes, a share of panel rollouts."""
    measured: float
    """Mean score of the fresh measurements."""
    error: float
    """Standard error of `measured` between measurements; 0 for a single one."""


class Carried(NamedTuple):
    """The current outcomes of an open epoch."""

    passes: tuple[int, ...]
    """Passes of each task, in panel order."""
    order: tuple[int, ...]
    """Indices of the tasks in the order of the next gate."""


class RecordedPanels(NamedTuple):
    """A bank's last epoch, and every complete measurement on its panel."""

    panel: Panel
    delta: float
    horizon: int
    panels: list[tuple[int, ...]]
    """Resolved rollouts per task, in panel order, of each measurement."""
    carried: Carried | None
    """Outcomes that the next gate compares with; None between epochs."""
    current: list[tuple[int, ...]]
    """Measurements of the current bank; if there are A/A measurements only these, since they were not selected."""
    conditions: Conditions
    """Conditions of an accept besides the margin."""
    again: SelfComparison | None
    """Result of the current bank's A/A measurements."""


class GateTerms(NamedTuple):
    """The settings of the planned gate."""

    delta: float = 0.05
    horizon: int = 100
    rollouts: int = 3
    rho: str = "0.02"
    confirm: bool = False
    guard: int = 0


class Rates(NamedTuple):
    """Distributions of the solve rates of a panel's tasks."""

    beliefs: list[Belief]
    source: Source
    counts: list[tuple[int, int]]
    """(passes, rollouts) of each recorded task; empty if the rates do not come from recorded tasks."""


def read_panels(store: BankStore) -> RecordedPanels | None:
    """Return the panels that a bank recorded, or None before its first epoch."""
    found = read_measurements(store.entries())
    if not found.epochs:
        return None
    last = found.epochs[-1]
    complete = found.complete(last.opened.panel_hash)
    return RecordedPanels(
        panel=last.panel,
        delta=float(last.opened.delta),
        horizon=last.opened.horizon,
        panels=[c.passes for c in complete],
        carried=_carried(store, last.panel),
        current=_current(last.complete),
        conditions=last.opened.conditions or Conditions(),
        again=compare_with_itself(last, store.current_outcomes() or (), store.bank.version),
    )


def gate_terms(known: RecordedPanels | None, **typed: Any) -> GateTerms:
    """Return the settings of the recorded gate, or the defaults; values in `typed` that are not None replace them.

    Raises:
        ConfigError: the margin is not valid, or the guard is above the rollouts per task.
    """
    base = GateTerms()
    if known:
        conditions = known.conditions
        base = GateTerms(
            known.delta, known.horizon, known.panel.rollouts, known.panel.rho, conditions.confirm, conditions.guard
        )
    terms = base._replace(**{name: value for name, value in typed.items() if value is not None})
    acceptance.needed_passes(terms.rho, 1, 1)  # raises an error for an invalid margin
    if terms.guard > terms.rollouts:
        raise ConfigError(
            f"guard is {terms.guard}, expected at most the {plural(terms.rollouts, 'rollout')} a panel task has "
            "(0: no guard)"
        )
    return terms


def panel_rates(known: RecordedPanels | None, given: estimates.RateSpread | None, size: int | None) -> Rates | None:
    """Return the rates to plan with, or None if none are recorded or given.

    Args:
        given: mean and noise from the user; they take precedence.
        size: number of panel tasks; None for the recorded panel's.
    Raises:
        ValueError: no population has the given mean and noise.
    """
    if given is not None:
        return Rates([power.exact_population(given)] * (size or 50), "tasks as given", [])
    if known is None or not known.panels:
        return None
    r = known.panel.rollouts
    if size not in (None, len(known.panel.tasks)):
        return Rates([power.population(estimates.rate_spread(known.panels, r))] * size, "tasks like these", [])
    counts = [(sum(column), r * len(column)) for column in zip(*known.panels, strict=True)]
    return Rates([*power.posterior(known.panels, r, known.current)], "these tasks", counts)


def plan_variance(
    known: RecordedPanels | None, given: estimates.RateSpread | None, typed: float | None, rollouts: int
) -> tuple[float, str]:
    """Return the variance of a paired difference to plan with, in squared rate units, and its origin as text.

    Args:
        given: mean and noise of the solve rates from the user, if any.
        typed: the variance from the user, if any.
        rollouts: r of the planned gate.
    Raises:
        ConfigError: no panel is recorded and no numbers are given.
    """
    if typed is not None:
        return typed, "given"
    if given is not None:
        return estimates.variance_bound(given.mass, rollouts), "(1 + 2/r) times --vmass"
    if known is None or not known.panels:
        raise ConfigError(
            "no complete panel is recorded here to plan from. Give numbers instead, such as `valve plan --base-rate "
            "0.5 --vmass 0.05`: half of the rollouts pass, and most tasks pass nearly always or nearly never (--vmass "
            "is the mean of p(1-p), 0.25 if each task passes half of the time). `valve evolve` records a panel; --bank "
            "DIR names another bank"
        )
    where = f"estimated from {plural(len(known.panels), 'complete panel')}"
    return estimates.variance(known.panels, known.panel.rollouts, rollouts), where


def plan_sizes(
    tolerances: Sequence[float],
    *,
    variance: float,
    delta: float,
    horizon: int,
    anchor: float,
    banks: Sequence[int] = (4, 8, 16),
    accepts: Sequence[int] = (3, 5, 7),
) -> Sizing:
    """Return the sizing table (tab:sizing) for these tolerances and parameters.

    Raises:
        ValueError: an argument is out of range.
    """

    def panel(tolerance: float, accept: int) -> int:
        most = min(accept, horizon)  # there are at most as many accepts as queries
        return certificates.panel_size(tolerance, most, horizon, delta, variance, anchor)

    rows = tuple(
        SizingRow(
            tolerance=t,
            holdout={str(a): certificates.holdout_size(t, a, delta, variance) for a in banks},
            panel={str(k): panel(t, k) for k in accepts},
        )
        for t in tolerances
    )
    return Sizing(variance=variance, delta=delta, horizon=horizon, anchor=anchor, rows=rows)


def plan_gate(
    beliefs: Sequence[Belief],
    rollouts: int,
    rho: str,
    effects: Sequence[float],
    uniform: Callable[[], float],
    *,
    source: Source,
    recorded: Sequence[tuple[int, int]] = (),
    carried: Carried | None = None,
    conditions: Conditions = Conditions(),  # noqa: B008 (immutable)
    progress: Callable[[float], None] = lambda _: None,
) -> GatePlan:
    """Return the chances and the cost of a gate over these tasks, for proposals of these effects.

    Args:
        uniform: returns random numbers in [0, 1), to draw the baselines for the expected rollouts.
        recorded: (passes, rollouts) of each task in complete panels, if the beliefs are about those tasks.
        carried: current outcomes that the next gate compares with, if an epoch is open.
        conditions: conditions of an accept besides the margin.
        progress: called from time to time with the finished share, 0 to 1.
    """
    rule = Gate(rollouts, acceptance.needed_passes(rho, len(beliefs), rollouts), conditions.confirm, conditions.guard)
    drawn = 1 if carried else _baselines(len(beliefs), rule)
    steps = itertools.count(1)

    def step() -> None:
        progress(next(steps) / (len(effects) * (1 + drawn) + 1))

    odds = tuple(_odds(beliefs, rule, e, uniform, recorded, carried, step) for e in effects)
    return GatePlan(
        tasks=len(beliefs),
        rollouts=rollouts,
        rho=rho,
        needed=rule.needed,
        confirm=rule.confirm,
        guard=rule.guard,
        mean_rate=sum(b.moment(1, 0) for b in beliefs) / len(beliefs),
        noise=sum(b.moment(1, 1) for b in beliefs) / len(beliefs),
        source=source,
        odds=odds,
        baseline=len(beliefs) * rollouts,
        advice=_advice(beliefs, rule, rho),
    )


def gate_of_rates(
    known: RecordedPanels | None, rates: Rates, terms: GateTerms, seed: int, progress: Callable[[float], None]
) -> GatePlan:
    """Plan a gate of these terms for tasks of these rates; recorded outcomes are carried if it is the bank's own gate.

    Args:
        seed: of the baselines that the odds are averaged over.
        progress: see `plan_gate`.
    """
    same = known if rates.source == "these tasks" and known and terms.rollouts == known.panel.rollouts else None
    return plan_gate(
        rates.beliefs,
        terms.rollouts,
        terms.rho,
        EFFECTS,
        random.Random(seed).random,  # noqa: S311 (a simulation)
        source=rates.source,
        recorded=rates.counts,
        carried=same.carried if same else None,
        conditions=Conditions(confirm=terms.confirm, guard=terms.guard),
        progress=progress,
    )


def epoch_cost(plan: GatePlan, queries: int, attempts: Sequence[Attempt]) -> EpochCost | None:
    """Return the expected cost of an epoch, or None if `plan` has no odds for an effect of 0."""
    idle = next((o.rollouts for o in plan.odds if o.effect == 0), None)
    if idle is None:
        return None
    seen = [a for a in attempts if a.source == "panel" and a.outcome in ("resolved", "unresolved")]
    usd = sum(a.cost_usd for a in seen) / len(seen) if seen else 0.0
    seconds = sum(a.seconds for a in seen) / len(seen) if seen else 0.0
    total = round(plan.baseline + queries * idle)
    return EpochCost(
        queries=queries,
        rollouts=total,
        measured=len(seen),
        usd_each=usd or None,
        seconds_each=seconds or None,
        usd=total * usd or None,
        hours=total * seconds / 3600 or None,
    )


def compare_with_itself(epoch: Epoch, carried: Sequence[PanelOutcome], version: int) -> SelfComparison | None:
    """Return the result of an epoch's A/A measurements of its current bank, or None if there are none.

    With `confirm`, a gate uses two measurements of the candidate.

    Args:
        carried: the current bank's outcomes.
        version: the current bank's version.
    """
    panels = [c.outcomes for c in epoch.complete if c.again and c.version == version]
    if not panels:
        return None
    asked = epoch.opened.conditions or Conditions()
    needed = acceptance.needed_passes(epoch.panel.rho, len(epoch.panel.tasks), epoch.panel.rollouts)
    each = 1 + asked.confirm

    def accepts(current: Sequence[PanelOutcome], candidates: Sequence[Sequence[PanelOutcome]]) -> bool:
        return all(acceptance.decide_measurement(current, c, needed, asked.guard)[0] == "accept" for c in candidates)

    now = [accepts(carried, panels[i : i + each]) for i in range(0, len(panels) - each + 1, each)]
    then = [accepts(panels[i], panels[i + 1 : i + 1 + each]) for i in range(0, len(panels) - each, each + 1)]
    scores = [_passing_share(p) for p in panels]
    mean = sum(scores) / len(scores)
    return SelfComparison(
        version=version,
        panels=len(panels),
        carried=_accept_share(now),
        fresh=_accept_share(then),
        recorded=_passing_share(carried),
        measured=mean,
        error=math.sqrt(sum((s - mean) ** 2 for s in scores) / max(1, len(scores) - 1) / len(scores)),
    )


def percent(chance: float) -> str:
    """Return a chance in whole percent; `< 1 %` or `> 99 %` near the ends."""
    return "< 1 %" if chance < 0.01 else "> 99 %" if chance > 0.99 else f"{100 * chance:.0f} %"


def conditions_in_words(rule: Gate | GatePlan) -> str:
    """Return the conditions of an accept besides the margin, as the end of a sentence; empty if there are none."""
    repeated = ", accepts repeated" if rule.confirm else ""
    return repeated + (f", no task losing {plural(rule.guard, 'pass', 'passes')}" if rule.guard else "")


def _advice(beliefs: Sequence[Belief], rule: Gate, rho: str) -> str:
    """Return one sentence: whether this gate is good enough, and how to improve it."""
    tasks, rollouts = len(beliefs), rule.rollouts
    false, found = power.fresh_accept_chance(beliefs, rule, power.EffectChange()), _power(beliefs, rule)
    size = f"{tasks} x {rollouts} at margin {rho}{conditions_in_words(rule)}"
    if found is None:
        return f"{size}: on these tasks less than 5 points can be gained, so choose harder panel tasks."
    now = (
        f"{size} accepts {percent(false)} of the proposals that change nothing and {percent(found)} of those worth "
        "5 points"
    )
    if false <= FALSE_ACCEPT and found >= POWER:
        return f"{now}, which is good enough: keep it."
    for more in range(rollouts, min(_MOST_ROLLOUTS, _LARGEST_PANEL // tasks) + 1):
        asked = power.margin_for(beliefs, more, FALSE_ACCEPT)
        better = _power(beliefs, Gate(more, asked))
        if better is not None and better >= POWER:
            return (
                f"{now}. For at most 5 % and at least 80 %, use {plural(more, 'rollout')} per task and margin "
                f"{_margin(asked, tasks * more)} ({percent(better)} found, {tasks * more} rollouts per full panel), or "
                "more tasks."
            )
    return f"{now}. At most 5 % and at least 80 % need more tasks, not more rollouts per task."


def _power(beliefs: Sequence[Belief], rule: Gate) -> float | None:
    """Return the chance to accept a proposal worth 5 points after a fresh baseline, or None if less can be gained."""
    try:
        return power.fresh_accept_chance(beliefs, rule, power.effect_change(beliefs, WORTH))
    except ValueError:
        return None


def _odds(
    beliefs: Sequence[Belief],
    rule: Gate,
    effect: float,
    uniform: Callable[[], float],
    recorded: Sequence[tuple[int, int]],
    carried: Carried | None,
    step: Callable[[], None],
) -> Odds:
    try:
        how = power.effect_change(beliefs, effect)
    except ValueError:
        return Odds(effect=effect, fresh=None, carried=None, rollouts=None)
    fresh = power.fresh_accept_chance(beliefs, rule, how)
    step()
    if carried is None:
        few = _baselines(len(beliefs), rule)
        used = power.fresh_rollouts(beliefs, rule, how, uniform, recorded=recorded, baselines=few, progress=step)
        return Odds(effect=effect, fresh=fresh, carried=None, rollouts=used)
    chance = power.carried_accept_chance(beliefs, rule, carried.passes, how)
    ordered, now = [beliefs[i] for i in carried.order], [carried.passes[i] for i in carried.order]
    used = power.carried_rollouts(ordered, rule, now, how)
    step()
    return Odds(effect=effect, fresh=fresh, carried=chance, rollouts=used)


def _baselines(tasks: int, rule: Gate) -> int:
    """Return how many baselines to draw: fewer for large panels, which differ less between baselines."""
    return max(4, 2400 // (tasks * rule.rollouts)) if rule.confirm else max(8, 3200 // tasks)


def _margin(needed: int, total: int) -> str:
    """Return the shortest decimal margin that requires exactly `needed` net passes of `total` rollouts."""
    for digits in range(2, 12):
        scale = 10**digits
        margin = f"0.{min(needed * scale // total, scale - 1):0{digits}d}"  # rounded down: needed_passes rounds up
        if acceptance.needed_passes(margin, total, 1) == needed:
            return margin
    raise ValueError(f"no decimal margin requires {needed} of {total}")


def _current(complete: Sequence[CompletePanel]) -> list[tuple[int, ...]]:
    """Return the last bank's measurements. A/A measurements replace an accept's own, which was selected to be high."""
    mine = [c for c in complete if c.version == complete[-1].version]
    return [c.passes for c in mine if c.again] or [c.passes for c in mine]


def _carried(store: BankStore, panel: Panel) -> Carried | None:
    current = store.current_outcomes()
    if current is None or store.panel() != panel:
        return None
    ids = [task.instance_id for task in panel.tasks]
    order = panel_order.task_order(ids, store.recorded(), current)
    passed = Counter(o.task_id for o in current if o.outcome == "resolved")
    return Carried(tuple(passed[task] for task in ids), tuple(map(ids.index, order)))


def _accept_share(accepted: Sequence[bool]) -> AcceptShare:
    low, high = estimates.clopper_pearson(sum(accepted), len(accepted))
    return AcceptShare(gates=len(accepted), accepted=sum(accepted), low=low, high=high)


def _passing_share(outcomes: Sequence[PanelOutcome]) -> float:
    return sum(o.outcome == "resolved" for o in outcomes) / len(outcomes)
