"""The benchmark's vectorised twins are the product's functions."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "early_stop.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("early_stop", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("effect", [0.0, -0.1, 0.1])
def test_no_verdict_differs(benchmark, seed, effect):
    rng = np.random.default_rng(seed)
    done = benchmark.simulate(rng, rng.uniform(0.3, 0.98), effect, runs=4, gates=12)
    assert done.mismatches == 0
    assert 0 < done.used["true"].mean() < 150


def test_a_twin_that_is_wrong_is_noticed(benchmark, monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setattr(benchmark, "ours", lambda passed, known, current: np.argsort(-passed, axis=1))
    assert benchmark.simulate(rng, 0.75, 0.0, runs=2, gates=5).mismatches > 0
    right = benchmark.prefixes
    monkeypatch.setattr(benchmark, "prefixes", lambda *a: np.maximum(right(*a) - 1, 0))
    assert benchmark.simulate(rng, 0.75, 0.0, runs=2, gates=5).mismatches > 0
