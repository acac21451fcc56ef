"""Two runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from valve_plugin.report.overview import duration
from valve_plugin.report.paired import order, panel_tasks, seed
from valve_plugin.report.run import Run
from valve_plugin.report.run_spent import APART, Spent, ended, total
from valve_plugin.report.words import counted

_UNKNOWN = ("-", "not recorded", "not measured", "not read", "not known whole")


def compared(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """Return rows of (what, one value for each run)."""
    table = {
        "repository": [r.repo for r in runs],
        "models": [", ".join(r.models) or "-" for r in runs],
        "panel": [f"{p.tasks} x {p.rollouts}, margin {p.rho}" if (p := r.panel) else "-" for r in runs],
        "panel tasks": [panel_tasks(r, runs[0]) for r in runs],
        "panel seed": [seed(r) for r in runs],
        "stream tasks": [str(len(r.stream)) for r in runs],
        "stream order": [order(r, runs[0]) for r in runs],
        "resolved in the stream": [_resolved(r) for r in runs],
        "accepts of gates": [
            f"{sum(g.decision == 'accept' for g in r.gates)} of {len(r.gates)}" if r.gated else "no gate" for r in runs
        ],
        "bank": [f"{counted(r.principles, 'principle')}, {counted(r.skills, 'skill')}" for r in runs],
        "panel passes, first → last": [_first_last(r) for r in runs],
        "holdout rate, first → last": [_read(r) for r in runs],
        "rollouts": [_rollouts(r) for r in runs],
        "time of rollouts": [duration(total(r.spent).hours) if r.spent else "not recorded" for r in runs],
        "wall clock": [duration(r.clock.hours) if r.clock else "not recorded" for r in runs],
        "wall clock per step": [
            duration(r.clock.hours / r.clock.steps) if r.clock and r.clock.steps else "not recorded" for r in runs
        ],
        "US dollars": [f"{usd:.2f}" if (usd := total(r.spent).usd) else "not recorded" for r in runs],
        "US dollars per rollout": [_each(r, lambda s: s.usd, "{:.4f}") for r in runs],
    }
    return list(table.items())


def equal(values: Sequence[str]) -> bool:
    """Return whether a row says the same of both runs; what neither knows is not the same."""
    first, *others = values
    return first not in _UNKNOWN and all(v in (first, "the same tasks", "the same order") for v in others)


def _rollouts(run: Run) -> str:
    """The run's own, and how many of them judged."""
    if not run.spent:
        return "not recorded"
    gate = sum(s.rollouts for s in run.spent if s.role == "gate")
    own = f"{total(run.spent).rollouts:,}"
    return f"{own}, {gate:,} of them the gate's" if gate else own


def _each(run: Run, of: Callable[[Spent], float], shown: str) -> str:
    """What one of the run's own rollouts took, in the mean, the extractor's calls left out."""
    own = [ended(s) for s in run.spent if s.role not in (*APART, "extractor")]
    number, took = sum(s.rollouts for s in own), sum(map(of, own))
    return shown.format(took / number) if number and took else "not recorded"


def _resolved(run: Run) -> str:
    graded = sum(p.graded for p in run.stream)
    passed = sum(p.passed for p in run.stream)
    return f"{passed} of {graded} ({passed / graded:.0%})" if graded else "-"


def _first_last(run: Run) -> str:
    if not run.scores:
        return "not measured"
    first, last = run.scores[0], run.scores[-1]
    return f"{first.passes}/{first.rollouts} → {last.passes}/{last.rollouts}"


def _read(run: Run) -> str:
    """The evaluated versions' rates; lower ends where rollouts errored."""
    if not run.checkpoints:
        return "not read"
    first, last = run.checkpoints[0], run.checkpoints[-1]
    tasks = counted(last.tasks, "task")
    if first.version == last.version:
        return f"{last.low:.1%} at version {last.version}, {tasks}"
    return f"{first.low:.1%} → {last.low:.1%}, {tasks}"
