"""From finished runs to rows: every number with the ledger line behind it. Reads banks, runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

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
from valve_plugin.files import append_shared, read_limited
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
    end = version_path(entries)[-1]
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
        hours=sum(read_times(out / run.path).values()) / 3600,
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


class TimeRecorder:
    """A plugin that records the seconds of every rollout of evolution and gate as it ends."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / TIMES_FILE
        self._recorded = read_times(folder)

    @hookimpl
    def valve_event(self, event: Event) -> None:
        """Record one rollout, unless it is recorded already, as one is that is read from the journal again."""
        if not isinstance(event, AttemptFinished | RolloutFinished) or event.source == "eval":
            return
        rollout = f"{event.source} {event.task_id} {event.ordinal} {event.context_hash[:16]}"
        if event.outcome == "errored":  # it is tried again under the same name, and took its time too
            rollout += f" errored {event.seconds}"
        if rollout not in self._recorded:
            self._recorded[rollout] = event.seconds
            append_shared(self._file, canonical({"rollout": rollout, "seconds": event.seconds}))


def read_times(folder: Path) -> dict[str, float]:
    """Return the seconds of each rollout of a run's learning. A line that a kill left incomplete is skipped."""
    times: dict[str, float] = {}
    try:
        lines = read_limited(folder / TIMES_FILE, _MAX_BYTES, "times").splitlines()
    except BankNotFoundError:
        lines = []
    for line in lines:
        with suppress(RecordError):
            note = decode(line, dict[str, Any], where=TIMES_FILE)
            times[str(note.get("rollout"))] = float(note.get("seconds", 0.0))
    return times
