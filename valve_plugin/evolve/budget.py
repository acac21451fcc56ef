"""The cost of the next verdict of a bank, to refuse a budget that is too small before anything is spent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from valve_plugin.bank.local import LocalStore
from valve_plugin.bank.store import BankStore
from valve_plugin.client import price, pricing_help
from valve_plugin.config import Settings, model_of
from valve_plugin.errors import ConfigError
from valve_plugin.evolve.steps import ATTEMPTS, Steps, mixed_tasks, stream_position, waiting
from valve_plugin.gate.plan import PlannedRollout, baseline_plan, fixed_panel, gate_plan, panel_tasks
from valve_plugin.records import Panel, Task
from valve_plugin.rollouts.attempt import rollout_key
from valve_plugin.rollouts.retry import limits_of
from valve_plugin.theory import budget, gate_rule
from valve_plugin.theory.budget import RolloutCost, max_rollout_cost, mean_rollout_cost
from valve_plugin.words import duration, plural


class VerdictNeed(NamedTuple):
    """The rollouts that a verdict needs."""

    rollouts: int
    """Maximum for the next proposal: its screen, a missing baseline, one whole panel (two if accepts are confirmed)
    and, if no proposal waits, the attempts at the task that gives it."""
    each_task: int = 0
    """Attempts at each further task that is not mixed and gives no proposal; 0 if a proposal is certain."""


class VerdictCost(NamedTuple):
    """What the next verdict may take at most."""

    phrase: str
    rollouts: int
    usd: float | None


def require_verdict(
    steps: Steps, tasks: Sequence[Task], stream: Sequence[Task], *, queued: bool = False
) -> VerdictCost | None:
    """Check that a budget, if there is one, reaches the next verdict; return the maximum cost of this verdict.

    Returns:
        The cost, or None if there is nothing to do.

    Raises:
        ConfigError: the budget is too small (the message has one that would do), or its dollars cannot be counted.
    """
    need = VerdictNeed(proposal_rollouts(steps, tasks, queued=True)) if queued else next_verdict(steps, tasks, stream)
    return require_affordable(steps.settings, need, steps.store) if need else None


def require_first_verdict(
    settings: Settings, panel: Panel | None, store: BankStore | None, tasks: Sequence[Task], *, queued: bool = False
) -> None:
    """Check that a budget reaches the first verdict of a new bank or epoch.

    Args:
        panel: None for an ungated run.
        tasks: the task set's.
        queued: whether the queue is judged, instead of the stream.

    Raises:
        ConfigError: as `require_verdict`.
    """
    if any(limits_of(settings)):
        source = _next_source(store, queued=queued) if store else None
        attempts = settings.attempts or ATTEMPTS if source is None else 0
        full = len(panel.tasks) * panel.rollouts if panel else 0
        panels = 3 if settings.confirm else 2
        screen = settings.screen if panel and settings.protocol == "fresh" and _of_a_task(source, tasks) else 0
        require_affordable(settings, VerdictNeed(attempts + screen + panels * full, attempts if panel else 0), store)


def require_affordable(settings: Settings, verdict: VerdictNeed, store: BankStore | None) -> VerdictCost:
    """Check that a budget is large enough for a verdict; return the maximum cost.

    Raises:
        ConfigError: as `require_verdict`.
    """
    asked, rollout = limits_of(settings), rollout_cost(store.local if store else None, settings)
    if asked.usd and rollout.usd is None:
        model = model_of(settings)
        raise ConfigError(
            f"the cost of {model} is not known, so dollars cannot be counted: limit the run with --max-rollouts N "
            f"(each ends after step_limit = {settings.step_limit} model calls at most) or --max-hours H, or give the "
            f"price: {pricing_help(model)}"
        )
    needed = budget.gate_cost(verdict.rollouts, rollout, settings.workers)
    money = "" if needed.usd is None else f", ${needed.usd:.2f}"
    time = "" if needed.hours is None else f", {duration(needed.hours)}"
    figures = f"{plural(needed.rollouts, 'rollout')}{money}{time}" + (f" ({rollout.basis})" if rollout.basis else "")
    if verdict.each_task:  # nobody knows how many tasks come before one whose attempts are mixed
        figures += f" where the next task is mixed, {verdict.each_task} more for each before it that is not"
    if asked.hours and asked.hours < budget.MIN_HOURS and needed.hours is None:
        raise ConfigError(
            f"max_hours is {asked.hours:g}, over before the agents are loaded, so no rollout would ever start: give at "
            f"least --max-hours {budget.MIN_HOURS}, or leave it out for no limit. The next verdict may take "
            f"{figures}; how long one takes is not recorded yet"
        )
    if options := budget.sufficient_options(asked, needed):
        raise ConfigError(
            f"the budget is too small for one verdict, which may take {figures}; this would do: {' '.join(options)}"
        )
    return VerdictCost(figures, needed.rollouts, needed.usd)


def next_verdict(steps: Steps, tasks: Sequence[Task], stream: Sequence[Task]) -> VerdictNeed | None:
    """Return what takes the next proposal to its verdict, without rollouts that are in the journal.

    Returns:
        The need; None: no proposal waits, and the stream has nothing left to attempt.
    """
    if waiting(steps.store):
        return VerdictNeed(proposal_rollouts(steps, tasks))
    missing = _attempts_missing(steps, stream)
    if missing is None:
        return None
    return VerdictNeed(missing + proposal_rollouts(steps, tasks), steps.settings.attempts if missing else 0)


def _attempts_missing(steps: Steps, stream: Sequence[Task]) -> int | None:
    """Return the number of missing attempts at the next task that may give a proposal, or None if there is none."""
    ids = [task.instance_id for task in stream]
    if len(mixed_tasks(steps.store, ids)) >= steps.settings.max_mixed:
        return None
    for task in stream[stream_position(steps.store, ids) :]:
        keys = (rollout_key(steps.settings, *cell) for cell in steps.cells(task, steps.retrieve(task)))
        found = [steps.store.local.journal_get(key) for key in keys]
        known = [attempt for attempt in found if attempt]
        if len(known) < len(found) or steps.material(known):
            return len(found) - len(known)
    return None


def _next_source(store: BankStore, *, queued: bool) -> str | None:
    """Return the task id of the next proposal, if one waits or the queue gives one; else None."""
    if proposal := waiting(store):
        return proposal.task_id
    return next((str(job["task_id"]) for job in store.local.queue()), None) if queued else None


def _of_a_task(source: str | None, tasks: Sequence[Task]) -> bool:
    """Whether a proposal may have a screen: one of the stream's, or of a task of the set."""
    return source is None or any(task.instance_id == source for task in tasks)


