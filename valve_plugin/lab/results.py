"""From finished runs to rows: every number with the ledger line behind it. Reads banks, runs nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import msgspec
import pluggy

from valve_plugin.bank.entries import Entry
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import canonical, decode
from valve_plugin.errors import BankNotFoundError, RecordError
from valve_plugin.events import AttemptFinished, Event, RolloutFinished
from valve_plugin.evidence.evaluations import (
    EvaluatedCheckpoint,
    Interval,
    differences,
    evaluated_checkpoints,
    mean_gain,
    peak_checkpoint,
    solve_rate,
    version_path,
)
from valve_plugin.files import append_shared, make_dir, read_limited
from valve_plugin.hookspecs import hookimpl
from valve_plugin.lab import folder
from valve_plugin.lab.spec import Experiment, ExperimentRun, list_runs

TIMES_FILE = "times.jsonl"
_MAX_BYTES = 1 << 30
Bounds = tuple[float, float]
"""Lower and upper bound, in points; equal when no rollout errored."""


class CurvePoint(NamedTuple):
    """One evaluation of a run."""

    step: int
    version: int
    rate: Bounds
    items: int
    """Size of the bank then."""
    line: int
    """Of the run's ledger, from 1."""


class RunResult(NamedTuple):
    """What one run came to. Rates and gains are in points."""

    repository: str
    model: str
    condition: str
    seed: int
    base: Bounds
    final: Bounds
    gain: Bounds
    each: tuple[Bounds, ...]
    """The gain of every holdout task, in order; all runs of a repository have the same holdout."""
    peak: Bounds
    peak_gain: Bounds
    drawdown: Bounds
    skills: int
    principles: int
    steps: int
    accepts: int
    hours: float
    """Rollout hours of learning, evaluation excluded, shared rollouts counted as if they had been run."""
    wall_hours: float
    """Hours that this machine needed; shared rollouts take none."""
    curve: tuple[CurvePoint, ...]
    ledger: str
    """Path from the experiment's folder."""

    @property
    def hours_per_step(self) -> float:
        """Hours of learning per step; 0 where nothing was learned from."""
        return self.hours / self.steps if self.steps else 0.0


class Results(NamedTuple):
    """What a folder holds about the runs of a file."""

    rows: list[RunResult]
    """One for every run that has ended, in the experiment's order."""
    remarks: dict[str, str]
    """By a run's folder: why it has no row, or what was written to its bank after it."""


def collect(experiment: Experiment, out: Path) -> Results:
    """Return the results of a folder's runs, with remarks about those that have none."""
    results = Results([], {})
    for run in list_runs(experiment):
        entries, remark = folder.read_ending(experiment, run, out)
        if remark:
            results.remarks[run.path.as_posix()] = remark
        if entries:
            results.rows.append(_run_result(experiment, run, out, entries))
    return results


def _run_result(experiment: Experiment, run: ExperimentRun, out: Path, entries: Sequence[Entry]) -> RunResult:
    bank = out / run.path / "bank"
    store = BankStore.open(bank)
    points = evaluated_checkpoints(entries, experiment.every)
    first, last, best = points[0].entry, points[-1].entry, peak_checkpoint(points).entry
    times, end = read_times(out / run.path), version_path(entries)[-1]
    items = store.at(end.version)
    return RunResult(
        repository=run.repository.name,
        model=run.model.name,
        condition=run.variant.name,
        seed=run.seed,
        base=_bounds(solve_rate(first)),
        final=_bounds(solve_rate(last)),
        gain=_bounds(mean_gain(first, last)),
        each=tuple(map(_bounds, differences(first, last).values())),
        peak=_bounds(solve_rate(best)),
        peak_gain=_bounds(mean_gain(first, best)),
        drawdown=_bounds(mean_gain(last, best)),
        skills=len(items.skills),
        principles=len(items.principles),
        steps=end.step,
        accepts=end.version,
        hours=sum(times.rollouts.values()) / 3600,
        wall_hours=times.wall_seconds / 3600,
        curve=tuple(_curve_point(point, store) for point in points),
        ledger=(bank.relative_to(out) / "ledger.jsonl").as_posix(),
    )


def _curve_point(point: EvaluatedCheckpoint, store: BankStore) -> CurvePoint:
    version = point.entry.version
    items = len(store.at(version).items)
    return CurvePoint(point.step, version, _bounds(solve_rate(point.entry)), items, point.line)


def _bounds(interval: Interval) -> Bounds:
    return 100 * float(interval.low), 100 * float(interval.high)


# ---- how long learning took


class TimeNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line: a rollout, or only that a process was at work until then."""

    process: str
    """Random, new at each start."""
    wall: float
    """Seconds since that start."""
    rollout: str = ""
    """Distinguishes it from the run's others. It counts once, also when it is read from the journal again."""
    seconds: float = 0.0


class LearningTime(NamedTuple):
    """What learning took so far."""

    rollouts: dict[str, float]
    """Seconds of every rollout, those shared with other runs included."""
    wall_seconds: float
    """Of all starts together, without the time of a killed one after its last rollout."""


class TimeRecorder(AbstractContextManager["TimeRecorder"]):
    """A plugin that records every rollout of evolution and gate as it ends."""

    def __init__(self, manager: pluggy.PluginManager, folder: Path) -> None:
        self._manager, self._file = manager, folder / TIMES_FILE
        self._recorded = set(read_times(folder).rollouts)

    def __enter__(self) -> TimeRecorder:
        make_dir(self._file.parent)
        self._process, self._started = os.urandom(8).hex(), time.monotonic()
        self._manager.register(self)
        return self

    def __exit__(self, *about: object) -> None:
        self._manager.unregister(self)
        self._record()

    @hookimpl
    def valve_event(self, event: Event) -> None:
        """Record one rollout, unless it is recorded already."""
        if not isinstance(event, AttemptFinished | RolloutFinished) or event.source == "eval":
            return
        rollout = f"{event.source} {event.task_id} {event.ordinal} {event.context_hash[:16]}"
        if event.outcome == "errored":  # it is tried again under the same name, and took its time too
            rollout += f" errored {event.seconds}"
        if rollout not in self._recorded:
            self._recorded.add(rollout)
            self._record(rollout, event.seconds)

    def _record(self, rollout: str = "", seconds: float = 0.0) -> None:
        wall = round(time.monotonic() - self._started, 3)
        note = TimeNote(process=self._process, wall=wall, rollout=rollout, seconds=seconds)
        append_shared(self._file, canonical(note))


def read_times(folder: Path) -> LearningTime:
    """Return what a run's learning took so far. A line that a kill left incomplete is skipped."""
    rollouts: dict[str, float] = {}
    walls: dict[str, float] = {}
    try:
        lines = read_limited(folder / TIMES_FILE, _MAX_BYTES, "times").splitlines()
    except BankNotFoundError:
        lines = []
    for line in lines:
        try:
            note = decode(line, TimeNote, where=TIMES_FILE)
        except RecordError:
            continue
        walls[note.process] = max(note.wall, walls.get(note.process, 0.0))
        if note.rollout:
            rollouts[note.rollout] = note.seconds
    return LearningTime(rollouts, sum(walls.values()))
