"""A small version of the campaign in benchmarks/kills.py."""

from __future__ import annotations

import random

import pytest

from benchmarks import kills


@pytest.mark.heavy
def test_killed_runs_end_as_uninterrupted_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    runs = kills.Runs(tmp_path, real=False)
    expected, entered = runs.whole(tmp_path / "whole", "--workers", "7")
    assert {seen.phase for seen in entered} >= set(kills.SHARES), "every phase that is aimed at comes"
    found = kills.campaign(runs, tmp_path, expected, entered, 8, random.Random(0))
    assert (len(found.kills), found.different, found.unsound) == (8, 0, 0)
    assert len({kill.phase for kill in found.kills}) >= 3
