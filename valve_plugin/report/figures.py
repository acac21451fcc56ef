"""The figures of one run, or of two compared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from valve_plugin.report import captions
from valve_plugin.report.captions import banded, floors, peaks, repeated, rolling
from valve_plugin.report.run import Gate, Run
from valve_plugin.report.run_spent import APART, Spent
from valve_plugin.report.style import ACCENT, GRID, INK, SECOND, SOFT, WARN, Figure, named, new

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_MOST_TICKS = 40


def figures(runs: Sequence[Run]) -> list[Figure]:
    """Return what can be drawn of one run, or of two compared."""
    found = []
    both = captions.simulated(runs)
    if any(run.stream for run in runs):
        caption = both + captions.of_stream(runs)
        found.append(Figure("stream", "Resolved rate over the stream", caption, lambda: _stream(runs)))
    if any(run.checkpoints for run in runs):
        caption = both + captions.of_holdout(runs)
        found.append(Figure("holdout", "Resolved rate on the sealed holdout", caption, lambda: _holdout(runs)))
    for run in runs:
        suffix = "" if len(runs) == 1 else f"-{runs.index(run) + 1}"
        whose = "" if len(runs) == 1 else f", {'AB'[runs.index(run)]}"
        if run.gates:
            caption = captions.simulated([run]) + captions.of_gates(run)
            found.append(Figure(f"gates{suffix}", f"Gate verdicts{whose}", caption, lambda run=run: _gates(run)))  # type: ignore[misc]
    if any(run.spent for run in runs):
        caption = both + captions.of_cost(runs)
        found.append(Figure("cost", "Time by role", caption, lambda: _cost(runs)))
    return found


def standing(runs: Sequence[Run]) -> list[Figure]:
    """Return the figures for files: each says which bank it is of, at which version."""
    each = [
        f"{'' if len(runs) == 1 else f'{letter}: '}{named(run.repo, run.version)}"
        for letter, run in zip("AB", runs, strict=False)
    ]
    return [figure._replace(of="; ".join(each)) for figure in figures(runs)]


def _stream(runs: Sequence[Run]) -> Canvas:
    canvas, (rate, size) = new(5.0, nrows=2, sharex=True, height_ratios=[3, 1.2])
    for number, run in enumerate(runs):
        _curve(rate, run, number, alone=len(runs) == 1)
        _growth(size, run, number, alone=len(runs) == 1)
    rate.set_ylim(-0.02, 1.02)
    rate.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    rate.set_ylabel("resolved rate")
    size.set_ylabel("items")
    size.set_xlabel("stream task")
    for axes, columns in ((rate, 3), (size, 4)):
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(loc="upper left", fontsize=8, ncols=columns)
    size.yaxis.get_major_locator().set_params(integer=True)
    size.set_ylim(bottom=0, top=max(1, *size.get_ylim()) * 1.35)
    return canvas


def _curve(axes: Axes, run: Run, number: int, *, alone: bool) -> None:
    places, rates = [p.position for p in run.stream], rolling(run.stream)
    if not places:
        return
    colour, line = ((ACCENT, "-"), (SECOND, "--"))[number % 2]
    came, shape = ("accept", "^") if run.gated else ("taken", "v")
    name = "" if alone else f"{'AB'[number % 2]}: "
    few = captions.window(run.stream) - 1
    if places[few:]:
        axes.plot(places[few:], rates[few:], line, color=colour, linewidth=1.8, label=f"{name}resolved rate")
    if few:
        axes.plot(places[: few + 1], rates[: few + 1], ":", color=colour, linewidth=1.2, alpha=0.6,
                  label=f"{name}of fewer than {few + 1} tasks")  # fmt: skip
    _drop(axes, places, rates, number, f"{name}below its peak", peaks(run.stream))
    accepts = [i for i, p in enumerate(run.stream) if p.accepted]
    if accepts:
        axes.plot([places[i] + 0.5 for i in accepts], [sum(rates[i : i + 2]) / len(rates[i : i + 2]) for i in accepts],
                  shape, color=colour, markersize=8, markeredgecolor=INK, linestyle="none",
                  label=f"{name}{came}")  # fmt: skip


def _drop(
    axes: Axes, places: Sequence[int], values: Sequence[float], number: int, label: str, peaks: Sequence[float]
) -> None:
    """Hatch what lies between a curve and its peak so far, where it ever drops."""
    if any(peak > value for peak, value in zip(peaks, values, strict=True)):
        colour, hatch = ((ACCENT, "///"), (SECOND, "\\\\\\"))[number % 2]
        axes.fill_between(places, values, peaks, facecolor=colour, alpha=0.12, linewidth=0)
        axes.fill_between(places, values, peaks, facecolor="none", edgecolor=colour, hatch=hatch, linewidth=0,
                          label=label)  # fmt: skip


def _holdout(runs: Sequence[Run]) -> Canvas:
    canvas, axes = new(3.6, nrows=1)
    for number, run in enumerate(runs):
        _checkpoints(axes, run, number, alone=len(runs) == 1)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_ylabel("avg over rollouts")
    axes.set_xlabel("mixed tasks learned from")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), fontsize=8, ncols=5)
    return canvas


def _checkpoints(axes: Axes, run: Run, number: int, *, alone: bool) -> None:
    """The curve, what it lost since its peak, and what is certified of its end."""
    if not run.checkpoints:
        return
    colour, line, shape = ((ACCENT, "-", "o"), (SECOND, "--", "D"))[number % 2]
    name = "" if alone else f"{'AB'[number % 2]}: "
    steps, low = [c.step for c in run.checkpoints], [c.low for c in run.checkpoints]
    axes.plot(steps, low, line, marker=shape, color=colour, linewidth=1.8, label=f"{name}measured")
    if any(c.high > c.low for c in run.checkpoints):
        axes.vlines(steps, low, [c.high for c in run.checkpoints], color=WARN, linestyle=":", label=f"{name}unknown")
    _drop(axes, steps, low, number, f"{name}drawdown", list(accumulate(low, max)))
    if banded(run) and (gain := run.certificate.gain):
        axes.axhspan(low[0] + gain.value, low[-1], facecolor=colour, alpha=0.15, linewidth=0,
                     label=f"{name}between certified floor and final")  # fmt: skip


def _growth(axes: Axes, run: Run, number: int, *, alone: bool) -> None:
    """The bank's size, which changes between two tasks; lines that coincide are told apart by style and marker."""
    last = max((p.position for p in run.stream), default=0)
    places = [s.position + 0.5 for s in run.sizes]
    colour, lines = ((ACCENT, ("-o", ":s")), (SECOND, ("--D", "-.v")))[number % 2]
    name = "" if alone else f"{'AB'[number % 2]}: "
    kinds = {"principles": [s.principles for s in run.sizes], "skills": [s.skills for s in run.sizes]}
    for style, (kind, sizes) in zip(lines, kinds.items(), strict=True):
        axes.step([*places, max(last, places[-1])], [*sizes, sizes[-1]], style, where="post", color=colour,
                  linewidth=1.6, markersize=5 + 2 * number, fillstyle="none", markevery=range(len(places)),
                  label=f"{name}{kind}")  # fmt: skip


