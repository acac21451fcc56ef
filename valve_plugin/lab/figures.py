"""The paper's figures: evolution curves with bank sizes, and peak against final.

Source: fig:evolution-curve-main, fig:drawdown-main, fig:bank-growth-example, fig:ablation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from valve_plugin.lab.results import RunResult
from valve_plugin.report.style import (
    ACCENT,
    DOTTED,
    GRID,
    INK,
    SOFT,
    WARN,
    Boxes,
    Chart,
    Figure,
    Line,
    Marks,
    Note,
    Part,
    write_figure,
)
from valve_plugin.words import plural

LABEL = "SIMULATION of the solver"
_COLUMNS = 5
"""Small panels in a row; seventeen conditions in one panel could not be read."""


def draw(rows: Sequence[RunResult], out: Path, *, simulated: bool) -> list[Path]:
    """Write two SVG files for each repository and model; equal rows give equal bytes."""
    written = []
    for repository, model in dict.fromkeys((r.repository, r.model) for r in rows):
        here = [r for r in rows if (r.repository, r.model) == (repository, model)]
        note = f" ({LABEL})" if simulated else ""
        for figure in (_curves(here), _retention(here)):
            path = out / f"{repository}-{model}-{figure.name}.svg"
            write_figure(figure._replace(title=f"{figure.title}: {repository}, {model}{note}"), str(path))
            written.append(path)
    return written


def _curves(rows: Sequence[RunResult]) -> Figure:
    """Return the rate and the bank's size over evolution steps, a small panel for each condition of the first seed."""
    first = [r for r in rows if r.seed == rows[0].seed]
    caption = (
        f"Resolved rate of frozen bank versions on {plural(len(rows[0].each), 'holdout task')} that nothing was "
        f"learned from or judged on, seed {rows[0].seed}; a vertical bar is what errored rollouts leave unknown. "
        "Beside a point: items in the bank then. Dotted: step 0. A step is a mixed task that was learned from; in "
        "all-tasks, any task."
    )
    return Figure("curves", "Rate and bank size over evolution steps", caption, _curve_charts(first), _COLUMNS)


def _curve_charts(rows: Sequence[RunResult]) -> list[Chart]:
    rates = [end for row in rows for c in row.curve for end in c.rate]
    x = (-1.0, max((c.step for row in rows for c in row.curve), default=0) + 1.0)
    y = (max(0.0, min(rates, default=0) - 10), min(100.0, max(rates, default=100) + 15))
    found = []
    for row in rows:
        curve = [(float(c.step), c.rate[0]) for c in row.curve]
        parts: list[Part] = [Line([(x[0], row.base[0]), (x[1], row.base[0])], SOFT, DOTTED, 1.2)]
        parts += [Line(curve), Marks(curve)]
        parts += [Line([(c.step, c.rate[0]), (c.step, c.rate[1])], WARN, "", 1) for c in row.curve]
        parts += [Note(at, str(c.items)) for at, c in zip(curve, row.curve, strict=True)]
        found.append(Chart(parts, x, y, 110, "evolution steps", "%", title=row.condition))
    return found


def _retention(rows: Sequence[RunResult]) -> Figure:
    """Return the final rate as a bar and the peak as a tick above it; what lies between was lost again."""
    seeds = plural(len({r.seed for r in rows}), "seed")
    caption = (
        f"Bar: resolved rate of the last version on {plural(len(rows[0].each), 'holdout task')}, mean over {seeds}. "
        "Tick: the best checkpoint, selected on this very holdout, so it flatters; what lies between was lost again. "
        "Dotted: step 0, without memory."
    )
    return Figure("retention", "Final and peak rate", caption, [_retention_chart(rows)])


def _retention_chart(rows: Sequence[RunResult]) -> Chart:
    names = list(dict.fromkeys(r.condition for r in rows))
    groups = [[r for r in rows if r.condition == name] for name in names]
    base = fmean(r.base[0] for r in rows)
    bars = [((n - 0.4, 0), (n + 0.4, fmean(r.final[0] for r in group))) for n, group in enumerate(groups)]
    parts: list[Part] = [Boxes(bars, GRID, INK)]
    for n, peak in enumerate(fmean(r.peak[0] for r in group) for group in groups):
        parts.append(Line([(n - 0.4, peak), (n + 0.4, peak)], ACCENT, "", 2.5))
    parts.append(Line([(-0.6, base), (len(names) - 0.4, base)], SOFT, DOTTED, 1.5))
    labels = {float(n): name for n, name in enumerate(names)}
    return Chart(parts, (-0.6, len(names) - 0.4), (0, 100), 200, "", "resolved on the holdout, %", labels)
