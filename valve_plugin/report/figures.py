"""The figures of one run, or of two compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from valve_plugin.report import bands, captions, messages
from valve_plugin.report.captions import floors, peaks, repeated, rolling
from valve_plugin.report.gains import bounded
from valve_plugin.report.holdout_figure import holdout
from valve_plugin.report.run import Gate, Run
from valve_plugin.report.run_spent import APART, Spent
from valve_plugin.report.style import ACCENT, GRID, INK, SECOND, SOFT, WARN, Figure, band, named, new, swatch

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_MOST_TICKS = 40


def figures(runs: Sequence[Run]) -> list[Figure]:
    """Return what can be drawn of one run, or of two compared."""
    found = []
    both = captions.simulated(runs)
    if any(run.stream for run in runs):
        caption = both + captions.of_stream(runs) + bands.caption(runs)
        found.append(
            Figure(
                "stream",
                "Resolved rate over the stream",
                caption,
                lambda: _stream(runs),
                message=messages.each(runs, messages.of_stream),
            )
        )
    if any(run.checkpoints for run in runs):
        caption = both + captions.of_holdout(runs)
        found.append(
            Figure(
                "holdout",
                "Resolved rate on the sealed holdout",
                caption,
                lambda: holdout(runs),
                message=messages.each(runs, messages.of_holdout),
            )
        )
    for run in runs:
        suffix = "" if len(runs) == 1 else f"-{runs.index(run) + 1}"
        whose = "" if len(runs) == 1 else f", {'AB'[runs.index(run)]}"
        if run.gates:
            caption = captions.simulated([run]) + captions.of_gates(run)
            draw: Callable[[], Canvas] = partial(_gates, run)
            told = f"{messages.of_gates(run)}."
            found.append(Figure(f"gates{suffix}", f"Gate verdicts{whose}", caption, draw, message=told))
    if any(run.spent for run in runs):
        caption = both + captions.of_cost(runs)
        found.append(
            Figure("cost", "Time by role", caption, lambda: _cost(runs), message=messages.each(runs, messages.of_cost))
        )
    return found


def standing(runs: Sequence[Run]) -> list[Figure]:
    """Return the figures for files: each says which bank it is of, at which version."""
    each = [
        f"{'' if len(runs) == 1 else f'{letter}: '}{named(run.repo, run.version)}"
        for letter, run in zip("AB", runs, strict=False)
    ]
    return [figure._replace(of="; ".join(each)) for figure in figures(runs)]


def _stream(runs: Sequence[Run]) -> Canvas:
    certified = any(map(bands.bands, runs))
    if certified:
        canvas, (rate, gain, size) = new(6.4, nrows=3, sharex=True, height_ratios=[3, 1.6, 1.2])
        bands.draw(gain, runs)
    else:
        canvas, (rate, size) = new(5.0, nrows=2, sharex=True, height_ratios=[3, 1.2])
    for number, run in enumerate(runs):
        _curve(rate, run, number, alone=len(runs) == 1)
        _growth(size, run, number, alone=len(runs) == 1)
    if len(runs) > 1:
        _letters(rate, runs)
    rate.set_ylim(-0.02, 1.02)
    rate.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    rate.set_ylabel("resolved rate")
    size.set_ylabel("items")
    size.set_xlabel("stream task")
    for axes, columns in ((rate, 3), (size, 4)):
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(loc="upper left", fontsize=8, ncols=columns)
    size.yaxis.get_major_locator().set_params(integer=True)
    most = max(max(s.principles, s.skills) for run in runs for s in run.sizes)
    size.set_ylim(0, 1.45 * max(1, most))
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
        axes.plot(places[: few + 1], rates[: few + 1], ":", color=colour, linewidth=2.2,
                  label=f"{name}under {few + 1} tasks")  # fmt: skip
    _drop(axes, places, rates, number, f"{name}below its peak", peaks(run.stream))
    accepts = [i for i, p in enumerate(run.stream) if p.accepted]
    if accepts:
        axes.plot([places[i] + 0.5 for i in accepts], [sum(rates[i : i + 2]) / len(rates[i : i + 2]) for i in accepts],
                  shape, color=colour, markersize=8, markeredgecolor=INK, linestyle="none",
                  label=f"{name}{came}")  # fmt: skip


def _letters(axes: Axes, runs: Sequence[Run]) -> None:
    """Name both curves at their ends, and where those of few tasks, drawn alike, are furthest apart."""
    rates = [rolling(run.stream) for run in runs]
    ends = [(run.stream[-1].position, mine[-1]) for run, mine in zip(runs, rates, strict=True) if mine]
    few = min(min(captions.window(run.stream), len(run.stream)) for run in runs)
    apart = max(range(few), key=lambda place: abs(rates[0][place] - rates[1][place]), default=None)
    named = [ends]
    if apart is not None and max(map(len, rates)) > few:
        named.append([(run.stream[apart].position, mine[apart]) for run, mine in zip(runs, rates, strict=True)])
    for points in named:
        upper = points.index(max(points, key=lambda point: point[1]))
        for number, point in enumerate(points):
            axes.annotate("AB"[number], point, (4, 7 if number == upper else -7), textcoords="offset points",
                          fontsize=11, fontweight="bold", color=(ACCENT, SECOND)[number], va="center")  # fmt: skip


def _drop(
    axes: Axes, places: Sequence[int], values: Sequence[float], number: int, label: str, peaks: Sequence[float]
) -> None:
    """Hatch what lies between a curve and its peak so far, where it ever drops."""
    if any(peak > value for peak, value in zip(peaks, values, strict=True)):
        colour, hatch = ((ACCENT, "//"), (SECOND, "\\\\"))[number % 2]
        axes.fill_between(places, values, peaks, facecolor=colour, alpha=0.12, linewidth=0)
        axes.fill_between(places, values, peaks, facecolor="none", edgecolor=colour, hatch=hatch, linewidth=0)
        swatch(axes, colour, hatch, label)


def _growth(axes: Axes, run: Run, number: int, *, alone: bool) -> None:
    """The bank's size, which changes between two tasks; lines that coincide differ in style, width and marker."""
    last = max((p.position for p in run.stream), default=0)
    places = [s.position + 0.5 for s in run.sizes]
    colour, lines = ((ACCENT, ("-o", ":s")), (SECOND, ("--D", "-.v")))[number % 2]
    name = "" if alone else f"{'AB'[number % 2]}: "
    kinds = {"principles": [s.principles for s in run.sizes], "skills": [s.skills for s in run.sizes]}
    for style, (kind, sizes) in zip(lines, kinds.items(), strict=True):
        axes.step(
            [*places, max(last, places[-1])],
            [*sizes, sizes[-1]],
            style,
            where="post",
            color=colour,
            linewidth=1.6 if alone or number else 4.5,
            alpha=1 if alone or number else 0.5,
            markersize=5 + 2 * number,
            fillstyle="none",
            markevery=range(len(places)),
            label=f"{name}{kind}",
        )


