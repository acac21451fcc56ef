"""Plan a gate: its chances, what a run of it comes to, and the number of tasks for a given tolerance.

The numbers come from a bank's complete panels or from given rates. The A/A comparison of the current bank with itself
is measured, not computed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from valve_plugin.bank.entries import Judged
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError
from valve_plugin.evidence.evaluations import Epoch, Measurements, read_measurements
from valve_plugin.records import Attempt, Conditions, Panel, PanelOutcome, Record
from valve_plugin.theory import certificates, estimates, gate_rule, power
from valve_plugin.theory.power import Beta, Change, Gate
from valve_plugin.words import plural

EFFECTS = (0.0, 0.03, 0.05, 0.10, -0.10)
"""Of the proposals whose odds are computed, in rate units."""
FALSE_ACCEPT, POWER, WORTH = 0.05, 0.8, 0.05
"""A good gate accepts a do-nothing proposal at most 1 in 20 times, and one worth 5 points 4 in 5 times."""
_MOST_ROLLOUTS, _LARGEST_PANEL = 30, 5000
"""Limits of the advice: rollouts per task, and rollouts of a full panel."""
KINDS = ((0.0, 0.7), (0.03, 0.2), (-0.03, 0.1))
"""The proposals of a planned run: effect in rate units, and share."""
_MOST_QUERIES = 300

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
    whole: float | None
    """The same where the effect makes whole tasks pass or fail, instead of being spread evenly."""
    carried: float | None
    """Chance of an accept against the current outcomes; None also if there are none."""
    rollouts: float | None
    """Expected rollouts until the verdict, against the current outcomes if there are any, else a fresh baseline."""


class GatePlan(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gate's chances in one query."""

    tasks: int
    rollouts: int
    rho: str
    needed: int
    """Net additional passes."""
    confirm: bool = False
    """True if an accept must be repeated on fresh rollouts."""
    guard: int = 0
    """A task that loses this many passes causes a reject; 0: no guard."""
    bet: int = 0
    """What the bet that an accepted proposal helps multiplies its stake by; 0: no such bet."""
    reach: float = 1.0
    """Chance that a panel task gets a proposal at all."""
    mean_rate: float
    """Expected share of panel rollouts that pass."""
    noise: float
    """Expected p(1-p) of the panel's tasks."""
    source: Source
    odds: tuple[Odds, ...]
    baseline: int
    """Rollouts of a complete baseline."""
    advice: str


