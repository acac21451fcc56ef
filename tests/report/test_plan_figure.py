"""The figure of a plan: drawn from the numbers alone, the same bytes each time."""

from __future__ import annotations

import random
import re
from xml.etree import ElementTree

import pytest

from valve_plugin.errors import ConfigError
from valve_plugin.report.plan import gate_plan
from valve_plugin.report.plan_figure import gate_figure
from valve_plugin.report.style import write
from valve_plugin.theory.estimates import Spread, population

BELIEFS = [population(Spread(0.75, 0.05))] * 6


def test_equal_numbers_give_equal_figures(tmp_path):
    plan = gate_plan(BELIEFS, 2, "0.1", (0.0,), random.Random(0).random, source="tasks as given")
    for name in ("a.svg", "b.svg"):
        write(gate_figure(BELIEFS, plan), str(tmp_path / name))
    first, second = ((tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second
    assert b"<svg" in first
    drawn = ElementTree.fromstring(first)
    said = " ".join("".join(text.itertext()) for text in drawn.iter("{http://www.w3.org/2000/svg}text"))
    for what in (
        "What this gate accepts",
        "Computed, not measured",
        "6 tasks x 2 rollouts, margin 0.1",
        "with confirm",
    ):
        assert what in said, "title, caption and legend are text in the figure"
    lines = set(re.findall(r"stroke-dasharray: [^;\"]+", first.decode()))
    assert len(lines) >= 2, "lines differ without colour"


@pytest.mark.parametrize(("name", "told"), [("nowhere/a.svg", "in a folder that exists"), ("a.bmp", "ending in .svg")])
def test_a_file_that_cannot_be_is_named(tmp_path, name, told):
    plan = gate_plan(BELIEFS, 2, "0.1", (0.0,), random.Random(0).random, source="tasks as given")
    with pytest.raises(ConfigError, match=told):
        write(gate_figure(BELIEFS, plan), str(tmp_path / name))
