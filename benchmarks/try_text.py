"""SIMULATION of `valve try`: how often it is wrong when one looks after every pair, and what stopping early saves.

    python benchmarks/try_text.py [--runs 10000]

Rows of the first table have no effect on average over their tasks, so each "helps" or "harms" is false; the last of
them draws new tasks for each run, and looks at the interval for tasks like these. Each run is looked at after every
pair. The second table has real effects. The last line is the figure.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from valve_plugin.theory.confidence_sequence import BETS, Answer, detectable

Rates: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]
Found: TypeAlias = "tuple[Counter[Answer], float]"
Rng = np.random.Generator
Make: TypeAlias = Callable[[Rng], tuple[Rates, Rates]]
WORDS: tuple[Answer, ...] = ("helps", "harms", "no_difference", "unclear")
PAIRS, TASKS, NEGLIGIBLE, ERROR = 300, 40, 0.1, 0.05


def same(rates: Rates) -> tuple[Rates, Rates]:
    """Return a text that does nothing."""
    return rates, rates


def lumpy(tasks: int, moved: int) -> tuple[Rates, Rates]:
    """Return tasks whose rollouts are all alike: the text fixes some for good and breaks as many."""
    without = np.array([0.0] * moved + [1.0] * moved + [float(n % 2) for n in range(tasks - 2 * moved)])
    with_text = without.copy()
    with_text[:moved], with_text[moved : 2 * moved] = 1.0, 0.0
    return without, with_text


def one_against_many(rng: Rng) -> tuple[Rates, Rates]:
    """Return ten tasks: one gains 90 points, the others lose ten each."""
    return np.array([0.05] + [0.6] * 9), np.array([0.95] + [0.5] * 9)


def other_tasks(rng: Rng) -> tuple[Rates, Rates]:
    """Return twelve tasks of a population in which the text fixes as much as it breaks, for good."""
    without = rng.integers(0, 2, 12).astype(float)
    moved = rng.random(12) < 0.6
    return without, np.where(moved, 1 - without, without)


NOTHING: dict[str, Make] = {
    "all tasks alike": lambda rng: same(np.full(TASKS, 0.7)),
    "all tasks a coin": lambda rng: same(np.full(TASKS, 0.5)),
    "most tasks 0 or 1": lambda rng: same(rng.beta(0.3, 0.2, TASKS)),
    "rollouts all alike": lambda rng: lumpy(TASKS, 12),
    "six lumpy tasks": lambda rng: lumpy(6, 2),
    "one against many": one_against_many,
    "tasks like these": other_tasks,
}
EFFECTS = (-0.5, -0.3, -0.2, -0.1, 0.0, 0.1, 0.2, 0.3, 0.5)


def log_capital(better: Counts, worse: Counts, same: Counts, mean: float) -> Rates:
    """Return `confidence_sequence.log_capital` of arrays of counts."""
    factors = [
        (math.log1p(b * (1 - mean) / (1 + mean)), math.log1p(-b), math.log1p(-b * mean / (1 + mean))) for b in BETS
    ]
    return np.logaddexp.reduce([better * u + worse * d + same * s for u, d, s in factors], 0) - math.log(len(BETS))


def answers(better: Counts, worse: Counts, same: Counts) -> Counts:
    """Return `confidence_sequence.answer` of arrays of counts, as places in WORDS."""
    line = math.log(2 / ERROR)
    up, down = (log_capital(*side, same, 0.0) >= line for side in ((better, worse), (worse, better)))
    above, below = (log_capital(*side, same, -NEGLIGIBLE) >= line for side in ((better, worse), (worse, better)))
    return np.select([up, down, above & below], [0, 1, 2], 3)


def trials(
    rng: Rng, make: Callable[[Rng], tuple[Rates, Rates]], pairs: int, runs: int, *, first_only: bool = False
) -> Found:
    """Return the first answer of each trial, looked at after every pair, and the number of its pairs.

    Args:
        first_only: count only the first pair of each task.
    """
    differences = np.zeros((runs, pairs), dtype=np.int64)
    counted = np.ones((runs, pairs), dtype=np.int64)
    for row in range(runs):
        without, with_text = make(rng)
        tasks = rng.integers(0, len(without), pairs)
        differences[row] = (rng.random(pairs) < with_text[tasks]).astype(int) - (rng.random(pairs) < without[tasks])
        if first_only:
            counted[row] = 0
            counted[row, np.unique(tasks, return_index=True)[1]] = 1
    better, worse, same = (((differences == d) * counted).cumsum(axis=1) for d in (1, -1, 0))
    found = answers(better, worse, same)
    clear = found < WORDS.index("unclear")
    number = np.where(clear.any(axis=1), clear.argmax(axis=1), pairs - 1)
    return Counter(WORDS[code] for code in found[np.arange(runs), number]), float(number.mean() + 1)


def false_answers(rng: Rng, runs: int) -> dict[str, float]:
    """Return, for each row, the share of runs that said "helps" or "harms"."""
    wrong = {}
    for name, make in NOTHING.items():
        found, _ = trials(rng, make, PAIRS, runs, first_only=name == "tasks like these")
        wrong[name] = (found["helps"] + found["harms"]) / runs
        print(f"{name:<20} {found['helps'] / runs:>8.4f} {found['harms'] / runs:>8.4f} {wrong[name]:>8.4f}")
    return wrong


def with_effect(effect: float) -> Make:
    """Return a maker of tasks whose mean rate a text changes by `effect`."""

    def make(rng: Rng) -> tuple[Rates, Rates]:
        base = np.clip(rng.beta(2.0, 1.4, TASKS), 0.02, 0.98)
        if effect > 0:
            return base, base + effect / (1 - base.mean()) * (1 - base)
        return base, base * (1 + effect / base.mean())

    return make


def savings(rng: Rng, runs: int) -> dict[float, float]:
    """Return, for each effect, the share of the planned rollouts that ran; the plan is three pairs a task."""
    shares, pairs = {}, 3 * TASKS
    for effect in EFFECTS:
        found, mean = trials(rng, with_effect(effect), pairs, runs)
        shares[effect] = mean / pairs
        said = "".join(f"{found[word] / runs:>10.3f}" for word in WORDS)
        print(f"{100 * effect:>+6.0f} points {said} {shares[effect]:>10.2f}")
    return shares


def main() -> None:
    """Print both tables; exit with 1 where more answers are false than may be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    runs = parser.parse_args().runs
    rng = np.random.default_rng(0)
    print(f"SIMULATION  no effect on average, {PAIRS} looks, {runs:,} runs a row\n")
    print(f"{'':<20} {'helps':>8} {'harms':>8} {'false':>8}")
    wrong = false_answers(rng, runs)
    least = detectable(3 * TASKS, error=ERROR)
    print(
        f"\nreal effects, at most {3 * TASKS} pairs on {TASKS} tasks ({100 * (least or 1):.0f} points are told apart)\n"
    )
    print(f"{'':>13} {'helps':>9} {'harms':>9} {'no diff.':>9} {'unclear':>9} {'rollouts':>10}")
    shares = savings(rng, runs)
    worst = max(wrong.values())
    print(
        f"\n{runs:,} runs a row: at most {100 * worst:.2f} % said helps or harms where the text does neither "
        f"({100 * ERROR:g} % may); effects of 50, 30 and 20 points took "
        f"{', '.join(f'{shares[e]:.2f}' for e in (0.5, 0.3, 0.2))} of the planned rollouts"
    )
    sys.exit(worst > ERROR + 3 * (ERROR / runs) ** 0.5)


if __name__ == "__main__":
    main()