class RunKind(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The proposals of one effect in a run."""

    effect: float
    proposals: float
    accepted: float


class RunPlan(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run of many proposals comes to, on average over drawn runs."""

    proposals: int
    screen: int
    """More attempts at its own task that a proposal has to pass before its gate."""
    kinds: tuple[RunKind, ...]
    gain: float
    """Mean change of the rate of tasks that no gate saw, in rate units."""
    low: float
    high: float
    """9 of 10 runs gain between these."""
    rollouts: int
    """Expected rollouts of all screens, baselines and gates."""
    measured: int
    """Number of recorded panel attempts whose means dollars and hours come from; None if none is recorded."""
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


class RecordedPanels(NamedTuple):
    """A bank's last epoch, and every complete measurement on its panel."""

    panel: Panel
    delta: float
    horizon: int
    panels: list[tuple[int, ...]]
    """Resolved rollouts per task, in panel order, of each measurement."""
    carried: tuple[int, ...] | None
    """Passes of each task, in panel order, that the next gate compares with; None between epochs."""
    current: list[tuple[int, ...]]
    """Measurements of the current bank; if there are A/A measurements only these, since they were not selected."""
    conditions: Conditions
    """Conditions of an accept besides the margin."""
    reach: float
    """Mean share of panel tasks that a proposal changed the context of; 1 before the first."""
    screen: int
    """More attempts at its own task that a proposal has to pass; 0 in the paper's protocol."""
    again: SelfComparison | None
    """Result of the current bank's A/A measurements."""


class GateTerms(NamedTuple):
    """The settings of the planned gate."""

    delta: float = 0.05
    horizon: int = 100
    rollouts: int = 3
    rho: str = "auto"
    confirm: bool = False
    guard: int = 0
    fresh: int = gate_rule.FRESH_QUERIES
    bet: int = 0
    reach: float = 1.0
    screen: int = Settings().screen


class Rates(NamedTuple):
    """Distributions of the solve rates of a panel's tasks."""

    beliefs: list[Beta]
    source: Source


def read_panels(store: BankStore, found: Measurements | None = None) -> RecordedPanels | None:
    """Return the panels that a bank recorded, or None before its first epoch.

    Args:
        found: `read_measurements` of its ledger, where it is at hand.
    """
    found = found or read_measurements(store.entries())
    if not found.epochs:
        return None
    last = found.epochs[-1]
    carried, current = None, found.current
    if current is not None and store.panel() == last.panel:
        passed = Counter(o.task_id for o in current if o.outcome == "resolved")
        carried = tuple(passed[task.instance_id] for task in last.panel.tasks)
    verdicts = [e.verdict for e in store.entries() if isinstance(e, Judged)]
    kept = [len(v.reused) / (v.n_tasks * v.rollouts) for v in verdicts if v.panel_hash == last.opened.panel_hash]
    mine = [c for c in last.complete if c.version == last.complete[-1].version]
    return RecordedPanels(
        panel=last.panel,
        delta=float(last.opened.delta),
        horizon=last.opened.horizon,
        panels=[c.passes for c in found.complete(last.opened.panel_hash)],
        carried=carried,
        reach=1 - sum(kept) / len(kept) if kept and min(kept) < 1 else 1.0,
        current=[c.passes for c in mine if c.again] or [c.passes for c in mine],
        conditions=last.opened.conditions or Conditions(),
        screen=store.settings().screen if last.opened.conditions and last.opened.conditions.fresh else 0,
        again=compare_with_itself(last, current or (), store.bank.version),
    )


def gate_terms(
    known: RecordedPanels | None,
    *,
    size: int | None = None,
    false_accepts: float | None = None,
    protocol: str | None = None,
    **typed: Any,
) -> GateTerms:
    """Return the settings of the recorded gate, or the defaults; values in `typed` that are not None replace them.

    Args:
        size: panel tasks, where not the recorded panel's. A margin of one pass is one pass there, too.

    Raises:
        ConfigError: the margin is not valid, the guard is above the rollouts per task, or a bet is in the paper's
            protocol.
    """
    base, tasks = GateTerms(), size or 50
    if known:
        asked, panel = known.conditions, known.panel
        tasks, single = size or len(panel.tasks), gate_rule.margin("auto", len(panel.tasks), panel.rollouts)
        rho = "auto" if asked.fresh and panel.rho == single else panel.rho  # in the paper's protocol never one pass
        base = GateTerms(
            known.delta, known.horizon, panel.rollouts, rho, asked.confirm, asked.guard, asked.fresh, asked.bet,
            known.reach, known.screen,
        )  # fmt: skip
    terms = base._replace(**{name: value for name, value in typed.items() if value is not None})
    terms = terms._replace(rho=gate_rule.margin(terms.rho, tasks, terms.rollouts, protocol or "fresh"))
    if false_accepts is not None:
        bet = gate_rule.bet_needed(terms.horizon, false_accepts)
        terms = terms._replace(bet=bet, fresh=1 if bet else gate_rule.FRESH_QUERIES)
    if protocol == "paper":
        if terms.bet:
            raise ConfigError('false_accepts goes with protocol = "fresh"; the paper\'s protocol has no such bet')
        terms = terms._replace(fresh=0, screen=0)
    elif protocol and not terms.fresh:
        terms = terms._replace(fresh=gate_rule.FRESH_QUERIES)
    gate_rule.needed_passes(terms.rho, 1, 1)  # raises an error for an invalid margin
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
        return Rates([power.exact_population(given)] * (size or 50), "tasks as given")
    if known is None or not known.panels:
        return None
    r = known.panel.rollouts
    if size not in (None, len(known.panel.tasks)):
        return Rates([power.population(estimates.rate_spread(known.panels, r))] * size, "tasks like these")
    return Rates(power.posterior(known.panels, r, known.current), "these tasks")


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
            holdout={str(a): certificates.holdout_size(t, a, delta, variance) for a in (4, 8, 16)},
            panel={str(k): panel(t, k) for k in (3, 5, 7)},
        )
        for t in tolerances
    )
    return Sizing(variance=variance, delta=delta, horizon=horizon, anchor=anchor, rows=rows)


