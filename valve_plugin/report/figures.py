"""The figures of a run, and of two runs compared, drawn here as SVG; their captions are in `assets/sentences.j2`.

Text from models or repositories never enters a figure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple
from xml.sax.saxutils import escape

from valve_plugin.evidence.cost import APART
from valve_plugin.report.run import GateResult, RunReport, StreamPoint
from valve_plugin.report.templates import statement, text
from valve_plugin.words import points

INK, SOFT, GRID, ACCENT, SECOND, WARN = "ink", "soft", "grid", "accent", "second", "warn"
"""Variables of the page's style sheet."""
DASHED, DOTTED, MIXED = "7 4", "2 3", "8 3 2 3"
PERCENT = {n / 4: f"{25 * n} %" for n in range(5)}
"""Ticks of a share."""
_WIDE, _NARROW = 760, 330
"""Widths in units. Text is 11 high, and at least as many pixels high on a phone that is 360 pixels wide."""
_LETTER, _ROW = 6.2, 17.0
"""Width of a letter and height of a line of text."""
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

Point = tuple[float, float]
_Scale = Callable[[Point], Point]
"""From a chart's values to places in the document."""
_SHAPES = {
    "square": "M-4,-4H4V4H-4Z",
    "diamond": "M0,-5.5L5.5,0L0,5.5L-5.5,0Z",
    "up": "M0,-5L5,4H-5Z",
    "down": "M0,5L5,-4H-5Z",
    "cross": "M-4,-4L4,4M-4,4L4,-4",
    "circle": "M-4,0A4,4 0 1 0 4,0A4,4 0 1 0 -4,0Z",
}
_MOST_TICKS = 40
_ALL_NAMED = 6
"""Up to this number of holdout evaluations all are labelled, else the first and the last; so are floors, else none."""
_LATEST = 500
"""Gates in their figure."""
_HALF = 0.2
"""Half of a band's width; evaluations are 1 apart."""


class Line(NamedTuple):
    """A line through points; a legend names it by its label."""

    points: Sequence[Point]
    colour: str = ACCENT
    dash: str = ""
    width: float = 1.8
    label: str = ""


class Marks(NamedTuple):
    """One mark at each point."""

    points: Sequence[Point]
    shape: str = "circle"
    colour: str = ACCENT
    filled: bool = True
    label: str = ""


class Boxes(NamedTuple):
    """Areas, each from a corner to the opposite one."""

    corners: Sequence[tuple[Point, Point]]
    colour: str = GRID
    edge: str = ""
    opacity: float = 1.0


class Area(NamedTuple):
    """The area inside of a line through points."""

    points: Sequence[Point]
    colour: str = GRID


class Note(NamedTuple):
    """Text above a point, below it, or to its left."""

    at: Point
    text: str
    side: str = "above"


Part = Line | Marks | Boxes | Area | Note


class Chart(NamedTuple):
    """Parts in one pair of axes; what lies outside of `y` is drawn at its end."""

    parts: Sequence[Part]
    x: tuple[float, float]
    y: tuple[float, float]
    height: float = 180.0
    x_label: str = ""
    y_label: str = ""
    x_ticks: Mapping[float, str] | None = None
    """Value -> label; None: round numbers."""
    y_ticks: Mapping[float, str] | None = None


class Figure(NamedTuple):
    """One figure."""

    name: str
    title: str
    caption: str
    """What was measured, and on which tasks."""
    charts: Sequence[Chart]
    message: str = ""
    """What the figure shows, as text for screen readers."""


def ticks(low: float, high: float, most: float, *, whole: bool = False) -> dict[float, str]:
    """Return at most so many round numbers of a range, with their labels."""
    rough = max((high - low) / max(1.0, most), 1e-9)
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * n for n in (1, 2, 5, 10) if size * n >= rough * 0.999)
    if most >= 2 and step > high - low:  # 5 becomes 2, or there would be one tick
        step *= 0.4
    step = max(1.0, step) if whole else step
    return {n * step: f"{n * step:g}" for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)}


# ---- a figure as a document


def page_svg(figure: Figure, *, narrow: bool = False) -> str:
    """Return the figure for the page; equal numbers give equal bytes."""
    width = _NARROW if narrow else _WIDE
    parts: list[str] = []
    height = 0.0
    aside = _LETTER * max(len(label) for chart in figure.charts for label in _y_ticks(chart).values())
    for chart in figure.charts:
        elements, bottom = _chart(chart, height, width, aside)
        parts += elements
        height = bottom + 6
    name = f"{figure.name}-narrow" if narrow else figure.name
    title, said = (_plain(text) for text in (figure.title, f"{figure.caption} {figure.message}".strip()))
    id_ = f"figure-{name}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="{id_}-title {id_}-desc" '
        f'focusable="false" viewBox="0 0 {width} {height:.0f}" style="font:11px sans-serif">'
        f'<title id="{id_}-title">{title}</title>'
        f'<desc id="{id_}-desc">{said}</desc>{"".join(parts)}</svg>'
    )