def _gates(run: Run) -> Canvas:
    canvas, (gain, used) = new(4.6, nrows=2, sharex=True, height_ratios=[3, 1])
    gain.axhline(0, color=SOFT, linewidth=0.8)
    for gate in run.gates:
        _verdict(gain, gate)
    numbers = [g.number for g in run.gates]
    gain.step(numbers, [100 * g.margin for g in run.gates], where="mid", color=INK, linestyle="--", linewidth=1,
              label="margin")  # fmt: skip
    gain.set_ylabel("panel gain, points")
    seen = [
        100 * bound for g in run.gates for bound in (g.low, g.high, g.margin, g.low if g.first is None else g.first)
    ]
    room = 0.08 * (max(seen) - min(seen) + 1)
    gain.set_ylim(min(seen) - room, max(seen) + room)  # a floor far below leaves the picture, not its scale
    _shapes(gain, run.gates)
    share = [100 * g.ran / g.total for g in run.gates]
    used.bar(numbers, share, color=GRID, edgecolor=INK, width=0.6)
    if any(g.beyond for g in run.gates):
        used.bar(numbers, [100 * g.beyond / g.total for g in run.gates], bottom=share, facecolor="none", edgecolor=SOFT,
                 hatch="///", linewidth=0, width=0.6)  # fmt: skip
    used.set_ylim(0, 105)
    used.set_ylabel("% of its\nrollouts run")
    used.set_xlabel("gate")
    used.set_xlim(0.4, max(numbers) + 0.6)
    if len(numbers) <= _MOST_TICKS:
        used.set_xticks(numbers)
    return canvas