def proposal_rollouts(steps: Steps, tasks: Sequence[Task], *, queued: bool = False) -> int:
    """Return the maximum number of rollouts from a proposal to its verdict; 0 for an ungated run."""
    store, settings, retrieve = steps.store, steps.settings, steps.hook.valve_retrieve
    epoch = store.epoch()
    if epoch is None:
        return 0
    panel = fixed_panel(store)
    members, full = panel_tasks(panel, tasks), len(panel.tasks) * panel.rollouts
    repeated = full if epoch.conditions and epoch.conditions.confirm else 0
    current, proposal = store.current_outcomes(), waiting(store)
    proposal = proposal and steps.refreshed(proposal)  # the bank may have changed since
    if proposal is None:
        screened = epoch.conditions and epoch.conditions.fresh and _of_a_task(_next_source(store, queued=queued), tasks)
        screen = settings.screen if screened else 0
    else:
        screen = _missing(store.local, settings, steps.screening(proposal))
    if current is None:
        baseline = baseline_plan(settings, store, members, retrieve)
        return screen + _missing(store.local, settings, baseline.cells) + full + repeated
    if proposal is None:
        return screen + full + repeated
    plan = gate_plan(settings, store, members, proposal, retrieve)
    needed = gate_rule.needed_passes(panel.rho, len(panel.tasks), panel.rollouts)
    if gate_rule.decisive_prefix([o.outcome for o in current], [o.outcome for o in plan.reused], needed) is not None:
        return screen
    return screen + _missing(store.local, settings, plan.cells) + repeated


def rollout_cost(local: LocalStore | None, settings: Settings, *, by_price: bool = False) -> RolloutCost:
    """Return cost and time of a rollout of this model, from telemetry or else from its price; both may be unknown."""
    model = model_of(settings)
    seen = mean_rollout_cost(
        r for r in (local.read_telemetry("rollouts") if local else ()) if r.get("model", "") in ("", model)
    )
    if seen.usd is not None or not (by_price or settings.budget_usd):
        return seen
    known = price(model)  # 4 s, so only where dollars are asked for
    if known is None:
        return seen
    most = max_rollout_cost(*known, settings.step_limit, settings.cost_limit)
    return most._replace(seconds=seen.seconds)


def _missing(local: LocalStore, settings: Settings, cells: Iterable[PlannedRollout]) -> int:
    keys = (rollout_key(settings, cell.task, cell.context, cell.ordinal) for cell in cells)
    return sum(local.journal_get(key) is None for key in keys)
