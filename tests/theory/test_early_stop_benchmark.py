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
    for order in benchmark.ORDERS:
        assert (done.used["oracle"] <= done.used[order]).all(), "no order beats the oracle"
