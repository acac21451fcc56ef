"""Figures: true sizes, shapes that tell states apart without colour, captions of what is drawn, and their files."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.report.runs import Maker
from valve_plugin.errors import ConfigError
from valve_plugin.evidence.cost import RoleCost
from valve_plugin.evidence.plan import GateTerms, Rates, plan_gate
from valve_plugin.report.build import build_run
from valve_plugin.report.figures import draw_holdout, figures, gate_figure, rolling_rates, standalone_figures
from valve_plugin.report.run import RunReport, StreamPoint
from valve_plugin.report.style import Figure, page_svg, svg, write_figure
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


@pytest.mark.usefixtures("drawn")
def test_equal_runs_give_equal_figures(small: RunReport) -> None:
    for figure in figures([small]):
        assert svg(figure) == svg(figure)
        kept = ("p", "m", "h", f"figure-{figure.name}-")  # what something refers to
        assert all(id_.startswith(kept) for id_ in re.findall(' id="([^"]*)"', page_svg(figure)))


def test_the_rate_is_taken_over_the_last_tasks() -> None:
    passed = [0] * 10 + [3] * 10
    points = [
        StreamPoint(task_id=str(n), position=n, passed=p, graded=3, version=0, rollouts=())
        for n, p in enumerate(passed, 1)
    ]
    rates = rolling_rates(points)
    assert (rates[9], rates[14], rates[19]) == (0, 0.5, 1)


def test_the_stream_draws_true_sizes_and_short_windows_apart(long: RunReport) -> None:
    rate, *_, size = _by_name(long)["stream"].draw().axes
    ends = [s.position + 0.5 for s in long.sizes]
    for line, kind in zip(size.lines, ("principles", "skills"), strict=True):
        assert list(line.get_ydata())[:-1] == [getattr(s, kind) for s in long.sizes]
        assert list(line.get_xdata()) == [*ends, max(30, ends[-1])]
        assert line.get_transform() == size.transData, "nothing moves it off its value"
    solid, dotted = rate.lines[:2]
    assert (list(solid.get_xdata()), list(dotted.get_xdata())) == (list(range(10, 31)), list(range(1, 11)))
    marks = next(line for line in rate.lines if line.get_label() == "accept")
    assert list(marks.get_xdata()) == [p.position + 0.5 for p in long.stream if p.accepted]


@pytest.mark.usefixtures("drawn")
def test_a_legend_names_what_is_drawn(small: RunReport, tmp_path: Path) -> None:
    drawn = {name: svg(figure) for name, figure in _by_name(small).items()}
    assert "reject: best it could still reach" in drawn["gates"]
    for absent in ("reject: measured", "indecisive: between", "its certified floor", "first gain"):
        assert absent not in drawn["gates"], absent
    maker = Maker(tmp_path / "b", 4, panel_kept=True)
    maker.stream(10, 5)
    other = build_run(maker.store)
    cost = svg(_by_name(replace(other, spent=other.spent[:1]), other)["cost"])
    assert ("solver" in cost, "gate" in cost) == (True, True), "a role that only the second run has is named too"


def test_what_looks_at_a_run_has_a_bar_of_its_own(small: RunReport) -> None:
    spent = tuple(RoleCost(role=role, rollouts=1, usd=0, hours=1.0) for role in ("solver", "evaluation"))
    bars = _by_name(replace(small, spent=spent))["cost"].draw().axes[0].patches
    assert [(b.get_x(), b.get_width()) for b in bars] == [(0, 1), (0, 1)], "no gap that the axis would count"
    assert len({b.get_y() for b in bars}) == 2


def _texts(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_two_readings_are_two_dots_and_a_guarantee(read: RunReport) -> None:
    axes, gain = draw_holdout([read]).axes[0], read.certificate.gain
    assert gain is not None
    assert _texts(axes) == ["40.0%", "60.0%", f"guaranteed:\n{100 * gain.value:+.1f} points"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["version 0", f"version {read.version}"]
    assert {line.get_linestyle() for line in axes.lines if line.get_marker() == "o"} == {"None"}, "two are no course"
    (area,) = axes.collections[1:]
    drawn = area.get_datalim(axes.transData)
    assert (drawn.y0, drawn.y1) == (pytest.approx(0.4 + gain.value), pytest.approx(0.6)), "a band down to the guarantee"
    below = [line for line in axes.lines if line.get_marker() == "v"]
    assert len(below) == (0.4 + gain.value < 0), "a mark where it leaves the picture"
    nothing = replace(read, certificate=replace(read.certificate, gain=replace(gain, vacuous=True)))
    assert _texts(draw_holdout([nothing]).axes[0]) == ["40.0%", "60.0%"]


def test_many_readings_have_their_ends_named_and_two_runs_their_letters(read: RunReport) -> None:
    last = read.checkpoints[-1]
    rates = (0.1, 0.2, 0.3, 0.9, 0.5, 0.4, 0.6)
    many = replace(read, checkpoints=tuple(replace(last, version=n, low=r, high=r) for n, r in enumerate(rates)))
    assert _texts(draw_holdout([many]).axes[0])[:2] == ["10.0%", "60.0%"]
    both = [label.get_text() for label in draw_holdout([read, read]).axes[0].get_xticklabels()]
    assert both == [f"{letter} version {v}" for letter in "AB" for v in (0, read.version)]


def test_every_figure_says_what_it_shows(read: RunReport, tmp_path: Path) -> None:
    for figure in standalone_figures([read]):
        for told in (svg(figure), page_svg(figure)):
            root = ET.fromstring(told)
            title, desc = root[0], root[1]
            assert (title.tag, desc.tag, root.get("role")) == (f"{SVG}title", f"{SVG}desc", "img")
            assert str(root.get("aria-labelledby")).split() == [title.get("id"), desc.get("id")]
            assert title.text == f"{figure.title}: {figure.of}"
            assert desc.text == f"{figure.caption} {figure.message}"
            assert figure.message
    hostile = Figure("x", "a</title><script>\x00\x1b", 'b</desc>&"\ud800', figures([read])[0].draw)
    root = ET.fromstring(svg(hostile))
    assert (root[0].text, root[1].text) == ("a</title><script>??", 'b</desc>&"?')
    for _ in range(2):  # it knows its own figure again
        write_figure(standalone_figures([read])[0], str(tmp_path / "x.svg"))
    odd = replace(read, repo="a/b</svg>\u202e$x$")
    assert {f.of for f in standalone_figures([odd])} == {f"a/b?/svg???x?, version {read.version}"}


def test_the_figure_of_a_plan(tmp_path: Path) -> None:
    plan = plan_gate(Rates(BELIEFS, "tasks as given"), GateTerms(rollouts=2, rho="0.1"), effects=(0.0,))
    for name in ("a.svg", "b.svg"):
        write_figure(gate_figure(BELIEFS, plan), str(tmp_path / name))
    first, second = ((tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second
    said = " ".join("".join(text.itertext()) for text in ET.fromstring(first).iter(f"{SVG}text"))
    for what in ("What this gate accepts", "6 tasks x 2 rollouts, margin 0.1", "with confirm"):
        assert what in said, "title, caption and legend are text in the figure"
    lines = set(re.findall(r"stroke-dasharray: [^;\"]+", first.decode()))
    assert len(lines) >= 2, "lines differ without colour"
    for name, told in (("nowhere/a.svg", "in a folder that exists"), ("a.bmp", "ending in .svg")):
        with pytest.raises(ConfigError, match=told):
            write_figure(gate_figure(BELIEFS, plan), str(tmp_path / name))
