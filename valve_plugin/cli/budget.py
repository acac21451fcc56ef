"""The budget of a run: its options, the estimate before it starts, and what it has spent when it stops."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from valve_plugin.cli import output
from valve_plugin.cli.screen import spent_told
from valve_plugin.errors import BudgetError, ConfigError

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore
    from valve_plugin.cli.progress import Progress
    from valve_plugin.cli.session import Run
    from valve_plugin.config import Settings
    from valve_plugin.evolve.budget import Way
    from valve_plugin.evolve.steps import Steps
    from valve_plugin.records import Panel
    from valve_plugin.theory.budget import Each, Need, Role, Spent

BudgetUsd = Annotated[
    float | None,
    typer.Option("--budget-usd", metavar="USD", help="Stop when this much is spent. Default: no limit."),
]
MaxRollouts = Annotated[
    int | None, typer.Option("--max-rollouts", metavar="N", help="Stop after N rollouts. Default: no limit.")
]
MaxHours = Annotated[
    float | None,
    typer.Option("--max-hours", metavar="H", help="Start nothing new after H hours. Default: no limit."),
]


def preflight(run: Run, steps: Steps, *, queued: bool = False) -> None:
    """Say what the next verdict takes, and refuse a budget that cannot reach it, before anything is spent.

    Args:
        run: everything it needs.
        steps: of the run.
        queued: it learns from attempts that were made before, and from no stream.

    Raises:
        ConfigError: the budget is too small (the message has one that would do), or its dollars cannot be counted.
    """
    from valve_plugin.evolve.budget import Way, expected, judged, way_to_verdict
    from valve_plugin.gate.guard import limits_of

    if not any(limits_of(run.settings)):
        return
    tasks = run.taskset.tasks
    way = Way(judged(steps, tasks)) if queued else way_to_verdict(steps, tasks, run.stream)
    if way is None:  # a run with nothing to do needs no budget
        return
    figures = _affordable(run.settings, way, expected(run.store, run.settings))
    output.note(f"plan      the next verdict takes at most {figures}{_idle(run.store)}")


def before_opening(settings: Settings, panel: Panel | None, store: BankStore | None, *, queued: bool = False) -> None:
    """Refuse a budget that cannot reach a verdict before its bank is made, or its epoch opened.

    `preflight` says the rest.

    Args:
        settings: of the run, with its model.
        panel: the panel the bank has or will have; None: it will be ungated.
        store: the bank; None: there is none yet.
        queued: as of `preflight`.

    Raises:
        ConfigError: as `preflight`.
    """
    from valve_plugin.evolve.budget import anew, expected
    from valve_plugin.evolve.steps import waiting
    from valve_plugin.gate.guard import limits_of

    if any(limits_of(settings)):
        proposed = queued or (store is not None and waiting(store) is not None)
        _affordable(settings, anew(settings, panel, proposed=proposed), expected(store, settings))


def _affordable(settings: Settings, way: Way, each: Each) -> str:
    """Say what a verdict takes, or refuse the budget."""
    from valve_plugin.client import how
    from valve_plugin.gate.guard import limits_of
    from valve_plugin.theory import budget

    asked, model = limits_of(settings), settings.model or os.environ.get("MSWEA_MODEL_NAME", "")
    if asked.usd and each.usd is None:
        raise ConfigError(
            f"the cost of {model} is not known, so dollars cannot be counted: limit the run with --max-rollouts N "
            f"(each ends after step_limit = {settings.step_limit} model calls at most) or --max-hours H, or give the "
            f"price: {how(model)}"
        )
    needed = budget.need(way.rollouts, each, settings.workers)
    figures, more = _figures(needed, each.basis), _not_mixed(way)
    if asked.hours and asked.hours < budget.LEAST_HOURS and needed.hours is None:
        raise ConfigError(
            f"max_hours is {asked.hours:g}, over before the agents are loaded, so no rollout would ever start: give at "
            f"least --max-hours {budget.LEAST_HOURS}, or leave it out for no limit. The next verdict may take "
            f"{figures}{more}; how long one takes is not recorded yet"
        )
    if options := budget.short(asked, needed):
        raise ConfigError(
            f"the budget is too small for one verdict, which may take {figures}{more}; this would do: "
            f"{' '.join(options)}"
        )
    return figures + more


@contextmanager
def stopping(progress: Progress) -> Iterator[None]:
    """Take a budget that is used up for what it is: a clean end of the run, and not of the work."""
    try:
        yield
    except BudgetError as e:
        progress.stopped = str(e)


def tell(progress: Progress) -> None:
    """Print what the run spent by role, and how to go on where a budget stopped it."""
    spent = progress.view.spent
    if spent:
        output.say("spent in this run: " + ", ".join(f"{role} {spent_told(role, s)}" for role, s in spent.items()))
    if progress.stopped:
        again = f": {progress.view.command}" if progress.view.command else ""
        output.say(f"stopped: {progress.stopped}. Nothing is lost: the same command goes on from here{again}")


def facts(progress: Progress, store: BankStore) -> dict[str, Any]:
    """Return the same as plain data, with all that this machine recorded for the bank."""
    from valve_plugin.gate.rollout import CUT
    from valve_plugin.report.run_cost import spent
    from valve_plugin.theory.budget import Spent

    ever = spent(store.local.attempts(), store.local.told("calls"), list(store.entries()), store.local.told(CUT))
    of_bank = {s.role: Spent(s.usd, s.rollouts, s.hours) for s in ever}
    return {"stopped": progress.stopped, "spent": {"run": _plain(progress.view.spent), "bank": _plain(of_bank)}}


def _plain(spent: Mapping[Role, Spent]) -> dict[str, Any]:
    return {role: {"usd": s.usd, "number": s.rollouts, "hours": s.hours} for role, s in spent.items()}


def _figures(needed: Need, basis: str) -> str:
    money = "" if needed.usd is None else f", ${needed.usd:.2f}"
    time = "" if needed.hours is None else f", {needed.hours:.2f} hours"
    return f"{output.plural(needed.rollouts, 'rollout')}{money}{time}" + (f" ({basis})" if basis else "")


def _not_mixed(way: Way) -> str:
    """What the figure leaves open: how many tasks come before one whose attempts are mixed, nobody knows."""
    more = f" where the next task is mixed, {way.each_task} more for each before it that is not"
    return more if way.each_task else ""


def _idle(store: BankStore) -> str:
    """What a gate takes when its proposal changes nothing, the most common case; where that can be foreseen."""
    from valve_plugin.report import inputs
    from valve_plugin.theory import gate, power

    known = inputs.recorded(store)
    rates = inputs.rates(known, None, None) if known else None
    if known is None or rates is None or known.carried is None or rates.source != "these tasks":
        return ""
    needed = gate.needed_passes(known.panel.rho, len(known.panel.tasks), known.panel.rollouts)
    beliefs = [rates.beliefs[i] for i in known.carried.order]
    idle = power.change(rates.beliefs, 0.0)
    used = power.used_carried(beliefs, known.panel.rollouts, needed, sum(known.carried.passes), idle)
    return f"; a gate whose proposal changes nothing takes about {output.plural(round(used), 'rollout')}"
