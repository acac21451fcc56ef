"""The holdout's figure: dots and numbers for readings, no course that was not measured, and what is guaranteed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.report.runs import Maker
from valve_plugin.cli.history import words
from valve_plugin.report.facts import run_facts
from valve_plugin.report.holdout_figure import holdout
from valve_plugin.report.run import Run


@pytest.fixture
def run(tmp_path: Path, data_dir: Path) -> Run:
    maker = Maker(tmp_path / "bank", 20, seed=3)
    maker.stream(12, 2)
    maker.evaluate(0, 12)
    maker.evaluate(maker.store.bank.version, 18)
    return run_facts(maker.store, words)


def _axes(*runs: Run) -> Any:
    return holdout(runs).axes[0]


def _said(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_two_readings_are_two_dots_and_a_guarantee(run: Run) -> None:
    axes, gain = _axes(run), run.certificate.gain
    assert gain is not None
    assert _said(axes) == ["40.0%", "60.0%", f"guaranteed:\n{100 * gain.value:+.1f} points"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["version 0", f"version {run.version}"]
    assert {line.get_linestyle() for line in axes.lines if line.get_marker() == "o"} == {"None"}, "two are no course"
    (area,) = axes.collections[1:]
    drawn = area.get_datalim(axes.transData)
    assert (drawn.y0, drawn.y1) == (pytest.approx(0.4 + gain.value), pytest.approx(0.6)), "a band down to the guarantee"
    below = [line for line in axes.lines if line.get_marker() == "v"]
    assert len(below) == (0.4 + gain.value < 0), "a mark where it leaves the picture"
    nothing = replace(run, certificate=replace(run.certificate, gain=replace(gain, vacuous=True)))
    assert _said(_axes(nothing)) == ["40.0%", "60.0%"]


def test_many_readings_have_their_ends_named_and_two_runs_their_letters(run: Run) -> None:
    last = run.checkpoints[-1]
    rates = (0.1, 0.2, 0.3, 0.9, 0.5, 0.4, 0.6)
    many = replace(run, checkpoints=tuple(replace(last, version=n, low=r, high=r) for n, r in enumerate(rates)))
    axes = _axes(many)
    assert _said(axes)[:3] == ["10.0%", "90.0%", "60.0%"]
    assert axes.get_legend().get_texts()[0].get_text() == "below its peak"
    both = [label.get_text() for label in _axes(run, run).get_xticklabels()]
    assert both == [f"{letter} version {v}" for letter in "AB" for v in (0, run.version)]
