"""What a plan starts from: a bank's complete panels, or rates that were typed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from valve_plugin.bank.measured import Complete, measured
from valve_plugin.bank.store import BankStore
from valve_plugin.gate.plan import history
from valve_plugin.records import Conditions, Panel
from valve_plugin.report.again import Again, again
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
    current: list[tuple[int, ...]]
    """Those of the current bank: when some were made for their own sake (A/A), only such as nothing selected."""
    conditions: Conditions
    """What an accept takes beyond the margin."""
    again: Again | None
    """What the A/A measurements of the current bank show."""


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
        current=_current(last.complete),
        conditions=last.opened.conditions or Conditions(),
        again=again(last, store.current_outcomes() or (), store.bank.version),
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
        return Rates([estimates.stated(given)] * (size or 50), "tasks as given", [])
    if known is None or not known.panels:
        return None
    r = known.panel.rollouts
    if size not in (None, len(known.panel.tasks)):
        return Rates([estimates.population(estimates.spread(known.panels, r))] * size, "tasks like these", [])
    counts = [(sum(column), r * len(column)) for column in zip(*known.panels, strict=True)]
    beliefs: Sequence[power.Belief] = estimates.posterior(known.panels, r, known.current)
    return Rates(list(beliefs), "these tasks", counts)


def _current(complete: Sequence[Complete]) -> list[tuple[int, ...]]:
    """The last bank's measurements; an accept's own one was chosen for being high, so it yields to unchosen ones."""
    mine = [c for c in complete if c.version == complete[-1].version]
    return [c.passes for c in mine if c.again] or [c.passes for c in mine]


def _carried(store: BankStore, panel: Panel) -> Carried | None:
    current = store.current_outcomes()
    if current is None or store.panel() != panel:
        return None
    ids = [task.instance_id for task in panel.tasks]
    order = gate.order(ids, history(store), current)
    passed = Counter(o.task_id for o in current if o.outcome == "resolved")
    return Carried(tuple(passed[task] for task in ids), tuple(map(ids.index, order)))
