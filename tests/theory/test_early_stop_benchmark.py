"""The benchmark's vectorised twins are the product's functions."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from valve_plugin.theory import acceptance

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


def test_the_oracle_is_what_the_worst_first_order_of_single_rollouts_takes(benchmark):
    """Failures first, then the product's own rule; the current bank passed `passed` of 150."""
    for passed, failures in ((149, 150), (120, 40), (100, 47), (100, 48), (100, 50), (90, 20)):
        current = ["resolved"] * passed + ["unresolved"] * (150 - passed)
        worst_first = ["unresolved"] * failures + ["resolved"] * (150 - failures)
        accept = acceptance.decide(current, worst_first, benchmark.NEEDED) == "accept"
        spare = np.array([150 - benchmark.NEEDED - passed])
        length = acceptance.decisive_prefix(current, worst_first, benchmark.NEEDED)
        assert benchmark.cheapest(spare, np.array([accept])) == [length]


@pytest.mark.parametrize(("full", "code"), [(10, 1), (1000, 0)])
def test_an_order_that_is_too_dear_fails_at_full_size(benchmark, monkeypatch, capsys, full, code):
    monkeypatch.setattr(benchmark, "FULL", full)
    monkeypatch.setattr(benchmark, "AT_MOST", {"4-6": 0.5, "20-": 9.0})
    monkeypatch.setattr("sys.argv", ["early_stop.py", "--runs", "2", "--gates", "20"])
    with pytest.raises(SystemExit) as ended:
        benchmark.main()
    assert ended.value.code == code
    assert ("too many rollouts at gates 4-6" in capsys.readouterr().out) == bool(code)


def test_a_twin_that_is_wrong_is_noticed(benchmark, monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setattr(benchmark, "ours", lambda passed, known, current: np.argsort(-passed, axis=1))
    assert benchmark.simulate(rng, 0.75, 0.0, runs=2, gates=5).mismatches > 0
    right = benchmark.prefixes
    monkeypatch.setattr(benchmark, "prefixes", lambda *a: np.maximum(right(*a) - 1, 0))
    assert benchmark.simulate(rng, 0.75, 0.0, runs=2, gates=5).mismatches > 0
