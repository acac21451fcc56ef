"""The figures of a run, of two runs compared, and of a planned gate; captions of runs are in `assets/sentences.j2`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from valve_plugin.evidence.cost import APART, RoleCost
from valve_plugin.evidence.plan import GatePlan
from valve_plugin.report.run import GateResult, RunReport, StreamPoint
from valve_plugin.report.style import (
    ACCENT,
    GRID,
    INK,
    SECOND,
    SOFT,
    WARN,
    Figure,
    draw_band,
    new_canvas,
    plain_name,
    show_percent,
)
from valve_plugin.report.templates import statement, text
from valve_plugin.theory import power
from valve_plugin.theory.power import Gate
from valve_plugin.words import plural, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas


_MOST_TICKS = 40
_ALL_NAMED = 6
"""Up to this number of holdout evaluations all are labelled, else the first and the last."""
_HALF = 0.2
"""Half of a band's width; evaluations are 1 apart."""
_ABOVE = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "fontsize": 8, "ncols": 6}
"""A legend above the axes."""


def figures(runs: Sequence[RunReport]) -> list[Figure]:
    """Return the figures of one run, or of two runs to compare."""
    found = []
    if any(run.stream for run in runs):
        found.append(_figure("stream", runs, _draw_stream))
    if any(run.checkpoints for run in runs):
        found.append(_figure("holdout", runs, draw_holdout))
    for number, run in enumerate(runs, 1):
        if run.gates:
            gates = _figure("gates", [run], lambda mine: _draw_gates(mine[0]))
            if len(runs) > 1:
                gates = gates._replace(name=f"gates-{number}", title=f"{gates.title}, {'AB'[number - 1]}")
            found.append(gates)
    if any(run.spent for run in runs):
        found.append(_figure("cost", runs, _draw_cost))
    return found


def standalone_figures(runs: Sequence[RunReport]) -> list[Figure]:
    """Return the figures for files of their own: each names its bank and version."""
    letters = [""] if len(runs) == 1 else ["A: ", "B: "]
    of = "; ".join(f"{letter}{plain_name(r.repo, r.version)}" for letter, r in zip(letters, runs, strict=False))
    return [figure._replace(of=of) for figure in figures(runs)]


def _figure(name: str, runs: Sequence[RunReport], draw: Callable[[Sequence[RunReport]], Canvas]) -> Figure:
    """Return a figure with its title, caption and text for screen readers."""
    values = {"runs": runs, "window": max(window(run.stream) for run in runs)}
    said = {part: text(statement(f"{name}_{part}", **values)) for part in ("title", "caption", "message")}
    caption = " ".join(filter(None, [text(statement("simulated_caption", runs=runs)), said["caption"]]))
    return Figure(name, said["title"], caption, partial(draw, runs), message=said["message"])


class Pen(NamedTuple):
    """The drawing style of one of two runs; they also differ in black and white."""

    prefix: str
    """`A: ` before a legend's labels; empty if there is one run."""
    letter: str
    colour: str
    line: str
    shape: str


def _pens(runs: Sequence[RunReport]) -> Iterator[tuple[RunReport, Pen]]:
    looks = (("A", ACCENT, "-", "o"), ("B", SECOND, "--", "D"))
    for run, look in zip(runs, looks, strict=False):
        yield run, Pen("" if len(runs) == 1 else f"{look[0]}: ", *look)


