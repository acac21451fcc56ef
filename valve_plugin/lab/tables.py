"""The paper's tables, as Markdown and CSV. Pure.

Source: tab:main, tab:stability, tab:bank-size, tab:main-time, tab:ablation-time.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from valve_plugin.evidence.items import mean_effect
from valve_plugin.lab.results import Bounds, RunResult

SIMULATED = (
    "**SIMULATION of the solver.** The tasks, the tests, the sandboxed rollouts, the gate and the ledgers are real; "
    "the model is scripted. These numbers show that the machinery works, and nothing about any model or method."
)
_GAIN = "Gain is against step 0, which all conditions share"
_FIRST = ("repository", "model", "condition", "seed")
FILES = ("tables.md", "results.csv")


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


_HEAD = (
    "Condition", "Final avg (gain)", "Gain ± 1.96 SE", "Peak gain", "Drawdown", "Skills/principles", "Steps", "Hours",
    "Hours/step",
)  # fmt: skip
_WHERE = ("Condition", "Seed", "Evaluations: step, version, rate, ledger line", "Ledger")


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
