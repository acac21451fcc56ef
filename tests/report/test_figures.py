"""Figures: true sizes, shapes that tell states apart without colour, captions of what is drawn, and their files."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.report.runs import Maker
from valve_plugin.report.build import build_run
from valve_plugin.report.figures import Boxes, Chart, Figure, Line, Marks, Note, figures, holdout, page_svg, ticks
from valve_plugin.report.run import RunReport
from valve_plugin.theory.estimates import RateSpread
from valve_plugin.theory.power import population

SVG = "{http://www.w3.org/2000/svg}"
BELIEFS = [population(RateSpread(0.75, 0.05))] * 6


def _by_name(*runs: RunReport) -> dict[str, Figure]:
    return {f.name: f for f in figures(runs)}


@pytest.fixture
def read(grown: Maker) -> RunReport:
    """Versions 0 and the last were read on the holdout: 40 and 60 %."""
    grown.evaluate(0, 12)
    grown.evaluate(grown.store.bank.version, 18)
    return build_run(grown.store)


def test_equal_runs_give_equal_figures(small: RunReport) -> None:
    for figure in figures([small]):
        assert page_svg(figure) == page_svg(figure) != page_svg(figure, narrow=True)
        ids = re.findall(' id="([^"]*)"', page_svg(figure) + page_svg(figure, narrow=True))
        assert len(ids) == len(set(ids)) == 4, "one page has both"


def test_the_stream_draws_true_sizes_and_short_windows_apart(long: RunReport) -> None:
    rate, size = _by_name(long)["stream"].charts
    for line, kind in zip(size.parts, ("principles", "skills"), strict=True):
        assert isinstance(line, Line)
        corners = [(s.position + 0.5, getattr(s, kind)) for s in long.sizes]
        assert set(corners) <= set(line.points)
        assert line.points[-1] == (30, corners[-1][1])
        assert all(x == to or y == end for (x, y), (to, end) in pairwise(line.points)), "a bank grows in steps"
    solid, dotted, marks = rate.parts
    assert isinstance(solid, Line)
    assert isinstance(dotted, Line)
    assert isinstance(marks, Marks)
    assert ([x for x, _ in solid.points], [x for x, _ in dotted.points]) == (list(range(10, 31)), list(range(1, 11)))
    assert [x for x, _ in marks.points] == [p.position + 0.5 for p in long.stream if p.accepted]


def _texts(chart: Chart) -> list[str]:
    return [part.text for part in chart.parts if isinstance(part, Note)]


def test_two_readings_are_two_dots_and_a_guarantee(read: RunReport) -> None:
    chart, gain = holdout([read]), read.certificate.gain
    assert gain is not None
    assert set(_texts(chart)) == {"40.0%", "60.0%", f"guaranteed: {100 * gain.value:+.1f} points"}
    assert list((chart.x_ticks or {}).values()) == ["version 0", f"version {read.version}"]
    dots = [(0.0, 0.4), (1.0, 0.6)]
    assert [p.points for p in chart.parts if isinstance(p, Marks) and p.shape == "circle"] == [dots]
    assert dots not in [p.points for p in chart.parts if isinstance(p, Line)], "two are no course"
    (area,) = (p for p in chart.parts if isinstance(p, Boxes))
    ((_, low), (_, high)) = area.corners[0]
    assert (low, high) == (pytest.approx(0.4 + gain.value), pytest.approx(0.6)), "a band down to the guarantee"
    below = [p for p in chart.parts if isinstance(p, Marks) and p.shape == "down"]
    assert len(below) == (0.4 + gain.value < 0), "a mark where it leaves the picture"
    edges = [p for p in chart.parts if isinstance(p, Line) and not p.dash]
    assert len(edges) != len(below), "and no line there, as if it were the guarantee"
    nothing = replace(read, certificate=replace(read.certificate, gain=replace(gain, vacuous=True)))
    assert _texts(holdout([nothing])) == ["40.0%", "60.0%"]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(1, 20))
def test_ticks_are_few_and_inside(low: float, width: float, most: int) -> None:
    found = list(ticks(low, low + width, most))
    assert len(found) <= most + 1
    slack = 1e-6 * (abs(low) + width)
    assert all(low - slack <= value <= low + width + slack for value in found)


@given(st.floats(1e-3, 1e6), st.integers(2, 20), st.booleans())
def test_an_axis_from_zero_has_more_than_one_tick(high: float, most: int, whole: bool) -> None:
    found = ticks(0, high, most, whole=whole)
    assert len(found) > 1 or (whole and high < 1)
    assert not whole or all(value == round(value) for value in found), "of what is counted there is no half"


@given(st.floats(1e-3, 1e4), st.integers(1, 20), st.booleans())
def test_a_label_says_where_its_tick_stands(high: float, most: int, whole: bool) -> None:
    found = ticks(0, high, most, whole=whole)
    assert all(float(label) == pytest.approx(value, rel=1e-5, abs=1e-9) for value, label in found.items())


def test_a_floor_below_the_picture_is_told(long: RunReport) -> None:
    accept = replace(next(g for g in long.gates if g.decision == "accept"), floor=-0.824, vacuous=False)
    (gain, _) = _by_name(replace(long, gates=(accept,)))["gates"].charts
    assert gain.y[0] > -82.4
    assert "-82.4" in _texts(gain)
    (down,) = (p for p in gain.parts if isinstance(p, Marks) and p.shape == "down")
    assert list(down.points) == [(accept.number, gain.y[0])]
    assert not [p for p in gain.parts if isinstance(p, Line) and p.label == "its certified floor"]


@given(st.floats(-1e6, 1e6), st.floats(0.1, 1e3))
def test_what_lies_outside_is_drawn_at_the_end(value: float, height: float) -> None:
    chart = Chart([Line([(0, value), (1, value)])], (0, 1), (0, height))
    drawn = page_svg(Figure("x", "t", "c", [chart]))
    size = float(re.findall(r'viewBox="0 0 \d+ (\d+)"', drawn)[0])
    places = [float(y) for _, y in re.findall(r"([\d.-]+),([\d.-]+)", " ".join(re.findall('points="([^"]*)"', drawn)))]
    assert all(0 <= y <= size for y in places)


def test_every_figure_says_what_it_shows(read: RunReport, tmp_path: Path) -> None:
    for figure in figures([read]):
        root = ET.fromstring(page_svg(figure))
        title, desc = root[0], root[1]
        assert (title.tag, desc.tag, root.get("role")) == (f"{SVG}title", f"{SVG}desc", "img")
        assert str(root.get("aria-labelledby")).split() == [title.get("id"), desc.get("id")]
        assert title.text == figure.title
        assert desc.text == f"{figure.caption} {figure.message}"
        assert figure.message
    hostile = Figure("x", "a</title><script>\x00\x1b", 'b</desc>&"\ud800', figures([read])[0].charts)
    root = ET.fromstring(page_svg(hostile))
    assert (root[0].text, root[1].text) == ("a</title><script>??", 'b</desc>&"?')
