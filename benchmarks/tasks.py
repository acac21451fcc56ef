"""Seconds per verified task, as a ratio to running the whole suite for every candidate.

    pip install 'valve-plugin[smith]'
    python benchmarks/tasks.py [SOURCE] [--n 10]

Both count the same candidates, those that `valve tasks generate` takes until it has enough. Plainly, each costs one run
of the whole suite, and nothing is known yet of tests that vary; ours runs it twice for what it keeps. What is saved
comes from the watched run and from looking at the reaching test files first. The last lines are the figures.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from valve_plugin.config import Settings
from valve_plugin.rollouts.sandbox import choose
from valve_plugin.tasks import make, smith
from valve_plugin.tasks.define import read_source
from valve_plugin.tasks.generate import Tried, skip, stable_suite
from valve_plugin.tasks.project import examine

COMMAND = "benchmarks/tasks.py"


def main() -> None:
    """Survey, generate, time plain runs; print seconds a task and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", default="pypi:boltons==24.1.0")
    parser.add_argument("--n", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    files, sandbox = read_source(options.source), choose(Settings())
    roots = examine({path: content for path, _, content in files}).test_roots
    with make.unpacked(files) as tree:
        found = smith.spread(smith.candidates(tree, lambda path: skip(path, roots), options.seed), options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        definition = make.define_in(out, "bench", files, COMMAND, python="", requirements=[], say=print)
        prepared, ground = make.survey(out, definition, COMMAND, sandbox, print)
        tried: list[Tried] = []
        started = time.perf_counter()
        made = make.try_all(out, prepared, ground, found, sandbox, wanted=options.n, workers=1, told=tried.append)
        spent = time.perf_counter() - started
        plain_runs = []
        for _ in range(3):
            started = time.perf_counter()
            stable_suite(prepared, sandbox)
            plain_runs.append((time.perf_counter() - started) / 2)
    plain = statistics.median(plain_runs) * len(tried)
    print(f"{len(made.rows)} verified of {len(tried)} candidates of {options.source}, {len(ground.suite)} tests")
    print(f"seconds per verified task: {spent / len(made.rows):.1f}, plainly: {plain / len(made.rows):.1f}")
    print(f"ratio: {spent / plain:.2f}")


if __name__ == "__main__":
    main()
