"""Certificates as bands, and what figures say to who cannot see them."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.report.runs import Maker
from valve_plugin.cli.history import words
from valve_plugin.report.bands import bands, caption
from valve_plugin.report.bounds import of_gain
from valve_plugin.report.facts import run_facts
from valve_plugin.report.figures import figures, standing
from valve_plugin.report.run import Run
from valve_plugin.report.style import Figure, inline, svg, write

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def run(tmp_path: Path, data_dir: Path) -> Run:
    maker = Maker(tmp_path / "bank", 4, seed=3)
    maker.stream(12, 3)
    version = maker.store.bank.version
    assert version
    maker.evaluate(0, 3)
    maker.evaluate(version, 24)
    return run_facts(maker.store, words)


def test_a_certificate_is_a_band_while_its_version_is_in_use(run: Run) -> None:
    moves = tuple(replace(m, vacuous=False, floor=-0.05, loss=0.05, panel_gain=0.25) for m in run.certificate.moves)
    speaking = replace(run, certificate=replace(run.certificate, moves=moves, gain=of_gain(0.7, 1000, 0.05, 0.02)))
    found = bands(speaking)
    accepts, holdout = [b for b in found if not b.holdout], [b for b in found if b.holdout]
    assert [(b.guaranteed, b.measured) for b in accepts] == [(-5, 25)] * len(moves)
    assert [b.left for b in accepts] == [size.position + 0.5 for size in run.sizes[1:]]
    assert [b.right for b in accepts[:-1]] == [b.left for b in accepts[1:]], "until the next came in"
    assert all(b.left < b.right for b in found)
    assert len(holdout) == 1
    assert 0 < holdout[0].guaranteed < holdout[0].measured
    assert "on the panel; hatched, of the last version over version 0, on the holdout." in caption([speaking])
    (stream,) = [f for f in figures([speaking]) if f.name == "stream"]
    assert stream.caption.endswith(caption([speaking]))
    gain = stream.draw().axes[1]
    assert gain.get_ylabel() == "gain, points"
    assert len(gain.collections) == len(found) + 1 + 2, "each once, the holdout's hatched, and the legend's two"


def test_certificates_that_say_nothing_have_no_band(run: Run) -> None:
    moves = tuple(replace(m, vacuous=True) for m in run.certificate.moves)
    silent = replace(run, certificate=replace(run.certificate, moves=moves, gain=None))
    assert bands(silent) == []
    assert caption([silent]) == " No certificate says anything: the tasks are too few."
    (stream,) = [f for f in figures([silent]) if f.name == "stream"]
    assert len(stream.draw().axes) == 2
    assert caption([replace(silent, certificate=replace(silent.certificate, moves=()))]) == ""


def test_every_figure_says_what_it_shows(run: Run, tmp_path: Path) -> None:
    for figure in standing([run]):
        for told in (svg(figure), inline(figure)):
            root = ET.fromstring(told)
            title, desc = root[0], root[1]
            assert (title.tag, desc.tag, root.get("role")) == (f"{SVG}title", f"{SVG}desc", "img")
            assert str(root.get("aria-labelledby")).split() == [title.get("id"), desc.get("id")]
            assert title.text == f"{figure.title}: {figure.of}"
            assert desc.text == f"{figure.caption} {figure.message}"
            assert figure.message
    messages = {f.name: f.message for f in figures([run])}
    assert messages["holdout"] == f"version 0: 10.0%, version {run.version}: 80.0%."
    assert messages["stream"].startswith("The rate ends at ")
    assert messages["gates"].startswith(f"Of {len(run.gates)} gates ")
    hostile = Figure("x", "a</title><script>\x00\x1b", 'b</desc>&"\ud800', figures([run])[0].draw)
    root = ET.fromstring(svg(hostile))
    assert (root[0].text, root[1].text) == ("a</title><script>??", 'b</desc>&"?')
    for _ in range(2):  # it knows its own figure again
        write(standing([run])[0], str(tmp_path / "x.svg"))
    assert ET.parse(tmp_path / "x.svg").getroot()[0].text == f"Resolved rate over the stream: {standing([run])[0].of}"
