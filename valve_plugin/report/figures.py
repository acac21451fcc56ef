"""The figures of a run, and of two runs compared; their captions are in `assets/sentences.j2`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from valve_plugin.evidence.cost import APART
from valve_plugin.report.run import GateResult, RunReport, StreamPoint
from valve_plugin.report.style import (
    ACCENT,
    DASHED,
    DOTTED,
    GRID,
    INK,
    MIXED,
    PERCENT,
    SECOND,
    SOFT,
    WARN,
    Boxes,
    Chart,
    Figure,
    Line,
    Marks,
    Note,
    Part,
    Point,
    ticks,
)
from valve_plugin.report.templates import statement, text
from valve_plugin.words import points

_MOST_TICKS = 40
_ALL_NAMED = 6
"""Up to this number of holdout evaluations all are labelled, else the first and the last; so are floors, else none."""
_HALF = 0.2
"""Half of a band's width; evaluations are 1 apart."""


def figures(runs: Sequence[RunReport]) -> list[Figure]:
    """Return the figures of one run, or of two runs to compare."""
    found = []
    if any(run.stream for run in runs):
        found.append(_figure("stream", runs, _stream(runs)))
    if any(run.checkpoints for run in runs):
        found.append(_figure("holdout", runs, [holdout(runs)]))
    for number, run in enumerate(runs, 1):
        if run.gates:
            gates = _figure("gates", [run], _gates(run))
            if len(runs) > 1:
                gates = gates._replace(name=f"gates-{number}", title=f"{gates.title}, {'AB'[number - 1]}")
            found.append(gates)
    if any(run.spent for run in runs):
        found.append(_figure("cost", runs, [_cost(runs)]))
    return found


def _figure(name: str, runs: Sequence[RunReport], charts: Sequence[Chart]) -> Figure:
    """Return a figure with its title, caption and text for screen readers."""
    values = {"runs": runs, "window": max(window(run.stream) for run in runs)}
    said = {part: text(statement(f"{name}_{part}", **values)) for part in ("title", "caption", "message")}
    caption = " ".join(filter(None, [text(statement("simulated_caption", runs=runs)), said["caption"]]))
    return Figure(name, said["title"], caption, charts, message=said["message"])


class Pen(NamedTuple):
    """The drawing style of one of two runs; they also differ in black and white."""

    prefix: str
    """`A: ` before a legend's labels; empty if there is one run."""
    letter: str
    colour: str
    dash: str
    shape: str


def _pens(runs: Sequence[RunReport]) -> Iterator[tuple[RunReport, Pen]]:
    looks = (("A", ACCENT, "", "circle"), ("B", SECOND, DASHED, "diamond"))
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


def _stream(runs: Sequence[RunReport]) -> list[Chart]:
    rate = [part for run, pen in _pens(runs) if run.stream for part in _curve(run, pen)]
    size = [part for run, pen in _pens(runs) for part in _growth(run, pen)]
    most = max(max(s.principles, s.skills) for run in runs for s in run.sizes)
    x = (0.0, max(p.position for run in runs for p in run.stream) + 0.5)
    return [
        Chart(rate, x, (0, 1), 190, y_label="resolved rate", x_ticks={}, y_ticks=PERCENT),
        Chart(size, x, (0, max(1, most)), 70, "stream task", "items", y_ticks=ticks(0, max(1, most), 2, whole=True)),
    ]


def _curve(run: RunReport, pen: Pen) -> Iterator[Part]:
    """Yield the rate, dotted before a full window, with a triangle at each accepted proposal."""
    rates = list(zip((p.position for p in run.stream), rolling_rates(run.stream), strict=True))
    few = window(run.stream) - 1
    if rates[few:]:
        yield Line(rates[few:], pen.colour, pen.dash, label=f"{pen.prefix}resolved rate")
    yield Line(rates[: few + 1], pen.colour, DOTTED, 2.2, f"{pen.prefix}under {few + 1} tasks")
    came, shape = ("accept", "up") if run.gated else ("taken", "down")
    behind = [rates[i : i + 2] for i, p in enumerate(run.stream) if p.accepted]
    places = [(near[0][0] + 0.5, sum(rate for _, rate in near) / len(near)) for near in behind]
    if places:
        yield Marks(places, shape, pen.colour, label=f"{pen.prefix}{came}")


