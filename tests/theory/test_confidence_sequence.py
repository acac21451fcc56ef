"""The interval of a paired difference is valid at every look: exactly where that can be computed, else SIMULATION."""

from __future__ import annotations

import importlib.util
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from valve_plugin.theory import confidence_sequence as sequence
from valve_plugin.theory.confidence_sequence import (
    PairCounts,
    answer,
    chance_of_helps,
    detectable,
    interval,
    pairs_for_no_difference,
)

COUNTS = st.builds(PairCounts, st.integers(0, 200), st.integers(0, 200), st.integers(0, 400))


@given(COUNTS, st.floats(0.001, 0.5))
@example(PairCounts(), 0.05)
@example(PairCounts(7, 0, 0), 0.05)
def test_the_interval_holds_what_was_seen_and_mirrors(pairs, error):
    low, high = interval(pairs, error)
    assert -1 <= low <= pairs.difference <= high <= 1
    mirrored = interval(PairCounts(pairs.worse, pairs.better, pairs.same), error)
    assert mirrored == pytest.approx((-high, -low), abs=1e-5)
    wider = interval(pairs, error / 2)
    assert wider.low <= low
    assert wider.high >= high


@given(COUNTS, st.floats(0.01, 1))
def test_an_answer_says_what_the_interval_says(pairs, negligible):
    low, high = interval(pairs)
    found = answer(pairs, negligible)
    if found != "unclear":
        assert {"helps": low, "harms": -high, "no_difference": min(low, -high) + negligible}[found] > -1e-5
    else:
        assert low <= 0 <= high
        assert max(-low, high) > negligible - 1e-5


@given(st.integers(1, 80), st.floats(0.01, 0.5), st.sampled_from([0.05, 0.2]))
def test_a_text_that_does_nothing_seldom_helps_at_any_look(pairs, half, error):
    """Exact, over all ways in which the pairs can come out."""
    assert chance_of_helps(pairs, half, half, error) <= error / 2


@pytest.mark.parametrize("chances", [(0.5, 0.3), (0.2, 0.0), (0.7, 0.3), (0.0, 0.4), (0.0, 0.0)])
def test_the_chance_is_that_of_all_sequences(chances):
    better, worse = chances
    each = {1: better, -1: worse, 0: 1 - better - worse}
    wanted = 0.0
    for differences in itertools.product(each, repeat=8):
        counts = itertools.accumulate(differences, PairCounts.plus, initial=PairCounts())
        if any(answer(pairs, 1, 0.5) == "helps" for pairs in counts):
            wanted += math.prod(each[d] for d in differences)
    assert chance_of_helps(8, better, worse, 0.5) == pytest.approx(wanted)


def test_more_pairs_tell_smaller_differences_apart():
    told = [detectable(pairs) for pairs in (2, 20, 120, 500)]
    assert told[0] is None
    assert told[1:] == sorted(told[1:], reverse=True)
    worse = 0.125 * (1 - told[2])
    assert chance_of_helps(120, worse + told[2], worse) >= sequence.POWER
    assert chance_of_helps(120, worse + told[2] - 0.00875, worse + 0.00125) < sequence.POWER


@given(COUNTS)
def test_so_many_pairs_are_needed(pairs):
    needed = sequence.pairs_needed(pairs, 0.1)
    if needed is None or answer(pairs, 0.1) != "unclear":
        return
    scale = needed / pairs.total
    assert needed >= pairs.total
    assert answer(PairCounts(*(count * scale for count in pairs)), 0.1) != "unclear"


def test_wrong_numbers_are_refused():
    assert sequence.pairs_needed(PairCounts(), 0.1) is None
    for pairs, error in ((PairCounts(-1), 0.05), (PairCounts(1), 0.0), (PairCounts(1), 1.0)):
        with pytest.raises(ValueError, match="expected an error in"):
            interval(pairs, error)


@pytest.fixture(scope="module")
def benchmark():
    path = Path(__file__).parents[2] / "benchmarks" / "try_text.py"
    spec = importlib.util.spec_from_file_location("try_text", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_benchmark_answers_as_the_product(benchmark):
    counts = np.random.default_rng(2).integers(0, [[60], [60], [200]], (3, 400))
    found = [benchmark.WORDS[code] for code in benchmark.answers(*counts)]
    assert found == [answer(PairCounts(*map(int, row)), benchmark.NEGLIGIBLE, benchmark.ERROR) for row in counts.T]
    assert len(set(found)) == 4


def test_peeking_seldom_finds_what_is_not_there(benchmark):
    """The benchmark's rows with fewer runs: tasks alike or not, rollouts of a task all alike, few lumpy tasks."""
    wrong = benchmark.false_answers(np.random.default_rng(1), 1000)
    assert set(wrong) == set(benchmark.NOTHING)
    assert max(wrong.values()) <= 0.05


@pytest.mark.parametrize(("negligible", "differing"), [(0.2, 0.25), (0.3, 0.5), (0.1, 0.05)])
def test_so_many_pairs_find_that_there_is_no_difference(negligible, differing):
    """SIMULATION, with a fixed seed."""
    pairs, found = pairs_for_no_difference(negligible, differing), 0
    rng = np.random.default_rng(1)
    for _ in range(200):
        draws = rng.choice([1, -1, 0], size=pairs, p=[differing / 2, differing / 2, 1 - differing])
        looks = itertools.accumulate(draws.tolist(), PairCounts.plus, initial=PairCounts())
        found += (
            next((said for counts in looks if (said := answer(counts, negligible)) != "unclear"), "") == "no_difference"
        )
    assert 0.75 <= found / 200 <= 0.95
    assert pairs_for_no_difference(negligible / 2, differing) > pairs
    assert pairs_for_no_difference(1e-9, differing) is None


@given(
    st.lists(st.floats(0.01, 1), min_size=4, max_size=4), st.integers(1, 8), st.floats(0.1, 6)
)  # fmt: skip
def test_a_floor_is_seldom_above_the_mean(weights, tasks, log_term):
    """Exact, over all ways in which the differences of tasks, thirds among them, can come out."""
    values = (-1.0, -1 / 3, 2 / 3, 1.0)
    chances = [w / sum(weights) for w in weights]
    mean = sum(v * c for v, c in zip(values, chances, strict=True))
    wrong = 0.0
    for counts in itertools.product(range(tasks + 1), repeat=3):
        if (last := tasks - sum(counts)) >= 0:
            seen = [v for v, n in zip(values, (*counts, last), strict=True) for _ in range(n)]
            if sequence.mean_floor(seen, log_term) > mean:
                ways = math.factorial(tasks) / math.prod(math.factorial(n) for n in (*counts, last))
                wrong += ways * math.prod(c**n for c, n in zip(chances, (*counts, last), strict=True))
    assert wrong <= math.exp(-log_term) + 1e-9


def test_a_floor_needs_no_variance_and_uses_how_little_there_is():
    steady, noisy = [0.1] * 50, [0.6, -0.4] * 25
    assert -1 < sequence.mean_floor(noisy, 3.0) < 0 < sequence.mean_floor(steady, 3.0) < 0.1
    assert sequence.mean_floor([], 3.0) == -1
    assert sequence.mean_floor([1 / 3] * 2, 8.0) < -0.9, "too few say nothing"
