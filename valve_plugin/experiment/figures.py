"""The paper's figures: evolution curves with bank sizes, and peak against final. Needs the extra `report`.

Source: fig:evolution-curve-main, fig:drawdown-main, fig:bank-growth-example, fig:ablation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from valve_plugin.experiment.results import Row
from valve_plugin.report.style import ACCENT, GRID, INK, SECOND, SOFT, WARN, Figure, new, write
from valve_plugin.report.words import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

LABEL = "SIMULATION of the solver"
_SHAPES, _LINES, _COLOURS = "os^DvPX*<>", ("-", "--", ":", "-."), (ACCENT, SECOND, INK)
"""Of different lengths, so that conditions differ by shape and line, not by colour alone."""


def draw(rows: Sequence[Row], out: Path, *, simulated: bool) -> list[Path]:
    """Write two SVG files for each repository and model; equal rows give equal bytes.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    made = []
    for repository, model in dict.fromkeys((r.repository, r.model) for r in rows):
        here = [r for r in rows if (r.repository, r.model) == (repository, model)]
        note = f" ({LABEL})" if simulated else ""
        for figure in (_curves(here), _retention(here)):
            path = out / f"{repository}-{model}-{figure.name}.svg"
            write(figure._replace(title=f"{figure.title}: {repository}, {model}{note}"), str(path))
            made.append(path)
    return made


def _curves(rows: Sequence[Row]) -> Figure:
    """Rate and bank size over evolution steps, one line per condition of the first seed."""
    first = [r for r in rows if r.seed == rows[0].seed]
    caption = (
        f"Above: resolved rate of frozen bank versions on {counted(len(rows[0].each), 'holdout task')} that nothing "
        f"was learned from or judged on, seed {rows[0].seed}; a vertical bar is what errored rollouts leave unknown. "
        "Below: items in the bank then. Conditions differ by shape and line."
    )
    return Figure("curves", "Rate and bank size over evolution steps", caption, lambda: _draw_curves(first))


def _draw_curves(rows: Sequence[Row]) -> Canvas:
    canvas, (above, below) = new(6.4, nrows=2, sharex=True, height_ratios=[2, 1])
    for number, row in enumerate(rows):
        style: dict[str, Any] = {
            "color": _COLOURS[number % len(_COLOURS)],
            "linestyle": _LINES[number % len(_LINES)],
            "marker": _SHAPES[number % len(_SHAPES)],
            "markersize": 6,
            "fillstyle": "none",
        }
        steps = [c.step for c in row.curve]
        above.plot(steps, [c.rate[0] for c in row.curve], label=row.condition, **style)
        above.vlines(steps, *zip(*(c.rate for c in row.curve), strict=True), color=WARN, linewidth=1)
        below.plot(steps, [c.items for c in row.curve], **style)
    above.set_ylabel("resolved on the holdout, %")
    below.set_ylabel("items")
    below.set_xlabel("mixed tasks learned from")
    for axis in (below.xaxis, below.yaxis):
        axis.get_major_locator().set_params(integer=True)
    above.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8, ncols=5)
    return canvas


def _retention(rows: Sequence[Row]) -> Figure:
    """Final rate as a bar, peak as a tick above it: what is between them was lost."""
    seeds = counted(len({r.seed for r in rows}), "seed")
    caption = (
        f"Bar: resolved rate of the last version on {counted(len(rows[0].each), 'holdout task')}, mean over {seeds}. "
        "Tick: the best checkpoint, selected on this very holdout, so it flatters; what lies between was lost again. "
        "Dotted: step 0, without memory."
    )
    return Figure("retention", "Final and peak rate", caption, lambda: _draw_retention(rows))


def _draw_retention(rows: Sequence[Row]) -> Canvas:
    canvas, axes = new(4.0, nrows=1)
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