def _growth(run: RunReport, pen: Pen) -> Iterator[Part]:
    """Yield the bank's size, which changes between two tasks. Lines that overlap differ in style and width."""
    last = max((p.position for p in run.stream), default=0)
    styles = (DASHED, MIXED) if pen.letter == "B" else ("", DOTTED)
    for kind, dash in zip(("principles", "skills"), styles, strict=True):
        sizes = [(s.position + 0.5, float(getattr(s, kind))) for s in run.sizes]
        ends = [*sizes, (max(last, sizes[-1][0]), sizes[-1][1])]
        stairs = [ends[0], *(at for (_, y), (x, to) in pairwise(ends) for at in ((x, y), (x, to)))]
        yield Line(stairs, pen.colour, dash, 3.4 if pen.prefix == "A: " else 1.6, f"{pen.prefix}{kind}")


def holdout(runs: Sequence[RunReport]) -> Chart:
    """Return the holdout evaluations of one run, or of two runs side by side, since their versions differ."""
    total = sum(len(run.checkpoints) for run in runs)
    labels: dict[float, str] = {}
    parts: list[Part] = []
    start = 0.0
    for run, pen in _pens(runs):
        if not run.checkpoints:
            continue
        last = len(run.checkpoints) - 1
        named = range(last + 1) if total <= _ALL_NAMED else sorted({0, last})
        letter = f"{pen.letter} " if len(runs) > 1 else ""
        versions = [c.version for c in run.checkpoints]
        twice = ", step {0.step}" if len({*versions}) < len(versions) else ""  # one version, read at two steps
        labels |= {start + n: f"{letter}version {versions[n]}{twice.format(run.checkpoints[n])}" for n in named}
        parts += _readings(run, pen, start, named)
        start += last + 1 + max(1.0, total / 4)
    return Chart(parts, (-0.6, start - 0.6), (0, 1.1), 190, "", "avg over rollouts", labels, PERCENT)


def _readings(run: RunReport, pen: Pen, start: float, named: Sequence[int]) -> Iterator[Part]:
    low = [(start + n, c.low) for n, c in enumerate(run.checkpoints)]
    open_ = [(at, c.high) for at, c in zip(low, run.checkpoints, strict=True) if c.high > c.low]
    yield Line([low[0], (low[-1][0] + 0.4, low[0][1])], SOFT, DASHED, 1)
    yield from _guarantee(run, low[-1][0], pen.colour)
    if len(low) > 2:  # a line needs more than two points
        yield Line(low, pen.colour, pen.dash, 1)
    yield Marks(low, pen.shape, pen.colour)
    for n, (at, high) in enumerate(open_):
        yield Line([at, (at[0], high)], WARN, DOTTED, label="" if n else f"{pen.prefix}unknown")
    for n in named:
        below = n > 0 and low[n][1] < low[n - 1][1]  # there is no line on this side
        yield Note(low[n], f"{low[n][1]:.1%}", "below" if below else "above")


def _guarantee(run: RunReport, place: float, colour: str) -> Iterator[Part]:
    """Yield the band from the guaranteed to the measured rate; a mark at 0 % shows that it goes below the figure."""
    gain = run.certificate.gain
    if not gain or gain.vacuous:
        return
    floor = run.checkpoints[0].low + gain.value
    area, line = _band(place - _HALF, place + _HALF, floor, run.checkpoints[-1].low, colour)
    yield area
    if floor >= 0:
        yield line
    else:
        yield Marks([(place, 0.0)], "down", colour)
    yield Note((place - _HALF, max(0.03, floor)), f"guaranteed: {points(gain.value)}", "left")


def _band(left: float, right: float, low: float, high: float, colour: str, label: str = "") -> tuple[Boxes, Line]:
    """Return a certificate's band, from the guaranteed value (the line at the bottom) to the measured one."""
    area = Boxes([((left, low), (right, high))], colour, opacity=0.18)
    return area, Line([(left, low), (right, low)], colour, "", 2, label)


