"""The holdout's figure: a dot for each reading, and how far down the last one's guarantee reaches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from valve_plugin.report.captions import banded, dropped
from valve_plugin.report.run import Run
from valve_plugin.report.style import ACCENT, INK, SECOND, SOFT, WARN, band, new, swatch
from valve_plugin.report.words import points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_EACH = 6
"""So many readings are all labelled."""
_TICKS = 5
"""From so many readings on a number has to do."""
_HALF = 0.2
"""Half of how wide a band is, a reading being 1 wide."""


def holdout(runs: Sequence[Run]) -> Canvas:
    """Draw the readings of one run, or of two beside each other: their versions are not each other's."""
    canvas, axes = new(3.6, nrows=1)
    read = [(number, run) for number, run in enumerate(runs) if run.checkpoints]
    total = sum(len(run.checkpoints) for _, run in read)
    which, room = "version " * (total < _TICKS), max(1.0, total / 4)
    ticks: dict[float, str] = {}
    start = 0.0
    for number, run in read:
        letter = "" if len(runs) == 1 else f"{'AB'[number % 2]} "
        named = _named([c.low for c in run.checkpoints], total)
        ticks |= {start + n: f"{letter}{which}{run.checkpoints[n].version}" for n in named}
        _readings(axes, run, number, start, named, alone=len(runs) == 1)
        start += len(run.checkpoints) + room
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_xlim(-0.6, start - 1)
    axes.set_ylim(-0.02, 1.1)
    axes.set_yticks([n / 4 for n in range(5)])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_ylabel("avg over rollouts")
    axes.set_xlabel("" if which else "bank version")
    axes.grid(visible=False, axis="x")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), fontsize=8, ncols=5)
    return canvas


def _named(low: Sequence[float], total: int) -> list[int]:
    """Which readings are labelled: few all, of many the ends, and the highest where it is not beside them."""
    if total <= _EACH:
        return list(range(len(low)))
    last, highest = len(low) - 1, low.index(max(low))
    return sorted({0, last, *([highest] if min(highest, last - highest) >= total / 5 else [])})


def _readings(axes: Axes, run: Run, number: int, start: float, named: Sequence[int], *, alone: bool) -> None:
    colour, line, shape, hatch = ((ACCENT, "-", "o", "//"), (SECOND, "--", "D", "\\\\"))[number % 2]
    name = "" if alone else f"{'AB'[number % 2]}: "
    low, high = [c.low for c in run.checkpoints], [c.high for c in run.checkpoints]
    places = [start + n for n in range(len(low))]
    if len(low) > 2:  # two dots are no course
        axes.plot(places, low, line, color=colour, linewidth=1)
        if dropped(low):
            axes.fill_between(places, low, list(accumulate(low, max)), facecolor="none", edgecolor=colour, hatch=hatch,
                              linewidth=0)  # fmt: skip
            swatch(axes, colour, hatch, f"{name}below its peak")
    axes.plot(places, low, shape, color=colour, markersize=8, zorder=3)
    axes.hlines(low[0], places[0], places[-1] + 0.4, color=SOFT, linestyle="--", linewidth=1)
    if low != high:
        axes.vlines(places, low, high, color=WARN, linestyle=":", label=f"{name}unknown")
    for place in named:
        rate = low[place]
        below = place > 0 and rate < low[place - 1]  # where no line comes from
        axes.annotate(f"{rate:.1%}", (places[place], rate), (0, -16 if below else 8), textcoords="offset points",
                      ha="center", fontsize=10, color=INK)  # fmt: skip
    _guarantee(axes, run, places[-1], colour)


def _guarantee(axes: Axes, run: Run, place: float, colour: str) -> None:
    """From what is guaranteed to what was measured; below 0 % the band leaves the picture, and its mark says so."""
    gain = run.certificate.gain
    if not gain or not banded(run):
        return
    first, last = run.checkpoints[0].low, run.checkpoints[-1].low
    floor, right = first + gain.value, place + _HALF
    band(axes, place - _HALF, right, floor, last, colour)
    if floor < 0:
        axes.plot([place], [0.0], "v", color=colour, markersize=12)
    axes.annotate(f"guaranteed:\n{points(gain.value)}", (right, max(0.0, floor)), (6, -3), textcoords="offset points",
                  fontsize=9, color=INK, va="center" if floor > 0.1 else "bottom")  # fmt: skip