def _y_ticks(chart: Chart) -> Mapping[float, str]:
    return ticks(*chart.y, max(2, chart.height / 40)) if chart.y_ticks is None else chart.y_ticks


def _chart(chart: Chart, top: float, width: float, aside: float) -> tuple[list[str], float]:
    """Return a chart's elements, and where they end; `aside` is the width of the labels beside all charts."""
    found = []
    legend, top = _legend(chart, 8, top, width - 16)
    x0 = 14 + aside + _ROW * bool(chart.y_label)
    x1, y0, y1 = width - 14, top + 8, top + 8 + chart.height
    x_ticks = ticks(*chart.x, (x1 - x0) / 60, whole=True) if chart.x_ticks is None else chart.x_ticks

    def at(point: Point) -> Point:
        x, y = point[0] - chart.x[0], min(max(point[1], chart.y[0]), chart.y[1]) - chart.y[0]
        return x0 + x * (x1 - x0) / (chart.x[1] - chart.x[0]), y1 - y * chart.height / (chart.y[1] - chart.y[0])

    for value, label in _y_ticks(chart).items():
        y = at((chart.x[0], value))[1]
        found.append(_path([(x0, y), (x1, y)], GRID, width=0.6))
        found.append(_text(x0 - 6, y + 4, label, anchor="end", colour=SOFT))
    below, bottom = _below(chart, x_ticks, at, (x0, x1), y1)
    found += [*below, _path([(x0, y0), (x0, y1), (x1, y1)], SOFT, width=0.8)]
    if chart.y_label:
        x, y = 12, (y0 + y1) / 2
        found.append(_text(x, y, chart.y_label, anchor="middle", turn=-90))
    for part in chart.parts:
        found += _part(part, at)
    return [*found, *legend], bottom


def _below(
    chart: Chart, labels: Mapping[float, str], at: _Scale, ends: tuple[float, float], bottom: float
) -> tuple[list[str], float]:
    """Return the labels below the axes, slanted where they would overlap, and where they end."""
    longest = _LETTER * max(map(len, labels.values()), default=0)
    slanted = longest > (ends[1] - ends[0]) / max(1, len(labels))
    found = []
    for value, label in labels.items():
        x = at((value, chart.y[0]))[0]
        found.append(_path([(x, bottom), (x, bottom + 4)], SOFT, width=0.8))
        anchor, turn = ("end", -30) if slanted else ("middle", 0)
        found.append(_text(x, bottom + 16, label, anchor=anchor, colour=SOFT, turn=turn))
    bottom += (10 + longest / 2 if slanted else _ROW) if labels else 4
    if chart.x_label:
        found.append(_text(sum(ends) / 2, bottom + 14, chart.x_label, anchor="middle"))
        bottom += _ROW
    return found, bottom


def _legend(chart: Chart, left: float, top: float, width: float) -> tuple[list[str], float]:
    """Return a sample and a label of every part that has one, in rows, and where they end."""
    found: list[str] = []
    x, rows = 0.0, 0
    for part in chart.parts:
        if not isinstance(part, Line | Marks) or not part.label:
            continue
        size = 36 + _LETTER * len(part.label)
        if rows == 0 or x + size > width:
            x, rows = 0.0, rows + 1
        y = top + _ROW * rows - 5
        sample = [(left + x, y - 4), (left + x + 22, y - 4)] if isinstance(part, Line) else [(left + x + 11, y - 4)]
        found += [*_part(part._replace(points=sample), lambda point: point), _text(left + x + 27, y, part.label)]
        x += size + 8
    return found, top + _ROW * rows


# ---- elements