def window(points: Sequence[StreamPoint]) -> int:
    """Return the window of the rolling rate, in stream tasks: ten, or a twentieth of a long stream."""
    return max(10, len(points) // 20)


def rolling_rates(points: Sequence[StreamPoint]) -> list[float]:
    """Return, for each stream task, the resolved rate over the window that ends with it."""
    size = window(points)
    parts = [points[max(0, end - size) : end] for end in range(1, len(points) + 1)]
    sums = [(sum(p.passed for p in part), sum(p.graded for p in part)) for part in parts]
    return [passed / graded if graded else 0.0 for passed, graded in sums]


def _draw_stream(runs: Sequence[RunReport]) -> Canvas:
    canvas, (rate, size) = new_canvas(5.0, nrows=2, sharex=True, height_ratios=[3, 1.2])
    for run, pen in _pens(runs):
        if run.stream:
            _curve(rate, run, pen)
        _growth(size, run, pen)
    show_percent(rate, "resolved rate")
    size.set_ylabel("items")
    size.set_xlabel("stream task")
    for axes, columns in ((rate, 3), (size, 4)):
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(loc="upper left", fontsize=8, ncols=columns)
    size.yaxis.get_major_locator().set_params(integer=True)
    most = max(max(s.principles, s.skills) for run in runs for s in run.sizes)
    size.set_ylim(0, 1.45 * max(1, most))  # room for the legend
    return canvas


def _curve(axes: Axes, run: RunReport, pen: Pen) -> None:
    """Draw the rate, dotted before a full window, with a triangle at each accepted proposal."""
    places, rates = [p.position for p in run.stream], rolling_rates(run.stream)
    few = window(run.stream) - 1
    if places[few:]:
        label = f"{pen.prefix}resolved rate"
        axes.plot(places[few:], rates[few:], pen.line, color=pen.colour, linewidth=1.8, label=label)
    label = f"{pen.prefix}under {few + 1} tasks"
    axes.plot(places[: few + 1], rates[: few + 1], ":", color=pen.colour, linewidth=2.2, label=label)
    came, shape = ("accept", "^") if run.gated else ("taken", "v")
    behind = [(places[i] + 0.5, rates[i : i + 2]) for i, p in enumerate(run.stream) if p.accepted]
    if behind:
        axes.plot([x for x, _ in behind], [sum(near) / len(near) for _, near in behind], shape, color=pen.colour,
                  markersize=8, markeredgecolor=INK, linestyle="none", label=f"{pen.prefix}{came}")  # fmt: skip


def _growth(axes: Axes, run: RunReport, pen: Pen) -> None:
    """Draw the bank's size, which changes between two tasks. Lines that overlap differ in style, width and marker."""
    below = pen.prefix == "A: "
    last = max((p.position for p in run.stream), default=0)
    places = [s.position + 0.5 for s in run.sizes]
    styles = ("--D", "-.v") if pen.letter == "B" else ("-o", ":s")
    kinds = {"principles": [s.principles for s in run.sizes], "skills": [s.skills for s in run.sizes]}
    for style, (kind, sizes) in zip(styles, kinds.items(), strict=True):
        axes.step([*places, max(last, places[-1])], [*sizes, sizes[-1]], style, where="post", color=pen.colour,
                  linewidth=4.5 if below else 1.6, alpha=0.5 if below else 1, markersize=7 if pen.letter == "B" else 5,
                  fillstyle="none", markevery=range(len(places)), label=f"{pen.prefix}{kind}")  # fmt: skip


def draw_holdout(runs: Sequence[RunReport]) -> Canvas:
    """Draw the holdout evaluations of one run, or of two runs side by side, since their versions differ."""
    canvas, axes = new_canvas(3.6, nrows=1)
    total = sum(len(run.checkpoints) for run in runs)
    ticks: dict[float, str] = {}
    start = 0.0
    for run, pen in _pens(runs):
        if not run.checkpoints:
            continue
        last = len(run.checkpoints) - 1
        named = range(last + 1) if total <= _ALL_NAMED else sorted({0, last})
        letter = f"{pen.letter} " if len(runs) > 1 else ""
        ticks |= {start + n: f"{letter}version {run.checkpoints[n].version}" for n in named}
        _readings(axes, run, pen, start, named)
        start += last + 1 + max(1.0, total / 4)
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_xlim(-0.6, start - 1)
    show_percent(axes, "avg over rollouts", top=1.1)
    axes.set_yticks([n / 4 for n in range(5)])
    axes.grid(visible=False, axis="x")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(**_ABOVE)
    return canvas


def _readings(axes: Axes, run: RunReport, pen: Pen, start: float, named: Sequence[int]) -> None:
    low, high = [c.low for c in run.checkpoints], [c.high for c in run.checkpoints]
    places = [start + n for n in range(len(low))]
    if len(low) > 2:  # a line needs more than two points
        axes.plot(places, low, pen.line, color=pen.colour, linewidth=1)
    axes.plot(places, low, pen.shape, linestyle="none", color=pen.colour, markersize=8, zorder=3)
    axes.hlines(low[0], places[0], places[-1] + 0.4, color=SOFT, linestyle="--", linewidth=1)
    if low != high:
        axes.vlines(places, low, high, color=WARN, linestyle=":", label=f"{pen.prefix}unknown")
    for place in named:
        below = place > 0 and low[place] < low[place - 1]  # there is no line on this side
        axes.annotate(f"{low[place]:.1%}", (places[place], low[place]), (0, -16 if below else 8),
                      textcoords="offset points", ha="center", fontsize=10, color=INK)  # fmt: skip
    _guarantee(axes, run, places[-1], pen.colour)


def _guarantee(axes: Axes, run: RunReport, place: float, colour: str) -> None:
    """Draw the band from the guaranteed to the measured rate; a mark at 0 % shows that it goes below the figure."""
    gain = run.certificate.gain
    if not gain or gain.vacuous:
        return
    floor, right = run.checkpoints[0].low + gain.value, place + _HALF
    draw_band(axes, place - _HALF, right, floor, run.checkpoints[-1].low, colour)
    if floor < 0:
        axes.plot([place], [0.0], "v", color=colour, markersize=12)
    axes.annotate(f"guaranteed:\n{points(gain.value)}", (right, max(0.0, floor)), (6, -3), textcoords="offset points",
                  fontsize=9, color=INK, va="center" if floor > 0.1 else "bottom")  # fmt: skip


def _draw_gates(run: RunReport) -> Canvas:
    canvas, (gain, used) = new_canvas(4.6, nrows=2, sharex=True, height_ratios=[3, 1])
    gain.axhline(0, color=SOFT, linewidth=0.8)
    for gate in run.gates:
        _verdict(gain, gate)
    numbers, margins = [g.number for g in run.gates], [100 * g.margin for g in run.gates]
    gain.step(numbers, margins, where="mid", color=INK, linestyle="--", linewidth=1, label="margin")
    gain.set_ylabel("panel gain, points")
    _scale(gain, run.gates)
    _legend(gain, run.gates)
    used.bar(numbers, [100 * g.ran / g.total for g in run.gates], color=GRID, edgecolor=INK, width=0.6)
    used.set_ylim(0, 105)
    used.set_ylabel("% of its\nrollouts run")
    used.set_xlabel("gate")
    used.set_xlim(0.4, max(numbers) + 0.6)
    if len(numbers) <= _MOST_TICKS:
        used.set_xticks(numbers)
    return canvas


def _scale(axes: Axes, gates: Sequence[GateResult]) -> None:
    """Set the y axis so that all marks are visible; distant floors and ranges of rejects may leave the figure."""
    seen = [0.0, *(100 * bound for g in gates for bound in (g.high, g.margin, g.high if g.first is None else g.first))]
    seen += [100 * g.low for g in gates if not g.bounded]
    room = max(seen) - min(seen) + 1
    below = 0.25 if any(g.bounded for g in gates) else 0.08
    axes.set_ylim(min(seen) - below * room, max(seen) + 0.08 * room)


def _verdict(axes: Axes, gate: GateResult) -> None:
    x, low, high = gate.number, 100 * gate.low, 100 * gate.high
    if gate.first is not None:
        axes.plot([x], [100 * gate.first], "o", color=ACCENT, markersize=5, fillstyle="none")
    if gate.decision == "accept":
        axes.plot([x], [low], "o", color=ACCENT, markersize=7, zorder=3)
        if gate.floor is not None and not gate.vacuous:
            draw_band(axes, x - 0.3, x + 0.3, 100 * gate.floor, low, ACCENT)
    elif gate.decision == "reject":
        axes.plot([x, x], [low, high], "-", color=GRID, linewidth=3, solid_capstyle="butt")
        axes.plot([x], [high], "s", color=SOFT, markersize=6, fillstyle="none" if gate.bounded else "full")
    else:
        axes.plot([x, x], [low, high], "-", color=WARN, linewidth=1.5)
        axes.plot([x, x], [low, high], "x", color=WARN, markersize=5)


def _legend(axes: Axes, gates: Sequence[GateResult]) -> None:
    """Add a legend with only the symbols that are drawn."""
    rejects = {g.bounded for g in gates if g.decision == "reject"}
    seen = {g.decision for g in gates}
    floors = any(g.decision == "accept" and g.floor is not None and not g.vacuous for g in gates)
    for drawn, shape, colour, line, filled, label in (
        ("accept" in seen, "o", ACCENT, "none", "full", "accept: measured"),
        (floors, "none", ACCENT, "-", "full", "its certified floor"),
        (True in rejects, "s", SOFT, "none", "none", "reject: best it could still reach"),
        (False in rejects, "s", SOFT, "none", "full", "reject: measured"),
        ("indecisive" in seen, "x", WARN, "-", "full", "indecisive: between"),
        (any(g.first is not None for g in gates), "o", ACCENT, "none", "none", "first gain"),
    ):
        if drawn:
            axes.plot([], [], marker=shape, color=colour, linestyle=line, fillstyle=filled, label=label)
    axes.legend(**_ABOVE)


def _draw_cost(runs: Sequence[RunReport]) -> Canvas:
    bars = _bars(runs)
    canvas, axes = new_canvas(0.6 + 0.45 * len(bars) + 0.6, nrows=1)
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
    axes.legend(**_ABOVE)
    return canvas


def _bars(runs: Sequence[RunReport]) -> list[tuple[str, list[RoleCost]]]:
    """Return one bar for each run, and one for its evaluation and measurement. Every bar starts at 0."""
    bars = []
    for run, pen in _pens(runs):
        name, apart = (pen.letter, f"{pen.letter}, apart") if len(runs) > 1 else ("run", "apart")
        looks = [s for s in run.spent if s.role in APART]
        bars.append((name, [s for s in run.spent if s not in looks]))
        bars += [(apart, looks)] if looks else []
    return bars


_EFFECTS = range(-4, 13)
"""Drawn, in points."""
_CHANCE_LINES = (("-", "o", ACCENT), ("--", "s", SECOND), (":", "^", INK))


def gate_figure(beliefs: Sequence[power.Beta], gate: GatePlan) -> Figure:
    """Return the chance of an accept after a fresh baseline, with and without confirmation, by the true effect.

    Raises:
        ValueError: the panel is too large for the exact chances of a confirmed gate.
    """
    rules = {
        "without confirm": Gate(gate.rollouts, gate.needed, guard=gate.guard),
        "with confirm": Gate(gate.rollouts, gate.needed, confirm=True, guard=gate.guard),
        "without confirm, twice the rollouts": Gate(2 * gate.rollouts, 2 * gate.needed, guard=gate.guard),
    }
    most = power.most_gain(beliefs, gate.reach)
    effects = [e for e in _EFFECTS if most - gate.reach <= e / 100 <= most]
    changes = [power.change_of(beliefs, effect / 100, gate.reach) for effect in effects]
    chances = {name: [power.accept_chance(beliefs, rule, how) for how in changes] for name, rule in rules.items()}
    return Figure("gate", "What this gate accepts", _gate_caption(gate), lambda: _draw_gate_chances(effects, chances))


def _draw_gate_chances(effects: Sequence[int], chances: dict[str, list[float]]) -> Canvas:
    canvas, axes = new_canvas(4.2, nrows=1)
    for (name, drawn), (line, shape, colour) in zip(chances.items(), _CHANCE_LINES, strict=True):
        axes.plot(effects, drawn, line, marker=shape, markersize=4, color=colour, linewidth=1.8, label=name)
    axes.axvline(0, color=SOFT, linewidth=0.8)
    show_percent(axes, "chance of an accept")
    axes.set_xlabel("true effect of the proposal, points")
    axes.legend(loc="lower right", fontsize=8)
    return canvas


def _gate_caption(gate: GatePlan) -> str:
    panel = f"{plural(gate.tasks, 'task')} x {plural(gate.rollouts, 'rollout')}, margin {gate.rho}"
    guard = f" In all three no task may pass {gate.guard} fewer." if gate.guard else ""
    return (
        f"Computed, not measured: the exact chance that a gate of {panel} accepts a proposal, after a fresh baseline, "
        f"over rates of {gate.source} (mean {100 * gate.mean_rate:.0f} %, noise p(1-p) {gate.noise:.3f}).{guard} Left "
        "of 0 an accept does harm, at 0 it is for nothing. An effect is spread evenly over the rollouts it can change."
    )
