"""Certificates along the stream: a band for each bank version in use that has one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from valve_plugin.report.captions import banded
from valve_plugin.report.run import Run
from valve_plugin.report.style import ACCENT, SECOND, SOFT, band

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HATCH = "xx"


class Band(NamedTuple):
    """One certificate, from where its version came into use to where the next one did."""

    left: float
    right: float
    """Stream positions."""
    guaranteed: float
    measured: float
    """Gains in points: of an accept over the bank before it, on the panel; of the holdout over version 0."""
    holdout: bool


def bands(run: Run) -> list[Band]:
    """Return the certificates that say something, those of accepts first."""
    lefts = [size.position + 0.5 for size in run.sizes]
    rights = [*lefts[1:], max([run.stream[-1].position if run.stream else 0, lefts[-1] + 0.5])] if lefts else []
    said = [(m.version, m.floor, m.panel_gain, False) for m in run.certificate.moves if not m.vacuous]
    if run.certificate.gain and banded(run):
        gain = run.certificate.gain
        said.append((run.checkpoints[-1].version, gain.value, gain.measured, True))
    return [
        Band(lefts[version], rights[version], 100 * low, 100 * high, holdout)
        for version, low, high, holdout in said
        if version is not None and version < len(lefts)
    ]


def draw(axes: Axes, runs: Sequence[Run]) -> None:
    """Draw the bands of one run, or of two, with a legend of what is there."""
    axes.axhline(0, color=SOFT, linewidth=0.8)
    for number, run in enumerate(runs):
        colour, found = (ACCENT, SECOND)[number % 2], bands(run)
        for b in found:
            band(axes, b.left, b.right, b.guaranteed, b.measured, colour, _HATCH * b.holdout)
        letter = "" if len(runs) == 1 else f"{'AB'[number % 2]}: "
        for holdout, name in ((False, "accept, on the panel"), (True, "holdout, over version 0")):
            if any(b.holdout is holdout for b in found):
                hatch = 2 * _HATCH * holdout
                axes.fill_between([], [], facecolor=colour, alpha=0.5, hatch=hatch, label=f"{letter}{name}")
    axes.set_ylabel("gain, points")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high + 0.3 * (high - low))  # room for the legend
    axes.legend(loc="upper left", fontsize=8, ncols=4)


def caption(runs: Sequence[Run]) -> str:
    """Return what the bands are; where a certificate exists and none says anything, that; else nothing."""
    found = [b for run in runs for b in bands(run)]
    if not found:
        silent = any(run.certificate.moves or run.certificate.gain for run in runs)
        return " No certificate says anything: the tasks are too few." * silent
    parts = ["of an accept over the bank before it, on the panel"] * any(not b.holdout for b in found)
    parts += ["hatched, of the last version over version 0, on the holdout"] * any(b.holdout for b in found)
    return f" A band goes from the guaranteed to the measured gain, while its version is in use: {'; '.join(parts)}."
