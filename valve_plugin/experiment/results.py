"""From finished runs to rows: every number with the ledger line behind it. Reads banks, runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from valve_plugin.bank.entries import Entry
from valve_plugin.bank.evaluated import Interval, Point, differences, gain, path, peak, points, rate
from valve_plugin.bank.store import BankStore
from valve_plugin.experiment import ending
from valve_plugin.experiment.spec import Cell, Experiment, cells
from valve_plugin.experiment.times import read as times_of

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


class Found(NamedTuple):
    """What a folder says about the runs of a file."""

    rows: list[Row]
    """One for every run that has ended, in the experiment's order."""
    remarks: dict[str, str]
    """By a run's folder: why it has no row, or what came after it."""


def collect(experiment: Experiment, out: Path) -> Found:
    """Return the rows of a folder's runs, and what is to be said about those without one."""
    rows, remarks = [], {}
    for cell in cells(experiment):
        entries, remark = ending.find(experiment, cell, out)
        if remark:
            remarks[cell.path.as_posix()] = remark
        if entries:
            rows.append(_row(experiment, cell, out, entries))
    return Found(rows, remarks)


def _row(experiment: Experiment, cell: Cell, out: Path, entries: Sequence[Entry]) -> Row:
    bank = out / cell.path / "bank"
    store = BankStore.open(bank)
    seen = points(entries, experiment.every)
    first, last, best = seen[0], seen[-1], peak(seen)
    times, end = times_of(out / cell.path), path(entries)[-1]
    items = store.at(end.version)
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
        skills=len(items.skills),
        principles=len(items.principles),
        steps=end.step,
        accepts=end.version,
        hours=sum(times.rollouts.values()) / 3600,
        wall_hours=times.wall_seconds / 3600,
        curve=tuple(_checkpoint(p, store) for p in seen),
        ledger=(bank.relative_to(out) / "ledger.jsonl").as_posix(),
    )


def _checkpoint(point: Point, store: BankStore) -> Checkpoint:
    version = point.entry.version
    size = len(store.at(version).items)
    return Checkpoint(point.step, version, _points(rate(point.entry)), size, point.reading.line)


def _points(interval: Interval) -> Pair:
    return 100 * float(interval.low), 100 * float(interval.high)