def _part(part: Part, at: _Scale) -> Iterator[str]:
    if isinstance(part, Line):
        yield _path(list(map(at, part.points)), part.colour, part.dash, part.width)
    elif isinstance(part, Marks):
        fill = f"var(--{part.colour})" if part.filled else "none"
        style = f"fill:{fill};stroke:var(--{part.colour});stroke-width:1.4"
        for x, y in map(at, part.points):
            yield f'<path transform="translate({x:.1f},{y:.1f})" d="{_SHAPES[part.shape]}" style="{style}"/>'
    elif isinstance(part, Boxes):
        for corner, other in part.corners:
            (x, y), (to_x, to_y) = at(corner), at(other)
            edge = f"stroke:var(--{part.edge});" if part.edge else ""
            yield (
                f'<rect x="{min(x, to_x):.1f}" y="{min(y, to_y):.1f}" width="{abs(to_x - x):.1f}" '
                f'height="{abs(to_y - y):.1f}" style="fill:var(--{part.colour});{edge}opacity:{part.opacity:g}"/>'
            )
    elif isinstance(part, Area):
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(at, part.points))
        yield f'<polygon points="{drawn}" style="fill:var(--{part.colour})"/>'
    else:
        x, y = at(part.at)
        dy = {"above": -9, "below": 18}.get(part.side, 4)
        left = part.side == "left"
        yield _text(x - 6 * left, y + dy, part.text, anchor="end" if left else "middle")


def _path(points: Sequence[Point], colour: str, dash: str = "", width: float = 1.8) -> str:
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = f";stroke-dasharray:{dash}" if dash else ""
    return f'<polyline points="{drawn}" style="fill:none;stroke:var(--{colour});stroke-width:{width:g}{dashes}"/>'


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = INK, turn: int = 0) -> str:
    turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
    style = f"fill:var(--{colour})"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned} style="{style}">{_plain(text)}</text>'


def _plain(text: str) -> str:
    return escape(_CONTROLS.sub("?", text))


def figures(runs: Sequence[RunReport]) -> list[Figure]:
    """Return the figures of one run, or of two runs to compare."""
    found = []
    if any(run.stream for run in runs):
        found.append(_figure("stream", runs, _stream(runs)))
    if any(run.checkpoints for run in runs):
        found.append(_figure("holdout", runs, [holdout(runs)]))
    for number, run in enumerate(runs, 1):
        if run.gates:
            gates = _figure("gates", [run], _gates(run.gates[-_LATEST:]))
            if len(run.gates) > _LATEST:
                gates = gates._replace(caption=f"{gates.caption} The latest {_LATEST} of {len(run.gates):,} gates.")
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
    passed = list(accumulate((p.passed for p in points), initial=0))
    graded = list(accumulate((p.graded for p in points), initial=0))
    ends = [(max(0, end - size), end) for end in range(1, len(points) + 1)]
    return [(passed[b] - passed[a]) / (graded[b] - graded[a] or 1) for a, b in ends]


def _stream(runs: Sequence[RunReport]) -> list[Chart]:
    rate = [part for run, pen in _pens(runs) if run.stream for part in _curve(run, pen)]
    size = [part for run, pen in _pens(runs) for part in _growth(run, pen)]
    most = max(max(s.principles, s.skills) for run in runs for s in run.sizes)
    x = (0.0, max(p.position for run in runs for p in run.stream) + 0.5)
    return [
        Chart(rate, x, (0, 1), 190, y_label="pass rate", x_ticks={}, y_ticks=PERCENT),
        Chart(size, x, (0, max(1, most)), 70, "stream task", "notes", y_ticks=ticks(0, max(1, most), 2, whole=True)),
    ]


def _curve(run: RunReport, pen: Pen) -> Iterator[Part]:
    """Yield the rate, dotted before a full window, with a triangle at each accepted proposal."""
    rates = list(zip((p.position for p in run.stream), rolling_rates(run.stream), strict=True))
    few = window(run.stream) - 1
    if rates[few:]:
        yield Line(rates[few:], pen.colour, pen.dash, label=f"{pen.prefix}pass rate")
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


def _gates(gates: Sequence[GateResult]) -> list[Chart]:
    numbers = [g.number for g in gates]
    x = (min(numbers) - 0.6, max(numbers) + 0.6)
    margins = [at for g in gates for at in ((g.number - 0.5, 100 * g.margin), (g.number + 0.5, 100 * g.margin))]
    margin = Line(margins, INK, DASHED, 1, "margin")
    # The y axis in which all marks are visible; distant floors and ranges of rejects may leave it
    seen = [
        0.0,
        *(100 * bound for g in gates for bound in (g.high, g.margin, g.high if g.first is None else g.first)),
    ]
    seen += [100 * g.low for g in gates if not g.bounded]
    room = max(seen) - min(seen) + 1
    below = 0.25 if any(g.bounded for g in gates) else 0.08
    y = (min(seen) - below * room, max(seen) + 0.08 * room)
    gain = [Line([(x[0], 0), (x[1], 0)], SOFT, "", 0.8), margin, *_floors(gates, y[0]), *_verdicts(gates)]
    used = Boxes([((g.number - 0.3, 0), (g.number + 0.3, 100 * g.ran / g.total)) for g in gates], GRID, INK)
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
