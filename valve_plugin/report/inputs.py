"""What a plan starts from: a bank's complete panels, or rates that were typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from valve_plugin.bank.measured import measured
from valve_plugin.bank.store import BankStore
from valve_plugin.gate.plan import history
from valve_plugin.records import Panel
from valve_plugin.report.plan import Carried, Source
from valve_plugin.theory import estimates, gate, power


class Recorded(NamedTuple):
    """A bank's last epoch, and every complete measurement on its panel."""

    repo: str
    panel: Panel
    delta: float
    horizon: int
    panels: list[tuple[int, ...]]
    """Resolved rollouts per task, in panel order, of each measurement."""
    names: list[str]
    """What each of them was."""
    carried: Carried | None
    """What the next gate compares with; None between epochs."""


def recorded(store: BankStore) -> Recorded | None:
    """Return what a bank recorded; None before its first epoch."""
    found = measured(store.entries())
    if not found.epochs:
        return None
    last = found.epochs[-1]
    complete = found.complete(last.opened.panel_hash)
    return Recorded(
        repo=store.bank.repo,
        panel=last.panel,
        delta=float(last.opened.delta),
        horizon=last.opened.horizon,
        panels=[c.passes for c in complete],
        names=[c.what for c in complete],
        carried=_carried(store, last.panel),
    )


class Rates(NamedTuple):
    """What is believed about the solve rates of a panel's tasks."""

    beliefs: list[power.Belief]
    source: Source
    counts: list[tuple[int, int]]
    """(passes, rollouts) behind each belief; empty when it is not about one recorded task."""


def rates(known: Recorded | None, given: estimates.Spread | None, size: int | None) -> Rates | None:
    """Return the rates to plan with; None when nothing is recorded or given.

    Args:
        given: mean and noise that were typed; they win.
        size: panel tasks, where it is not the recorded panel's.
    Raises:
        ValueError: no population has the given mean and noise.
    """
    if given is not None:
        return Rates([estimates.population(given)] * (size or 50), "tasks as given", [])
    if known is None or not known.panels:
        return None
    r = known.panel.rollouts
    if size not in (None, len(known.panel.tasks)):
        return Rates([estimates.population(estimates.spread(known.panels, r))] * size, "tasks like these", [])
    counts = [(sum(column), r * len(column)) for column in zip(*known.panels, strict=True)]
    beliefs: Sequence[power.Belief] = estimates.posterior(known.panels, r)
    return Rates(list(beliefs), "these tasks", counts)


def _carried(store: BankStore, panel: Panel) -> Carried | None:
    current = store.current_outcomes()
    if current is None or store.panel() != panel:
        return None
    ids = [task.instance_id for task in panel.tasks]
    order = gate.order(ids, history(store), current)
    return Carried(gate.passes([o.outcome for o in current]), tuple(map(ids.index, order)))