def _gates(run: Run) -> Canvas:
    canvas, (gain, used) = new(4.6, nrows=2, sharex=True, height_ratios=[3, 1])
    gain.axhline(0, color=SOFT, linewidth=0.8)
    for gate in run.gates:
        _verdict(gain, gate)
    numbers = [g.number for g in run.gates]
    gain.step(numbers, [100 * g.margin for g in run.gates], where="mid", color=INK, linestyle="--", linewidth=1,
              label="margin")  # fmt: skip
    gain.set_ylabel("panel gain, points")
    _scale(gain, run.gates)
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


def _scale(axes: Axes, gates: Sequence[Gate]) -> None:
    """Room for what is marked: a floor far below, and what of a reject did not run, may leave the picture."""
    seen = [0.0, *(100 * bound for g in gates for bound in (g.high, g.margin, g.high if g.first is None else g.first))]
    seen += [100 * g.low for g in gates if not bounded(g)]
    room = max(seen) - min(seen) + 1
    axes.set_ylim(min(seen) - (0.25 if any(map(bounded, gates)) else 0.08) * room, max(seen) + 0.08 * room)


def _verdict(axes: Axes, gate: Gate) -> None:
    x, low, high = gate.number, 100 * gate.low, 100 * gate.high
    if gate.first is not None:
        axes.plot([x], [100 * gate.first], "o", color=ACCENT, markersize=5, fillstyle="none")
    if gate.decision == "accept":
        axes.plot([x], [low], "o", color=ACCENT, markersize=7, zorder=3)
        if gate.floor is not None and not gate.vacuous:
            band(axes, x - 0.3, x + 0.3, 100 * gate.floor, low, ACCENT)
        return
    if gate.decision == "reject":
        axes.plot([x, x], [low, high], "-", color=GRID, linewidth=3, solid_capstyle="butt")
        axes.plot([x], [high], "s", color=SOFT, markersize=6, fillstyle="none" if bounded(gate) else "full")
        return
    axes.plot([x, x], [low, high], "-", color=WARN, linewidth=1.5)
    axes.plot([x, x], [low, high], "x", color=WARN, markersize=5)


def _shapes(axes: Axes, gates: Sequence[Gate]) -> None:
    """A legend of what is drawn, and of nothing else."""
    seen = {g.decision for g in gates}
    for drawn, shape, colour, line, filled, label in (
        ("accept" in seen, "o", ACCENT, "none", "full", "accept: measured"),
        (floors(gates), "none", ACCENT, "-", "full", "its certified floor"),
        (any(map(bounded, gates)), "s", SOFT, "none", "none", "reject: best it could still reach"),
        (any(g.decision == "reject" and not bounded(g) for g in gates), "s", SOFT, "none", "full", "reject: measured"),
        ("indecisive" in seen, "x", WARN, "-", "full", "indecisive: between"),
        (repeated(gates), "o", ACCENT, "none", "none", "first gain"),
    ):
        if drawn:
            axes.plot([], [], marker=shape, color=colour, linestyle=line, fillstyle=filled, label=label)
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
