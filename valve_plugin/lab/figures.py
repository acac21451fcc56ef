"""The paper's figures: evolution curves with bank sizes, and peak against final. Needs the extra `report`.

Source: fig:evolution-curve-main, fig:drawdown-main, fig:bank-growth-example, fig:ablation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from valve_plugin.lab.results import RunResult
from valve_plugin.report.style import ACCENT, GRID, INK, SECOND, SOFT, WARN, Figure, new_canvas, write_figure
from valve_plugin.words import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

LABEL = "SIMULATION of the solver"
_COLUMNS = 5
"""Small panels in a row; seventeen conditions in one panel could not be read."""


def draw(rows: Sequence[RunResult], out: Path, *, simulated: bool) -> list[Path]:
    """Write two SVG files for each repository and model; equal rows give equal bytes.

    Raises:
        ConfigError: matplotlib is not installed.
    """
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
    return Figure("curves", "Rate and bank size over evolution steps", caption, lambda: _draw_curves(first))


def _draw_curves(rows: Sequence[RunResult]) -> Canvas:
    columns = min(len(rows), _COLUMNS)
    lines = -(-len(rows) // columns)
    canvas, grid = new_canvas(1.0 + 1.5 * lines, nrows=lines, ncols=columns, sharex=True, sharey=True, squeeze=False)
    for axes, row in zip(grid.flat, rows, strict=False):
        steps = [c.step for c in row.curve]
        axes.axhline(row.base[0], linestyle=":", color=SOFT, linewidth=1.2)
        axes.plot(steps, [c.rate[0] for c in row.curve], color=ACCENT, marker="o", markersize=4)
        axes.vlines(steps, *zip(*(c.rate for c in row.curve), strict=True), color=WARN, linewidth=1)
        for c in row.curve:
            axes.annotate(str(c.items), (c.step, c.rate[0]), xytext=(0, 5), textcoords="offset points",
                          ha="center", fontsize=7, color=SECOND)  # fmt: skip
        axes.set_title(row.condition, fontsize=9)
        axes.margins(0.12, 0.2)
        axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in list(grid.flat)[len(rows) :]:
        axes.set_visible(False)
    canvas.supylabel("resolved on the holdout, %", fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("evolution steps", fontsize=9)
    return canvas


def _retention(rows: Sequence[RunResult]) -> Figure:
    """Return the final rate as a bar and the peak as a tick above it; what lies between was lost again."""
    seeds = plural(len({r.seed for r in rows}), "seed")
    caption = (
        f"Bar: resolved rate of the last version on {plural(len(rows[0].each), 'holdout task')}, mean over {seeds}. "
        "Tick: the best checkpoint, selected on this very holdout, so it flatters; what lies between was lost again. "
        "Dotted: step 0, without memory."
    )
    return Figure("retention", "Final and peak rate", caption, lambda: _draw_retention(rows))


def _draw_retention(rows: Sequence[RunResult]) -> Canvas:
    canvas, axes = new_canvas(4.0, nrows=1)
    names = list(dict.fromkeys(r.condition for r in rows))
    for place, name in enumerate(names):
        group = [r for r in rows if r.condition == name]
        axes.bar(place, fmean(r.final[0] for r in group), facecolor=GRID, edgecolor=INK)
        axes.hlines(fmean(r.peak[0] for r in group), place - 0.4, place + 0.4, color=ACCENT, linewidth=2.5)
    axes.axhline(fmean(r.base[0] for r in rows), linestyle=":", color=SOFT, linewidth=1.5)
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_ylabel("resolved on the holdout, %")
    axes.grid(visible=False, axis="x")
    return canvas
