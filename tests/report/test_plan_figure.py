"""The figure of a plan: drawn from the numbers alone, the same bytes each time."""

from __future__ import annotations

import random

import pytest

from valve_plugin.errors import ConfigError
from valve_plugin.report.plan import gate_plan
from valve_plugin.report.plan_figure import gate_figure
from valve_plugin.theory.estimates import Spread, population

BELIEFS = [population(Spread(0.75, 0.05))] * 6


def test_equal_numbers_give_equal_figures(tmp_path):
    plan = gate_plan(BELIEFS, 2, "0.1", (0.0,), random.Random(0).random, source="tasks as given")
    for name in ("a.svg", "b.svg"):
        gate_figure(BELIEFS, plan, str(tmp_path / name))
    first, second = ((tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second
    assert b"<svg" in first
    with pytest.raises(ConfigError, match="name a file ending in"):
        gate_figure(BELIEFS, plan, str(tmp_path / "nowhere" / "a.svg"))