def plan_gate(
    rates: Rates,
    terms: GateTerms,
    known: RecordedPanels | None = None,
    seed: int = 0,
) -> GatePlan:
    """Return the chances of one query of a gate of these terms, over tasks of these rates.

    Args:
        known: recorded outcomes are carried if it is the bank's own gate.
        seed: of the drawn queries that the expected rollouts are means of.
    """
    beliefs, rule, now = rates.beliefs, _rule(rates, terms), _now(rates, terms, known)
    return GatePlan(
        tasks=len(beliefs),
        rollouts=terms.rollouts,
        rho=terms.rho,
        needed=rule.needed,
        confirm=rule.confirm,
        guard=rule.guard,
        bet=rule.bet,
        reach=terms.reach,
        mean_rate=sum(b.mean for b in beliefs) / len(beliefs),
        noise=sum(b.noise for b in beliefs) / len(beliefs),
        source=rates.source,
        odds=tuple(_odds(beliefs, rule, effect, terms.reach, now, seed) for effect in EFFECTS),
        baseline=len(beliefs) * terms.rollouts,
        advice=_advice(beliefs, rule, terms, now),
    )


def plan_run(
    rates: Rates,
    terms: GateTerms,
    known: RecordedPanels | None,
    attempts: Sequence[Attempt],
    seed: int = 0,
    usd_each: float | None = None,
) -> RunPlan:
    """Return what a run of as many proposals as queries are declared comes to, 300 at most, if they are as `KINDS`.

    An effect is spread evenly, and at most what the tasks leave.

    Args:
        attempts: this machine's, for the cost of a rollout.
        usd_each: cost of a rollout in USD; None: the mean of those attempts.
    """
    beliefs, queries = rates.beliefs, min(terms.horizon, _MOST_QUERIES)
    room = power.most_gain(beliefs, terms.reach)
    kinds = [
        (share, power.change_of(beliefs, max(min(e, room), room - terms.reach), terms.reach)) for e, share in KINDS
    ]
    found = power.simulate(
        beliefs, _rule(rates, terms), kinds, queries,
        seed=seed, runs=power.draws(beliefs, terms.rollouts, 300), now=_now(rates, terms, known), screen=terms.screen,
    )  # fmt: skip
    seen = [a for a in attempts if a.source == "panel" and a.outcome in ("resolved", "unresolved")]
    recorded = sum(a.cost_usd for a in seen) / len(seen) if seen else 0.0
    usd = recorded if usd_each is None else usd_each
    seconds = sum(a.seconds for a in seen) / len(seen) if seen else 0.0
    return RunPlan(
        proposals=queries,
        screen=terms.screen,
        kinds=tuple(
            RunKind(effect=effect, proposals=share * queries, accepted=accepted)
            for (effect, share), accepted in zip(KINDS, found.accepted, strict=True)
        ),
        gain=found.gain,
        low=found.low,
        high=found.high,
        rollouts=round(found.rollouts),
        measured=len(seen),
        usd=found.rollouts * usd or None,
        hours=found.rollouts * seconds / 3600 or None,
    )


def plan_bank(
    store: BankStore, found: Measurements, attempts: Sequence[Attempt]
) -> tuple[GatePlan | None, RunPlan | None]:
    """Return the bank's own gate in the next query, and in as many as its epoch declared; None before any panel."""
    known = read_panels(store, found)
    if known and known.conditions.guard > known.panel.rollouts:
        return None, None  # a ledger may say so; nothing can be planned for it
    rates, terms = panel_rates(known, None, None), gate_terms(known)
    return (plan_gate(rates, terms, known), plan_run(rates, terms, known, attempts)) if rates else (None, None)


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
    needed = gate_rule.needed_passes(epoch.panel.rho, len(epoch.panel.tasks), epoch.panel.rollouts)
    each = 1 + asked.confirm

    def accepts(current: Sequence[PanelOutcome], candidates: Sequence[Sequence[PanelOutcome]]) -> bool:
        return all(
            gate_rule.decide_measurement(current, c, needed, asked.guard, asked.bet)[0] == "accept" for c in candidates
        )

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
    """Return a chance in whole percent, below 1 with a digit more; `< 0.1 %` or `> 99 %` near the ends."""
    if chance < 0.01:
        return f"{100 * chance:.1f} %" if chance >= 0.0005 else "< 0.1 %"
    return "> 99 %" if chance > 0.99 else f"{100 * chance:.0f} %"


