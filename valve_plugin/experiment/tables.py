"""The paper's tables, as Markdown and CSV. Pure.

Source: tab:main, tab:stability, tab:bank-size, tab:main-time, tab:ablation-time.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from valve_plugin.experiment.results import Pair, Row
from valve_plugin.report.items import spread

SIMULATED = (
    "**SIMULATION of the solver.** The tasks, the tests, the sandboxed rollouts, the gate and the ledgers are real; "
    "the model is scripted. These numbers show that the machinery works, and nothing about any model or method."
)
_GAIN = "Gain is against step 0, which all conditions share"
_FIRST = ("repository", "model", "condition", "seed")
OWN = {"tables.md": _GAIN, "results.csv": ",".join(_FIRST)}
"""Each file that is written, and what such a file says: it may be written again."""
Cell = Callable[[Sequence[Row]], str]


def markdown(rows: Sequence[Row], title: str, *, simulated: bool, remarks: Mapping[str, str] = {}) -> str:
    """Return all tables as one page.

    Args:
        rows: of the runs that ended.
        title: of the page.
        simulated: the solver is scripted, and the page says so.
        remarks: by a run's folder, why it has no row, or what is to be known about it.
    """
    parts = [f"# {title}", *([SIMULATED] if simulated else [])]
    for repository, model in dict.fromkeys((r.repository, r.model) for r in rows):
        here = [r for r in rows if (r.repository, r.model) == (repository, model)]
        parts += [f"## {repository}, {model}", _grid(_HEAD, _by_condition(here))]
        parts += [*_seeds(here), "### Where each number is", _grid(_WHERE, _lines(here))]
    if remarks:
        parts += [
            "## Runs without a row, or with a remark",
            "\n".join(f"- `{p}`: {_line(r)}" for p, r in remarks.items()),
        ]
    parts.append(
        f"{_GAIN}; its interval is the mean paired difference plus or minus "
        "1.96 standard errors over holdout tasks, too narrow for few. Peak is selected on this holdout, so it is no "
        "untouched final-test estimate. Hours are summed over rollouts, evaluation excluded; what conditions share "
        "counts for each. `a to b`: some rollouts errored, so the number is not final."
    )
    return "\n\n".join(parts) + "\n"


def comma_separated(rows: Sequence[Row]) -> str:
    """Return one line per run, with the ledger lines of its first, best and last evaluation."""
    names = ("base", "final", "gain", "peak", "peak_gain", "drawdown")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    ends = [f"{name}_{end}" for name in names for end in ("low", "high")]
    writer.writerow(
        [*_FIRST, *ends, "skills", "principles", "steps", "versions",
         "hours", "hours_per_step", "wall_hours", "ledger", "line_first", "line_final"]
    )  # fmt: skip
    for r in rows:
        values = [f"{value:.4f}" for name in names for value in getattr(r, name)]
        writer.writerow(
            [r.repository, r.model, r.condition, r.seed, *values, r.skills, r.principles, r.steps, r.accepts,
             f"{r.hours:.4f}", f"{r.hours_per_step:.4f}", f"{r.wall_hours:.4f}", r.ledger, r.curve[0].line,
             r.curve[-1].line]
        )  # fmt: skip
    return out.getvalue()


_HEAD = (
    "Condition", "Final avg (gain)", "Gain ± 1.96 SE", "Peak gain", "Drawdown", "Skills/principles", "Steps", "Hours",
    "Hours/step",
)  # fmt: skip
_WHERE = ("Condition", "Seed", "Evaluations: step, version, rate, ledger line", "Ledger")


def _seeds(rows: Sequence[Row]) -> list[str]:
    """How many runs the means are over, where that is not one: also while some have not ended."""
    counts = Counter(r.condition for r in rows)
    if len(set(counts.values())) == 1:
        (n,) = set(counts.values())
        return [f"Means over {n} seeds."] if n > 1 else []
    shown = ", ".join(f"{name} {n}" for name, n in counts.items())
    return [f"Means over the seeds that have ended, so they are not over the same ones: {shown}."]


def _by_condition(rows: Sequence[Row]) -> list[list[str]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.condition, []).append(row)
    return [
        [
            name,
            f"{_mean([r.final for r in g])} ({_mean([r.gain for r in g], sign=True)})",
            _interval(g),
            _mean([r.peak_gain for r in g], sign=True),
            _mean([r.drawdown for r in g]),
            f"{_average(r.skills for r in g):g}/{_average(r.principles for r in g):g}",
            f"{_average(r.steps for r in g):g}",
            f"{_average(r.hours for r in g):.2f}",
            f"{_average(r.hours_per_step for r in g):.3f}",
        ]
        for name, g in groups.items()
    ]


def _interval(rows: Sequence[Row]) -> str:
    """Over tasks, each taken as its mean over seeds: what other tasks like these would show, not other seeds."""
    tasks = [[_average(ends) for ends in zip(*task, strict=True)] for task in zip(*(r.each for r in rows), strict=True)]
    found = spread([low for low, _ in tasks], [high for _, high in tasks])
    return f"[{found.low:+.1f}, {found.high:+.1f}]" if any(map(any, tasks)) else "-"


def _lines(rows: Sequence[Row]) -> list[list[str]]:
    return [
        [
            r.condition,
            str(r.seed),
            "; ".join(f"{c.step}, {c.version}, {_shown(c.rate)}, line {c.line}" for c in r.curve),
            f"[{r.ledger}]({r.ledger})",
        ]
        for r in rows
    ]


def _line(text: str) -> str:
    """A remark may quote what a package or a host said: it stays text."""
    return " ".join(text.split()).replace("<", "&lt;").replace("[", r"\[").replace("`", "'")


def _mean(pairs: Sequence[Pair], *, sign: bool = False) -> str:
    return _shown((_average(low for low, _ in pairs), _average(high for _, high in pairs)), sign=sign)


def _shown(pair: Pair, *, sign: bool = False) -> str:
    low, high = (f"{value:+.1f}" if sign else f"{value + 0.0:.1f}" for value in pair)
    return low if low == high else f"{low} to {high}"


def _average(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])