def _verdict(axes: Axes, gate: Gate) -> None:
    x, low, high = gate.number, 100 * gate.low, 100 * gate.high
    if gate.first is not None:
        axes.plot([x], [100 * gate.first], "o", color=ACCENT, markersize=5, fillstyle="none")
    if gate.decision == "accept":
        axes.plot([x], [low], "o", color=ACCENT, markersize=7, zorder=3)
        if gate.floor is not None and not gate.vacuous:
            axes.plot([x, x], [100 * gate.floor, low], ":", color=ACCENT, linewidth=1.5)
            axes.plot([x], [100 * gate.floor], "_", color=ACCENT, markersize=12)
        return
    shape, colour = ("s", SOFT) if gate.decision == "reject" else ("x", WARN)
    axes.plot([x, x], [low, high], "-", color=colour, linewidth=1.5)
    ends = [low] if low == high else [low, high]
    axes.plot([x] * len(ends), ends, shape, color=colour, markersize=5, fillstyle="none")


def _shapes(axes: Axes, gates: Sequence[Gate]) -> None:
    """A legend of what is drawn, and of nothing else."""
    seen = {g.decision for g in gates}
    for drawn, shape, colour, line, filled, label in (
        ("accept" in seen, "o", ACCENT, "none", "full", "accept: measured"),
        (floors(gates), "_", ACCENT, ":", "full", "its certified floor"),
        ("reject" in seen, "s", SOFT, "-", "none", "reject: between"),
        ("indecisive" in seen, "x", WARN, "-", "full", "indecisive: between"),
        (repeated(gates), "o", ACCENT, "none", "none", "first gain"),
    ):
        if drawn:
            axes.plot([], [], shape, color=colour, linestyle=line, fillstyle=filled, label=label)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), fontsize=8, ncols=6)


def _cost(runs: Sequence[Run]) -> Canvas:
    bars = _bars(runs)
    canvas, axes = new(0.6 + 0.45 * len(bars) + 0.6, nrows=1)
    hatches = {"solver": "", "gate": "///", "extractor": "...", "measurement": "++", "evaluation": "xx"}
    unit, scale = ("minutes", 60) if all(sum(s.hours for s in bar) < 1 for _, bar in bars) else ("hours", 1)
    named: set[str] = set()
    for row, (_, bar) in enumerate(bars):
        left = 0.0
        for spent in bar:
            axes.barh([row], [spent.hours * scale], left=[left], height=0.6, facecolor=GRID, edgecolor=INK,
                      hatch=hatches[spent.role], label="" if spent.role in named else spent.role)  # fmt: skip
            named.add(spent.role)
            left += spent.hours * scale
    axes.set_yticks(range(len(bars)), [name for name, _ in bars])
    axes.invert_yaxis()
    axes.set_xlabel(f"{unit} of rollouts")
    axes.grid(visible=False, axis="y")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8, ncols=5)
    return canvas


def _bars(runs: Sequence[Run]) -> list[tuple[str, list[Spent]]]:
    """One bar for each run, and one for what looks at it: every bar begins at 0, so the axis counts no gap."""
    bars = []
    for number, run in enumerate(runs):
        name = "run" if len(runs) == 1 else "AB"[number % 2]
        apart = [s for s in run.spent if s.role in APART]
        bars += [(name, [s for s in run.spent if s not in apart])]
        bars += [("apart" if len(runs) == 1 else f"{name}, apart", apart)] if apart else []
    return bars