def conditions_in_words(rule: Gate | GatePlan) -> str:
    """Return the conditions of an accept besides the margin, as the end of a sentence; empty if there are none."""
    words = ", accepts repeated" if rule.confirm else ""
    words += f", no task losing {plural(rule.guard, 'pass', 'passes')}" if rule.guard else ""
    return words + (f", a bet multiplied by {rule.bet}" if rule.bet else "")


def _rule(rates: Rates, terms: GateTerms) -> Gate:
    needed = gate_rule.needed_passes(terms.rho, len(rates.beliefs), terms.rollouts)
    return Gate(terms.rollouts, needed, terms.confirm, terms.guard, terms.fresh, terms.bet)


def _now(rates: Rates, terms: GateTerms, known: RecordedPanels | None) -> tuple[int, ...] | None:
    """Return the outcomes that the next gate compares with, if this is the bank's own gate."""
    own = known and rates.source == "these tasks" and terms.rollouts == known.panel.rollouts
    return known.carried if known and own else None


def _advice(beliefs: Sequence[Beta], rule: Gate, terms: GateTerms, now: Sequence[int] | None) -> str:
    """Return one sentence: whether this gate is good enough, and how to improve it."""
    tasks, rollouts = len(beliefs), rule.rollouts
    if now is not None and sum(now) + rule.needed > tasks * rollouts:
        return (
            f"Saturated: the bank passes {sum(now)} of {tasks * rollouts} panel rollouts now, and an accept takes "
            f"{plural(rule.needed, 'more pass', 'more passes')}. No proposal can be accepted: choose harder panel "
            "tasks."
        )
    size = f"{tasks} x {rollouts} at margin {terms.rho}{conditions_in_words(rule)}"
    if power.most_gain(beliefs, terms.reach) < WORTH:
        return (
            f"{size}: saturated. On these tasks a proposal can gain less than 5 points, so choose harder panel tasks."
        )
    worth = power.change_of(beliefs, WORTH, terms.reach)
    false, found = (power.accept_chance(beliefs, rule, how) for how in (Change(reach=terms.reach), worth))
    quality = (
        f"{size} accepts {percent(false)} of the proposals that change nothing and {percent(found)} of those worth "
        "5 points"
    )
    if false <= FALSE_ACCEPT and found >= POWER:
        return f"{quality}, which is good enough: keep it."
    for more in range(rollouts, min(_MOST_ROLLOUTS, _LARGEST_PANEL // tasks) + 1):
        asked = power.margin_for(beliefs, more, FALSE_ACCEPT, terms.reach)
        better = power.accept_chance(beliefs, Gate(more, asked), worth)
        if better >= POWER:
            return (
                f"{quality}. For at most 5 % and at least 80 %, use {plural(more, 'rollout')} per task and margin "
                f"{gate_rule.margin_of(asked, tasks * more)} ({percent(better)} found, {tasks * more} rollouts per "
                "full panel), or more tasks."
            )
    return f"{quality}. At most 5 % and at least 80 % need more tasks, not more rollouts per task."


def _odds(
    beliefs: Sequence[Beta], rule: Gate, effect: float, reach: float, now: Sequence[int] | None, seed: int
) -> Odds:
    try:
        how = power.change_of(beliefs, effect, reach)
    except ValueError:
        return Odds(effect=effect, fresh=None, whole=None, carried=None, rollouts=None)
    drawn = power.simulate(
        beliefs, rule, [(1.0, how)], 1, seed=seed, runs=power.draws(beliefs, rule.rollouts, 1000), now=now
    )
    return Odds(
        effect=effect,
        fresh=power.accept_chance(beliefs, rule, how),
        whole=power.accept_chance(beliefs, rule, how._replace(whole=True)),
        carried=None if now is None else power.accept_chance(beliefs, rule, how, now),
        rollouts=drawn.rollouts - drawn.baselines,
    )


def _accept_share(accepted: Sequence[bool]) -> AcceptShare:
    low, high = estimates.clopper_pearson(sum(accepted), len(accepted))
    return AcceptShare(gates=len(accepted), accepted=sum(accepted), low=low, high=high)


def _passing_share(outcomes: Sequence[PanelOutcome]) -> float:
    return sum(o.outcome == "resolved" for o in outcomes) / len(outcomes)
