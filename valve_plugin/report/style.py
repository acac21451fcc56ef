"""Figures as SVG, drawn here. They are readable in black and white: shapes and lines show the state.

Text from models or repositories never enters a figure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

INK, SOFT, GRID, ACCENT, SECOND, WARN = "ink", "soft", "grid", "accent", "second", "warn"
"""Variables of the page's style sheet."""
DASHED, DOTTED, MIXED = "7 4", "2 3", "8 3 2 3"
PERCENT = {n / 4: f"{25 * n} %" for n in range(5)}
"""Ticks of a share."""
_WIDE, _NARROW = 760, 360
_LETTER, _ROW = 6.2, 17.0
"""Width of a letter and height of a line of text."""
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")

Point = tuple[float, float]
_Scale = Callable[[Point], Point]
"""From a chart's values to places in the document."""


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


class Note(NamedTuple):
    """Text above a point, below it, or to its left."""

    at: Point
    text: str
    side: str = "above"


Part = Line | Marks | Boxes | Note


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
    else:
        x, y = at(part.at)
        dy = {"above": -9, "below": 18}.get(part.side, 4)
        left = part.side == "left"
        yield _text(x - 6 * left, y + dy, part.text, anchor="end" if left else "middle")


def _path(points: Sequence[Point], colour: str, dash: str = "", width: float = 1.8) -> str:
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = f";stroke-dasharray:{dash}" if dash else ""
    return f'<polyline points="{drawn}" style="fill:none;stroke:var(--{colour});stroke-width:{width:g}{dashes}"/>'


_SHAPES = {
    "square": "M-4,-4H4V4H-4Z",
    "diamond": "M0,-5.5L5.5,0L0,5.5L-5.5,0Z",
    "up": "M0,-5L5,4H-5Z",
    "down": "M0,5L5,-4H-5Z",
    "cross": "M-4,-4L4,4M-4,4L4,-4",
    "circle": "M-4,0A4,4 0 1 0 4,0A4,4 0 1 0 -4,0Z",
}


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = INK, turn: int = 0) -> str:
    turned = f' transform="rotate({turn} {x:.1f} {y:.1f})"' if turn else ""
    style = f"fill:var(--{colour})"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turned} style="{style}">{_plain(text)}</text>'


def _plain(text: str) -> str:
    return escape(_CONTROLS.sub("?", text))
