"""From finished runs to rows: every number with the ledger line behind it. Reads banks, runs nothing."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from valve_plugin.bank.evaluated import Interval, Point, differences, gain, path, peak, points, rate
from valve_plugin.bank.store import BankStore
from valve_plugin.errors import BankNotFoundError
from valve_plugin.experiment.run import TIMES, ended, read_times
from valve_plugin.experiment.spec import Cell, Experiment, cells

Pair = tuple[float, float]


class Checkpoint(NamedTuple):
    """One evaluation of a run."""

    step: int
    version: int
    rate: Pair
    """Lower and upper bound, in points; equal when nothing errored."""
    items: int
    """Size of the bank then."""
    line: int
    """Of the run's ledger, from 1."""


class Row(NamedTuple):
    """One run. Rates and gains are in points, each a lower and an upper bound."""

    repository: str
    model: str
    condition: str
    seed: int
    base: Pair
    final: Pair
    gain: Pair
    each: tuple[Pair, ...]
    """The gain of every holdout task, in order; all runs of a repository have the same holdout."""
    peak: Pair
    peak_gain: Pair
    drawdown: Pair
    skills: int
    principles: int
    steps: int
    accepts: int
    hours: float
    """Rollout hours of learning, evaluation excluded, shared rollouts counted as if run."""
    wall_hours: float
    """What this machine needed, shared rollouts being free."""
    curve: tuple[Checkpoint, ...]
    ledger: str
    """Path from the experiment's folder."""

    @property
    def hours_per_step(self) -> float:
        """0 where nothing was learned from."""
        return self.hours / self.steps if self.steps else 0.0


def collect(experiment: Experiment, out: Path) -> list[Row]:
    """Return a row for every run that has ended, in the experiment's order."""
    found = (_row(experiment, cell, out) for cell in cells(experiment))
    return [row for row in found if row is not None]


def _row(experiment: Experiment, cell: Cell, out: Path) -> Row | None:
    bank = out / cell.path / "bank"
    try:
        store = BankStore.open(bank)
    except BankNotFoundError:
        return None
    entries = list(store.entries())
    seen = points(entries, experiment.every)
    if not ended(out / cell.path, store):
        return None
    first, last, best = seen[0], seen[-1], peak(seen)
    times = read_times(out / cell.path / TIMES)
    return Row(
        repository=cell.repository.name,
        model=cell.model.name,
        condition=cell.variant.name,
        seed=cell.seed,
        base=_points(rate(first.entry)),
        final=_points(rate(last.entry)),
        gain=_points(gain(first.entry, last.entry)),
        each=tuple(map(_points, differences(first.entry, last.entry).values())),
        peak=_points(rate(best.entry)),
        peak_gain=_points(gain(first.entry, best.entry)),
        drawdown=_points(gain(last.entry, best.entry)),
        skills=len(store.bank.skills),
        principles=len(store.bank.principles),
        steps=path(entries)[-1].step,
        accepts=store.bank.version,
        hours=sum(times.get("rollouts", {}).values()) / 3600,
        wall_hours=times.get("wall_seconds", 0.0) / 3600,
        curve=tuple(_checkpoint(p, store) for p in seen),
        ledger=(bank.relative_to(out) / "ledger.jsonl").as_posix(),
    )


def _checkpoint(point: Point, store: BankStore) -> Checkpoint:
    version = point.entry.version
    size = len(store.at(version).items)
    return Checkpoint(point.step, version, _points(rate(point.entry)), size, point.reading.line)


def _points(interval: Interval) -> Pair:
    return 100 * float(interval.low), 100 * float(interval.high)
