"""Small versions of the campaigns in benchmarks/: they still run, and they still hold."""

from __future__ import annotations

import random

import pytest

from benchmarks import demo_seeds, kills
from valve_plugin.lab import demo
from valve_plugin.tasks.task_set import load


@pytest.mark.heavy
def test_killed_runs_end_as_uninterrupted_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    runs = kills.Runs(tmp_path, real=False)
    expected, entered = runs.whole(tmp_path / "whole", "--workers", "7")
    assert {seen.phase for seen in entered} >= set(kills.SHARES), "every phase that is aimed at comes"
    found = kills.campaign(runs, tmp_path, expected, entered, 8, random.Random(0))
    assert (len(found.kills), found.different, found.unsound) == (8, 0, 0)
    assert len({kill.phase for kill in found.kills}) >= 3


@pytest.mark.heavy
def test_the_short_demo_judges_with_the_gate_and_takes_without(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    seen = demo_seeds.look(load(demo.example(demo.EXAMPLE)), demo.FAST, demo.FAST_TASKS, demo.SEED)
    assert seen.accepts, "seed 0 shows both verdicts"
    assert seen.rejects
    assert seen.taken
    assert 0 < seen.gated < 1
