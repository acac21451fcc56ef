"""Budgets: the spending of a run, whether another rollout may start, and the cost of one gate.

Money is in USD, time in wall-clock hours. A limit of 0 means no limit. A budget never changes a verdict: a run that
stopped at its budget continues later with the same result as without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from valve_plugin.words import plural

Role = Literal["solver", "extractor", "gate", "measurement", "evaluation"]
ROLES: tuple[Role, ...] = ("solver", "extractor", "gate", "measurement", "evaluation")
_ROLE_OF: dict[str, Role] = {
    "evolve": "solver",
    "panel": "gate",
    "extract": "extractor",
    "review": "extractor",
    "measurement": "measurement",
}

PROMPT_TOKENS, REPLY_TOKENS = 10_000, 500
"""Assumed tokens of one model call, if a model's price is known and no rollout of it is recorded."""


MIN_HOURS = 0.01
"""36 seconds of wall-clock time, the minimum to load the agents on a busy machine."""

_TOLERANCE = 1e-9
"""Tolerance for floating-point sums, so that eleven times $0.10 fit into $1.10."""


class BudgetLimits(NamedTuple):
    """The limits of a run; 0 means no limit."""

    usd: float = 0.0
    rollouts: int = 0
    hours: float = 0.0


class Spending(NamedTuple):
    """The spending of a run or of one role."""

    usd: float = 0.0
    rollouts: int = 0
    """Rollouts that ran, without those read from the journal; for the extractor, calls."""
    hours: float = 0.0
    """Wall-clock hours of a run; for one role, the sum over its rollouts, which may run in parallel."""

    def plus(self, usd: float = 0.0, rollouts: int = 0, hours: float = 0.0) -> Spending:
        """Return the sum of this and more spending."""
        return Spending(self.usd + usd, self.rollouts + rollouts, self.hours + hours)


class RolloutCost(NamedTuple):
    """The cost of one rollout; None means unknown."""

    usd: float | None = None
    seconds: float | None = None
    basis: str = ""
    """Origin of the numbers, as text."""


class GateCost(NamedTuple):
    """The cost of a gate up to its verdict."""

    rollouts: int
    usd: float | None
    hours: float | None


def reached_limit(limits: BudgetLimits, spent: Spending, running: int, usd_each: float) -> str:
    """Return the limit, as text, that prevents another rollout from starting, or an empty string.

    Args:
        limits: the run's limits.
        spent: spending of finished rollouts.
        running: number of started, unfinished rollouts; each is expected to cost `usd_each`. Counting them prevents
            overspending by parallel starts.
        usd_each: mean or expected cost of a rollout; 0 if unknown.
    """
    if limits.rollouts and spent.rollouts + running >= limits.rollouts:
        return describe_limits(BudgetLimits(rollouts=limits.rollouts))
    if limits.usd and (spent.usd >= limits.usd or spent.usd + (running + 1) * usd_each > limits.usd + _TOLERANCE):
        return describe_limits(BudgetLimits(usd=limits.usd))
    if limits.hours and spent.hours >= limits.hours:
        return describe_limits(BudgetLimits(hours=limits.hours))
    return ""


def describe_limits(limits: BudgetLimits) -> str:
    """Return the limits as text: `$1.10, 20 rollouts, 3 hours`."""
    usd = f"${limits.usd:.2f}" if limits.usd else ""
    rollouts = plural(limits.rollouts, "rollout") if limits.rollouts else ""
    hours = f"{limits.hours:.3g} hours" if limits.hours else ""
    return ", ".join(filter(None, (usd, rollouts, hours)))


def describe_spending(spent: Spending, running: int, usd_each: float) -> str:
    """Return the spending as text, with every number that `reached_limit` compares with a limit in dollars."""
    usd = f", ${spent.usd:.2f} spent" if spent.usd else ""
    if usd_each >= 0.005:
        usd += f", {running} under way expected to cost ${running * usd_each:.2f}" if running else ""
        usd += f", another is expected to cost ${usd_each:.2f}"
    return f"{plural(spent.rollouts + running, 'rollout')} started{usd}"


def remaining_limits(limits: BudgetLimits, spent: Spending) -> BudgetLimits:
    """Return the remaining limits for a part of the run. Call it only while no limit is reached."""
    return BudgetLimits(
        usd=limits.usd and max(limits.usd - spent.usd, 1e-9),
        rollouts=limits.rollouts and max(limits.rollouts - spent.rollouts, 1),
        hours=limits.hours and max(limits.hours - spent.hours, 1e-9),
    )


def gate_cost(rollouts: int, each: RolloutCost, workers: int) -> GateCost:
    """Return the cost of this number of rollouts with `workers` in parallel."""
    return GateCost(
        rollouts=rollouts,
        usd=None if each.usd is None else rollouts * each.usd,
        hours=None if each.seconds is None else rollouts * each.seconds / 3600 / workers,
    )


def sufficient_options(limits: BudgetLimits, needed: GateCost) -> list[str]:
    """Return a sufficient option for each limit that one gate exceeds, or an empty list if the gate fits.

    A gate takes at least `MIN_HOURS`.
    """
    hours = max(needed.hours or 0.0, MIN_HOURS)
    options = []
    if limits.rollouts and needed.rollouts > limits.rollouts:
        options.append(f"--max-rollouts {needed.rollouts}")
    if limits.usd and needed.usd is not None and needed.usd > limits.usd + _TOLERANCE:
        options.append(f"--budget-usd {_round_up(needed.usd)}")
    if limits.hours and hours > limits.hours + _TOLERANCE:
        options.append(f"--max-hours {_round_up(hours)}")
    return options


def mean_rollout_cost(records: Iterable[Mapping[str, Any]]) -> RolloutCost:
    """Return the mean cost of recorded rollouts, without errored ones.

    A cost of 0 in all of them is unknown: mini counts no cost under MSWEA_COST_TRACKING=ignore_errors.
    """
    usd = seconds = 0.0
    number = 0
    for record in records:
        if record.get("outcome") in ("resolved", "unresolved"):
            usd, seconds, number = usd + record["cost_usd"], seconds + record["seconds"], number + 1
    if not number:
        return RolloutCost()
    return RolloutCost(usd / number or None, seconds / number or None, f"means of {plural(number, 'recorded rollout')}")


def max_rollout_cost(prompt_usd: float, reply_usd: float, step_limit: int, cost_limit: float) -> RolloutCost:
    """Return the largest cost of a rollout at known prices (USD per token), with assumed sizes of a call."""
    usd = step_limit * (PROMPT_TOKENS * prompt_usd + REPLY_TOKENS * reply_usd)
    basis = f"{step_limit} calls of {PROMPT_TOKENS:,} + {REPLY_TOKENS} tokens, assumed"
    return RolloutCost(min(usd, cost_limit) if cost_limit else usd, None, basis)


def spending_by_role(records: Iterable[Mapping[str, Any]]) -> dict[Role, Spending]:
    """Return the spending by role from records of rollouts and calls, errored ones included."""
    found: dict[Role, Spending] = {}
    for record in records:
        role = _ROLE_OF.get(str(record.get("source")), "evaluation")
        usd, seconds = float(record.get("cost_usd", 0.0)), float(record.get("seconds", 0.0))
        found[role] = found.get(role, Spending()).plus(usd, 1, seconds / 3600)
    return {role: found[role] for role in ROLES if role in found}


def _round_up(value: float) -> str:
    """Return a value as text, rounded up to two decimals so that the limit is sufficient."""
    return f"{-(-round(value * 1e6) // 10_000) / 100:.2f}"