def _gates(run: RunReport) -> list[Chart]:
    numbers = [g.number for g in run.gates]
    x = (0.4, max(numbers) + 0.6)
    margins = [at for g in run.gates for at in ((g.number - 0.5, 100 * g.margin), (g.number + 0.5, 100 * g.margin))]
    margin = Line(margins, INK, DASHED, 1, "margin")
    # The y axis in which all marks are visible; distant floors and ranges of rejects may leave it
    seen = [
        0.0,
        *(100 * bound for g in run.gates for bound in (g.high, g.margin, g.high if g.first is None else g.first)),
    ]
    seen += [100 * g.low for g in run.gates if not g.bounded]
    room = max(seen) - min(seen) + 1
    below = 0.25 if any(g.bounded for g in run.gates) else 0.08
    y = (min(seen) - below * room, max(seen) + 0.08 * room)
    gain = [Line([(x[0], 0), (x[1], 0)], SOFT, "", 0.8), margin, *_floors(run.gates, y[0]), *_verdicts(run.gates)]
    used = Boxes([((g.number - 0.3, 0), (g.number + 0.3, 100 * g.ran / g.total)) for g in run.gates], GRID, INK)
    labels = {float(n): str(n) for n in numbers} if len(numbers) <= _MOST_TICKS else None
    return [
        Chart(gain, x, y, 180, y_label="panel gain, points", x_ticks={}),
        Chart([used], x, (0, 105), 60, "gate", "% run", labels, {0: "0", 50: "50", 100: "100"}),
    ]


def _verdicts(gates: Sequence[GateResult]) -> Iterator[Part]:
    """Yield the marks of all verdicts, one part for each kind, so that the legend names what is drawn."""

    def at(found: list[GateResult], field: str = "high") -> list[Point]:
        return [(g.number, 100 * getattr(g, field)) for g in found]

    accepts = [g for g in gates if g.decision == "accept"]
    rejects = [g for g in gates if g.decision == "reject"]
    lost = [g for g in gates if g.decision == "indecisive"]
    yield from (Line([*at([g], "low"), *at([g])], GRID, "", 3) for g in rejects)
    yield from (Line([*at([g], "low"), *at([g])], WARN, "", 1.5) for g in lost)
    for found, field, shape, colour, filled, label in (
        (accepts, "low", "circle", ACCENT, True, "accept: measured"),
        ([g for g in rejects if g.bounded], "high", "square", SOFT, False, "reject: best it could still reach"),
        ([g for g in rejects if not g.bounded], "high", "square", SOFT, True, "reject: measured"),
        (lost, "low", "cross", WARN, True, "indecisive: between"),
        (lost, "high", "cross", WARN, True, ""),
        ([g for g in gates if g.first is not None], "first", "circle", ACCENT, False, "first gain"),
    ):
        if found:
            yield Marks(at(found, field), shape, colour, filled, label)


def _floors(gates: Sequence[GateResult], bottom: float) -> Iterator[Part]:
    """Yield a band from each accept down to its certified floor; one below the axis has a triangle and its number."""
    label = "its certified floor"
    below: list[Point] = []
    for g in gates:
        if g.decision != "accept" or g.floor is None or g.vacuous:
            continue
        left, right, floor = g.number - 0.3, g.number + 0.3, 100 * g.floor
        if floor >= bottom:
            yield from _band(left, right, floor, 100 * g.low, ACCENT, label)
            label = ""
        else:
            yield Boxes([((left, bottom), (right, 100 * g.low))], ACCENT, opacity=0.18)
            below.append((g.number, floor))
    if below:
        yield Marks(
            [(number, bottom) for number, _ in below], "down", ACCENT, label="its certified floor, further below"
        )
    if len(below) <= _ALL_NAMED:
        yield from (Note((number, bottom), f"{floor:.1f}") for number, floor in below)


def _cost(runs: Sequence[RunReport]) -> Chart:
    """Return a bar for each role of each run."""
    rows = [
        (f"{pen.prefix}{spent.role}{' (apart)' * (spent.role in APART)}", spent.hours)
        for run, pen in _pens(runs)
        for spent in run.spent
    ]
    longest = max(hours for _, hours in rows)
    unit, scale = ("hours", 1) if longest >= 1 else ("minutes", 60) if longest >= 1 / 60 else ("seconds", 3600)
    bars = [((0, -n - 0.3), (hours * scale, -n + 0.3)) for n, (_, hours) in enumerate(rows)]
    x = (0.0, 1.05 * max(scale * longest, 1e-3))
    names = {-float(n): name for n, (name, _) in enumerate(rows)}
    y = (0.5 - len(rows), 0.5)
    return Chart([Boxes(bars, GRID, INK)], x, y, 26 * len(rows), f"{unit} of rollouts", "", ticks(*x, 5), names)
