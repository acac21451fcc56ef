"""From finished runs to rows and the paper's tables: every number with the ledger line behind it. Reads banks alone.

Source: tab:main, tab:stability, tab:bank-size, tab:main-time, tab:ablation-time.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from valve_plugin.bank.entries import Entry
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import canonical, decode
from valve_plugin.errors import BankNotFoundError, RecordError
from valve_plugin.events import AttemptFinished, Event, RolloutFinished
from valve_plugin.evidence import evaluations
from valve_plugin.evidence.items import mean_effect
from valve_plugin.files import append_shared, read_limited
from valve_plugin.hookspecs import hookimpl
from valve_plugin.lab import folder
from valve_plugin.lab.folder import Experiment, ExperimentRun, list_runs

TIMES_FILE = "times.jsonl"
_MAX_BYTES = 1 << 30
Bounds = tuple[float, float]
"""Lower and upper bound, in points; equal when no rollout errored."""
SIMULATED = (
    "**SIMULATION of the solver.** The tasks, the tests, the sandboxed rollouts, the gate and the ledgers are real; "
    "the model is scripted. These numbers show that the machinery works, and nothing about any model or method."
)
_GAIN = "Gain is against step 0, which all conditions share"
_FIRST = ("repository", "model", "condition", "seed")
FILES = ("tables.md", "results.csv")
_HEAD = (
    "Condition", "Final avg (gain)", "Gain ± 1.96 SE", "Peak gain", "Drawdown", "Skills/principles", "Steps", "Hours",
    "Hours/step",
)  # fmt: skip
_WHERE = ("Condition", "Seed", "Evaluations: step, version, rate, ledger line", "Ledger")


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
    points = evaluations.evaluated_checkpoints(entries, experiment.every)
    first, last, best = points[0].entry, points[-1].entry, evaluations.peak_checkpoint(points).entry
    end = evaluations.version_path(entries)[-1]
    items = store.at(end.version)
    return RunResult(
        repository=run.repository.name,
        model=run.model.name,
        condition=run.variant.name,
        seed=run.seed,
        base=_bounds(evaluations.solve_rate(first)),
        final=_bounds(evaluations.solve_rate(last)),
        gain=_bounds(evaluations.mean_gain(first, last)),
        each=tuple(map(_bounds, evaluations.differences(first, last).values())),
        peak=_bounds(evaluations.solve_rate(best)),
        peak_gain=_bounds(evaluations.mean_gain(first, best)),
        drawdown=_bounds(evaluations.mean_gain(last, best)),
        skills=len(items.skills),
        principles=len(items.principles),
        steps=end.step,
        accepts=end.version,
        hours=sum(read_times(out / run.path).values()) / 3600,
        curve=tuple(_curve_point(point, store) for point in points),
        ledger=(bank.relative_to(out) / "ledger.jsonl").as_posix(),
    )


def _curve_point(point: evaluations.EvaluatedCheckpoint, store: BankStore) -> CurvePoint:
    version = point.entry.version
    items = len(store.at(version).items)
    return CurvePoint(point.step, version, _bounds(evaluations.solve_rate(point.entry)), items, point.line)


def _bounds(interval: evaluations.Interval) -> Bounds:
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


def markdown(rows: Sequence[RunResult], title: str, *, simulated: bool, remarks: Mapping[str, str] = {}) -> str:
    """Return all tables as one page.

    Args:
        remarks: by a run's folder, why it has no row, or what was written to its bank after it.
    """
    parts = [f"# {title}", *([SIMULATED] if simulated else [])]
    for repository, model in dict.fromkeys((r.repository, r.model) for r in rows):
        here = [r for r in rows if (r.repository, r.model) == (repository, model)]
        parts += [f"## {repository}, {model}", _table(_HEAD, _condition_rows(here))]
        parts += [*_describe_seeds(here), "### Where each number is", _table(_WHERE, _evaluation_rows(here))]
    if remarks:
        parts += [
            "## Runs without a row, or with a remark",
            "\n".join(f"- `{p}`: {_escape(r)}" for p, r in remarks.items()),
        ]
    parts.append(
        f"{_GAIN}; its interval is the mean paired difference plus or minus "
        "1.96 standard errors over holdout tasks, too narrow for few. Peak is selected on this holdout, so it is no "
        "untouched final-test estimate. Hours are summed over rollouts, evaluation excluded; what conditions share "
        "counts for each. `a to b`: some rollouts errored, so the number is not final."
    )
    return "\n\n".join(parts) + "\n"


def comma_separated(rows: Sequence[RunResult]) -> str:
    """Return one line per run, with the ledger lines of its first, best and last evaluation."""
    names = ("base", "final", "gain", "peak", "peak_gain", "drawdown")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    ends = [f"{name}_{end}" for name in names for end in ("low", "high")]
    writer.writerow(
        [*_FIRST, *ends, "skills", "principles", "steps", "versions",
         "hours", "hours_per_step", "ledger", "line_first", "line_final"]
    )  # fmt: skip
    for r in rows:
        values = [f"{value:.4f}" for name in names for value in getattr(r, name)]
        writer.writerow(
            [r.repository, r.model, r.condition, r.seed, *values, r.skills, r.principles, r.steps, r.accepts,
             f"{r.hours:.4f}", f"{r.hours_per_step:.4f}", r.ledger, r.curve[0].line,
             r.curve[-1].line]
        )  # fmt: skip
    return out.getvalue()


def _describe_seeds(rows: Sequence[RunResult]) -> list[str]:
    """Return how many seeds the means are over, unless that is one for all conditions."""
    counts = Counter(r.condition for r in rows)
    if len(set(counts.values())) == 1:
        seeds = counts[rows[0].condition]
        return [f"Means over {seeds} seeds."] if seeds > 1 else []
    shown = ", ".join(f"{name} {n}" for name, n in counts.items())
    return [f"Means over the seeds that have ended, so they are not over the same ones: {shown}."]


def _condition_rows(rows: Sequence[RunResult]) -> list[list[str]]:
    groups = {name: [r for r in rows if r.condition == name] for name in dict.fromkeys(r.condition for r in rows)}
    return [
        [
            name,
            f"{_mean([r.final for r in g])} ({_mean([r.gain for r in g], sign=True)})",
            _gain_interval(g),
            _mean([r.peak_gain for r in g], sign=True),
            _mean([r.drawdown for r in g]),
            f"{fmean(r.skills for r in g):g}/{fmean(r.principles for r in g):g}",
            f"{fmean(r.steps for r in g):g}",
            f"{fmean(r.hours for r in g):.2f}",
            f"{fmean(r.hours_per_step for r in g):.3f}",
        ]
        for name, g in groups.items()
    ]


def _gain_interval(rows: Sequence[RunResult]) -> str:
    """Return the interval of the gain over tasks, each with its mean over seeds; "-" where no task changed.

    It says what other tasks like these would show, not what other seeds would.
    """
    tasks = [[fmean(ends) for ends in zip(*task, strict=True)] for task in zip(*(r.each for r in rows), strict=True)]
    effect = mean_effect([low for low, _ in tasks], [high for _, high in tasks])
    return f"[{effect.low:+.1f}, {effect.high:+.1f}]" if any(map(any, tasks)) else "-"


def _evaluation_rows(rows: Sequence[RunResult]) -> list[list[str]]:
    return [
        [
            r.condition,
            str(r.seed),
            "; ".join(f"{c.step}, {c.version}, {_format(c.rate)}, line {c.line}" for c in r.curve),
            f"[{r.ledger}]({r.ledger})",
        ]
        for r in rows
    ]


def _escape(text: str) -> str:
    """Return a remark as plain text: it may quote a message with Markdown or HTML in it."""
    return " ".join(text.split()).replace("<", "&lt;").replace("[", r"\[").replace("`", "'")


def _mean(pairs: Sequence[Bounds], *, sign: bool = False) -> str:
    return _format((fmean(low for low, _ in pairs), fmean(high for _, high in pairs)), sign=sign)


def _format(pair: Bounds, *, sign: bool = False) -> str:
    low, high = (f"{value:+.1f}" if sign else f"{value + 0.0:.1f}" for value in pair)
    return low if low == high else f"{low} to {high}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])
