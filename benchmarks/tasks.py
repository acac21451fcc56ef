"""Seconds per verified task, as a ratio to running the whole suite for every candidate.

    pip install '.[smith]'
    python benchmarks/tasks.py [SOURCE] [--n 10]

Both count the same candidates, those that `valve tasks generate` takes until it has enough. Plainly, each costs one run
of the whole suite, and nothing is known yet of tests that vary. Ours runs the whole suite for what it keeps, and what
failed once more; before that, where the suite is no short one, only the tests that call what the bug changed. Plain
runs are timed in between, so that other work on the machine slows both. What is spent once for a repository, the
watched run, is told apart. The last line is the figure.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path

from valve_plugin.config import Settings
from valve_plugin.sandbox.bubblewrap import Sandbox, choose
from valve_plugin.sandbox.supervisor import ProcessLimits
from valve_plugin.tasks.grading.testrun import run_tests
from valve_plugin.tasks.make import candidates, generate
from valve_plugin.tasks.make.define import SuiteNeeds, read_source
from valve_plugin.tasks.make.generate import CandidateResult, is_excluded
from valve_plugin.tasks.make.project import examine
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.tasks.workspace import open_commit

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
    with candidates.unpack_files(files) as tree:
        found = candidates.order_candidates(
            candidates.find_candidates(tree, lambda path: is_excluded(path, roots), options.seed), options.seed
        )
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        definition = generate.define_repository(out, "bench", files, COMMAND, SuiteNeeds(), say=print, wanted=options.n)
        prepared, ground = generate.survey(out, definition, COMMAND, sandbox, print)
        started = time.perf_counter()
        candidates.trace_calls(prepared, sandbox)
        watched = time.perf_counter() - started
        tried: list[CandidateResult] = []
        plain_runs: list[float] = []
        spent, since = 0.0, time.perf_counter()

        def told(one: CandidateResult) -> None:
            nonlocal spent, since
            spent += time.perf_counter() - since
            tried.append(one)
            if len(tried) % 5 == 1:
                plain_runs.append(plain_run(prepared, sandbox))
            since = time.perf_counter()

        made = generate.try_candidates(out, prepared, ground, found, sandbox, wanted=options.n, workers=1, report=told)
    plain = statistics.mean(plain_runs) * len(tried)
    print(Counter(one.reason or "verified" for one in tried).most_common())
    print(f"{len(made.rows)} verified of {len(tried)} candidates of {options.source}, {len(ground.suite)} tests")
    print(f"the watched run: {watched:.1f} s, as long as {watched / statistics.mean(plain_runs):.1f} plain ones, once")
    print(f"seconds per verified task: {spent / len(made.rows):.1f}, plainly: {plain / len(made.rows):.1f}")
    print(f"ratio: {spent / plain:.2f}")


def plain_run(prepared: PreparedRepository, sandbox: Sandbox) -> float:
    """Return the seconds one run of the whole suite takes."""
    started = time.perf_counter()
    with open_commit(prepared, prepared.base) as workspace:
        run_tests(sandbox, workspace, prepared, prepared.repository.test_roots, ProcessLimits(cpu_seconds=600))
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
