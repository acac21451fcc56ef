"""Budgets: what a run has spent, what may still start, and the least that takes a gate to its verdict.

Money is in USD, time in hours of wall clock. A limit of 0 is none. Nothing here decides about a proposal: a run that a
budget stopped writes, when it goes on, what it would have written without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from valve_plugin.words import plural

Role = Literal["solver", "extractor", "gate", "measurement", "evaluation"]
ROLES: tuple[Role, ...] = ("solver", "extractor", "gate", "measurement", "evaluation")
_ROLE_OF: dict[str, Role] = {"evolve": "solver", "panel": "gate", "extract": "extractor", "measurement": "measurement"}

PROMPT_TOKENS, REPLY_TOKENS = 10_000, 500
"""Of one model call, assumed where a model's price is known and no rollout of it is recorded."""


LEAST_HOURS = 0.01
"""36 seconds of wall clock: in less, a machine under load has hardly loaded the agents."""

_DUST = 1e-9
"""What sums of floating-point numbers may be off by: eleven times $0.10 fit into $1.10."""


class Limits(NamedTuple):
    """What a run may spend."""

    usd: float = 0.0
    rollouts: int = 0
    hours: float = 0.0


class Spent(NamedTuple):
    """What was spent."""

    usd: float = 0.0
    rollouts: int = 0
    """Rollouts that ran; those out of the journal cost nothing. Of the extractor: calls."""
    hours: float = 0.0
    """Of the run; by role, the sum over its rollouts, which may have run side by side."""

    def plus(self, usd: float = 0.0, rollouts: int = 0, hours: float = 0.0) -> Spent:
        """Return this and some more."""
        return Spent(self.usd + usd, self.rollouts + rollouts, self.hours + hours)


class Each(NamedTuple):
    """What one rollout takes; None: unknown."""

    usd: float | None = None
    seconds: float | None = None
    basis: str = ""
    """Where the figures are from."""


class Need(NamedTuple):
    """What takes a gate to its verdict, whatever the verdict."""

    rollouts: int
    usd: float | None
    hours: float | None


def reached(limits: Limits, spent: Spent, running: int, usd_each: float) -> str:
    """Return which limit keeps another rollout from starting; empty: none does.

    Args:
        limits: of the run.
        spent: by what has ended.
        running: rollouts that started and have not ended; each is expected to cost `usd_each`.
        usd_each: mean so far, or what is expected; 0 where nothing is known.
    """
    if limits.rollouts and spent.rollouts + running >= limits.rollouts:
        return words(Limits(rollouts=limits.rollouts))
    if limits.usd and (spent.usd >= limits.usd or spent.usd + (running + 1) * usd_each > limits.usd + _DUST):
        return words(Limits(usd=limits.usd))
    if limits.hours and spent.hours >= limits.hours:
        return words(Limits(hours=limits.hours))
    return ""


def words(limits: Limits) -> str:
    """Return limits as a person says them."""
    usd = f"${limits.usd:.2f}" if limits.usd else ""
    rollouts = plural(limits.rollouts, "rollout") if limits.rollouts else ""
    hours = f"{limits.hours:.3g} hours" if limits.hours else ""
    return ", ".join(filter(None, (usd, rollouts, hours)))


def started(spent: Spent, running: int, usd_each: float) -> str:
    """Return what a run used: its rollouts, and its dollars where they are known; see `reached`.

    All that a limit in dollars goes by is said, so that it adds up.
    """
    usd = f", ${spent.usd:.2f} spent" if spent.usd else ""
    if usd_each >= 0.005:
        usd += f", {running} under way expected to cost ${running * usd_each:.2f}" if running else ""
        usd += f", another is expected to cost ${usd_each:.2f}"
    return f"{plural(spent.rollouts + running, 'rollout')} started{usd}"


def left(limits: Limits, spent: Spent) -> Limits:
    """Return what is left, for a part of the run; no limit stays none. Only while none is reached."""
    return Limits(
        usd=limits.usd and max(limits.usd - spent.usd, 1e-9),
        rollouts=limits.rollouts and max(limits.rollouts - spent.rollouts, 1),
        hours=limits.hours and max(limits.hours - spent.hours, 1e-9),
    )


def need(rollouts: int, each: Each, workers: int) -> Need:
    """Return what so many rollouts take, `workers` at a time."""
    return Need(
        rollouts=rollouts,
        usd=None if each.usd is None else rollouts * each.usd,
        hours=None if each.seconds is None else rollouts * each.seconds / 3600 / workers,
    )


def short(limits: Limits, needed: Need) -> list[str]:
    """Return the options that would do, for each limit that one gate is known to exceed; empty: it fits.

    No gate is known to take less than `LEAST_HOURS`.
    """
    hours = max(needed.hours or 0.0, LEAST_HOURS)
    options = []
    if limits.rollouts and needed.rollouts > limits.rollouts:
        options.append(f"--max-rollouts {needed.rollouts}")
    if limits.usd and needed.usd is not None and needed.usd > limits.usd + _DUST:
        options.append(f"--budget-usd {_up(needed.usd)}")
    if limits.hours and hours > limits.hours + _DUST:
        options.append(f"--max-hours {_up(hours)}")
    return options


def each(records: Iterable[Mapping[str, Any]]) -> Each:
    """Return the means over recorded rollouts of agents; those that the infrastructure ended say nothing.

    A cost that is 0 throughout is unknown: mini counts none under MSWEA_COST_TRACKING=ignore_errors.
    """
    usd = seconds = 0.0
    number = 0
    for record in records:
        if record.get("outcome") in ("resolved", "unresolved"):
            usd, seconds, number = usd + record["cost_usd"], seconds + record["seconds"], number + 1
    if not number:
        return Each()
    return Each(usd / number or None, seconds / number or None, f"means of {plural(number, 'recorded rollout')}")


def priced(prompt_usd: float, reply_usd: float, step_limit: int, cost_limit: float) -> Each:
    """Return what a rollout of a model with known prices (USD per token) costs at most, by assumed sizes of a call."""
    usd = step_limit * (PROMPT_TOKENS * prompt_usd + REPLY_TOKENS * reply_usd)
    basis = f"{step_limit} calls of {PROMPT_TOKENS:,} + {REPLY_TOKENS} tokens, assumed"
    return Each(min(usd, cost_limit) if cost_limit else usd, None, basis)


def by_role(records: Iterable[Mapping[str, Any]]) -> dict[Role, Spent]:
    """Return what records of rollouts and calls amount to; `source` says the role. Errored ones were paid for too."""
    found: dict[Role, Spent] = {}
    for record in records:
        role = _ROLE_OF.get(str(record.get("source")), "evaluation")
        usd, seconds = float(record.get("cost_usd", 0.0)), float(record.get("seconds", 0.0))
        found[role] = found.get(role, Spent()).plus(usd, 1, seconds / 3600)
    return {role: found[role] for role in ROLES if role in found}


def _up(value: float) -> str:
    """Return a value rounded up to two digits after the point, so that it suffices."""
    return f"{-(-round(value * 1e6) // 10_000) / 100:.2f}"
