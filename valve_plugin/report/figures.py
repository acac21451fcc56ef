"""The figures of one run, or of two compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from valve_plugin.report.run import APART, Gate, Run, StreamPoint
from valve_plugin.report.style import ACCENT, GRID, INK, SECOND, SOFT, WARN, Figure, new

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

_MOST_TICKS = 40


def figures(runs: Sequence[Run]) -> list[Figure]:
    """Return what can be drawn of one run, or of two compared."""
    found = []
    if any(run.stream for run in runs):
        found.append(Figure("stream", "Resolved rate over the stream", _stream_caption(runs), lambda: _stream(runs)))
    if any(run.checkpoints for run in runs):
        found.append(
            Figure("holdout", "Resolved rate on the sealed holdout", _holdout_caption(runs), lambda: _holdout(runs))
        )
    for run in runs:
        suffix = "" if len(runs) == 1 else f"-{runs.index(run) + 1}"
        whose = "" if len(runs) == 1 else f", {'AB'[runs.index(run)]}"
        if run.gates:
            caption = _gates_caption(run)
            found.append(Figure(f"gates{suffix}", f"Gate verdicts{whose}", caption, lambda run=run: _gates(run)))  # type: ignore[misc]
    if any(run.spent for run in runs):
        caption = (
            "Time of rollouts by role as recorded on this machine, one after the other; several workers take less "
            "wall-clock time. Evaluation and measurement are apart: they look at the run and are no part of it."
        )
        found.append(Figure("cost", "Time by role", caption, lambda: _cost(runs)))
    return found


def window(points: Sequence[StreamPoint]) -> int:
    """Return over how many stream tasks the rate is taken: ten, or a twentieth of a long stream."""
    return max(10, len(points) // 20)


def rolling(points: Sequence[StreamPoint]) -> list[float]:
    """Return, at each stream task, the resolved rate of the graded attempts at it and the tasks before it."""
    before = window(points) - 1
    return [_rate(points[max(0, i - before) : i + 1]) for i in range(len(points))]


def _rate(points: Sequence[StreamPoint]) -> float:
    graded = sum(p.graded for p in points)
    return sum(p.passed for p in points) / graded if graded else 0.0


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
    axes.plot(places, rates, line, color=colour, linewidth=1.8, label=f"{name}resolved rate")
    peaks = [max(rates[: i + 1]) for i in range(len(rates))]
    axes.fill_between(places, rates, peaks, facecolor="none", edgecolor=colour, hatch="///", alpha=0.5, linewidth=0,
                      label=f"{name}below its peak")  # fmt: skip
    accepts = [i for i, p in enumerate(run.stream) if p.accepted]
    axes.plot([places[i] for i in accepts], [rates[i] for i in accepts], shape, color=colour, markersize=8,
              markeredgecolor=INK, linestyle="none", label=f"{name}{came}")  # fmt: skip


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
    peaks = [max(low[: i + 1]) for i in range(len(low))]
    axes.fill_between(steps, low, peaks, facecolor="none", edgecolor=colour, hatch="///", alpha=0.5, linewidth=0,
                      label=f"{name}drawdown")  # fmt: skip
    gain = run.certificate.gain
    if gain and not gain.vacuous:
        axes.axhspan(low[0] + gain.value, low[-1], facecolor=colour, alpha=0.15, linewidth=0,
                     label=f"{name}between certified floor and final")  # fmt: skip


def _growth(axes: Axes, run: Run, number: int, *, alone: bool) -> None:
    end = max((p.position for p in run.stream), default=0)
    places = [s.position for s in run.sizes] + [end]
    colour, lines = ((ACCENT, ("-", ":")), (SECOND, ("--", "-.")))[number % 2]
    name = "" if alone else f"{'AB'[number % 2]}: "
    kinds = {"principles": [s.principles for s in run.sizes], "skills": [s.skills for s in run.sizes]}
    for line, (kind, sizes) in zip(lines, kinds.items(), strict=True):
        axes.step(places, [*sizes, sizes[-1]], line, where="post", color=colour, linewidth=1.6, label=f"{name}{kind}")


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
    _shapes(gain)
    used.bar(numbers, [100 * (g.ran + g.beyond) / g.total for g in run.gates], color=GRID, edgecolor=INK, width=0.6)
    used.set_ylim(0, 105)
    used.set_ylabel("% run")
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


def _shapes(axes: Axes) -> None:
    """A legend of what can occur, whether or not it did."""
    for shape, colour, line, filled, label in (
        ("o", ACCENT, "none", "full", "accept: measured"),
        ("_", ACCENT, ":", "full", "its certified floor"),
        ("s", SOFT, "-", "none", "reject: between"),
        ("x", WARN, "-", "full", "indecisive: between"),
    ):
        axes.plot([], [], shape, color=colour, linestyle=line, fillstyle=filled, label=label)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), fontsize=8, ncols=5)


def _cost(runs: Sequence[Run]) -> Canvas:
    canvas, axes = new(0.6 + 0.5 * len(runs) + 0.6, nrows=1)
    hatches = {"solver": "", "gate": "///", "extractor": "...", "measurement": "++", "evaluation": "xx"}
    short = max(sum(s.hours for s in run.spent) for run in runs) < 1
    unit, scale = ("minutes", 60) if short else ("hours", 1)
    for row, run in enumerate(runs):
        left = 0.0
        for spent in sorted(run.spent, key=lambda s: s.role in APART):
            left += 0.02 * scale if spent.role in APART and left else 0.0
            axes.barh([row], [spent.hours * scale], left=[left], height=0.6, facecolor=GRID, edgecolor=INK,
                      hatch=hatches[spent.role], label=spent.role if row == 0 else None)  # fmt: skip
            left += spent.hours * scale
    axes.set_yticks(range(len(runs)), ["all"] if len(runs) == 1 else ["A", "B"][: len(runs)])
    axes.invert_yaxis()
    axes.set_xlabel(f"{unit} of rollouts")
    axes.grid(visible=False, axis="y")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.35), fontsize=8, ncols=5)
    return canvas


def _stream_caption(runs: Sequence[Run]) -> str:
    whole = all(run.stream_whole for run in runs)
    last = max(window(run.stream) for run in runs)
    what = f"Share of graded attempts that resolved their task, over the last {last} stream tasks, as attempted"
    which = "." if whole else "; only mixed tasks are known here, so the rate says little."
    return (
        f"{what}{which} Triangles mark tasks whose proposal came into the bank (pointing down: without a gate); the "
        "hatched area is the distance to the "
        "highest value so far. Tasks differ in difficulty, so a slope is no proof of learning: the holdout is."
    )


def _holdout_caption(runs: Sequence[Run]) -> str:
    first = next(run.checkpoints[0] for run in runs if run.checkpoints)
    return (
        f"avg@{first.rollouts} of frozen bank versions on {first.tasks} holdout tasks that nothing was learned from or "
        "judged on. The hatched area is the drop since the peak; the peak itself is selected on this holdout, so it "
        "flatters. A dotted bar is what errored rollouts leave unknown; the plain band, where there is one, reaches "
        "from the certified floor to the final version."
    )


def _gates_caption(run: Run) -> str:
    panel = f"{run.panel.tasks} tasks x {run.panel.rollouts} rollouts" if run.panel else "a panel"
    repeated = any(g.again for g in run.gates)
    again = " Accepts had to repeat on fresh rollouts: a hollow circle is the first gain, and twice the panel is 100 %."
    return (
        f"Panel gain of each proposal over the bank it was judged against, on {panel}. A rejected gate stops when "
        "its verdict is certain, so its gain is an interval. Accepts were selected by this very number: their "
        "certified floor, where there is one, is what can be relied on. Below: share of the panel's rollouts run."
        f"{again if repeated else ''}"
    )
