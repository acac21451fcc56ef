"""CPU time of grading, as a ratio to that of an earlier commit, measured in turn in one run.

    python benchmarks/grading.py --against COMMIT [--tests 1000] [--runs 5]

Both grade right fixes of one bug in a small library with many tests; no fix was graded before. What is spent once for a
repository, the run of the untouched source, is done before and told apart. The last line is the figure.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MANY = """import pytest
from calc.ops import add


@pytest.mark.parametrize("n", range({}))
def test_many(n):
    assert add(n, 1) == n + 1
"""
GRADE = """
import ctypes, json, os, resource, sys
from contextlib import suppress
from pathlib import Path
from valve_plugin.config import Settings
from valve_plugin.tasks.grading.grade import grade
from valve_plugin.tasks.repository import prepare
from valve_plugin.tasks.states import gold_patch
from valve_plugin.tasks.task_set import load

ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: bwrap ends without having waited for what it ran

def spent():
    with suppress(ChildProcessError):
        while os.wait():
            pass
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)

plan = json.load(sys.stdin)
found = load(Path(plan["tasks"]))
where, task = prepare(found.repository), found.tasks[0]
settings = Settings(unsafe_local=True)
start = spent()
gold = grade(where, task, gold_patch(where, task), settings)
assert gold.outcome == "resolved", gold.reason
first = spent() - start
times = []
for patch in plan["patches"]:
    start = spent()
    result = grade(where, task, patch, settings)
    assert result.outcome == "resolved", result.reason
    times.append(spent() - start)
print(json.dumps([first, times]))
"""


def main() -> None:
    """Measure both in turn; print each run and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", required=True)
    parser.add_argument("--tests", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from tests import calc

    with tempfile.TemporaryDirectory() as scratch:
        old = Path(scratch, "old")
        subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "-q", "--detach", old, options.against], check=True)
        try:
            test = "tests/test_many.py::test_many[{}]"
            row = calc.row(PASS_TO_PASS=[*calc.P2P, *(test.format(n) for n in range(options.tests))])
            files = {**calc.FILES, "tests/test_many.py": MANY.format(options.tests)}
            tasks = calc.write(Path(scratch, "tasks"), [row], files=files, venv=sys.prefix)
            ratios = []
            for run in range(options.runs):
                patches = [calc.change(calc.BUGGY, f"{calc.OPS}# {run} {number}\n") for number in range(3)]
                first = {
                    name: _grade(place, Path(scratch, name), tasks, patches)
                    for name, place in sorted({"old": old, "new": ROOT}.items(), reverse=run % 2 == 0)
                }
                sums = {name: sum(times) for name, (_, times) in first.items()}
                ratios.append(sums["new"] / sums["old"])
                print(f"old {sums['old']:.2f} s, new {sums['new']:.2f} s (once: {first['new'][0]:.2f} s)", flush=True)
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", old], check=False)
    print(f"grading costs {statistics.median(ratios):.2f} of what it cost in {options.against}")


def _grade(place: Path, data: Path, tasks: Path, patches: list[str]) -> tuple[float, list[float]]:
    env = os.environ | {"PYTHONPATH": str(place), "VALVE_DATA": str(data)}
    plan = json.dumps({"tasks": str(tasks), "patches": patches})
    done = subprocess.run(
        [sys.executable, "-c", GRADE], input=plan, env=env, cwd=place, stdout=subprocess.PIPE, text=True, check=True
    )
    first, times = json.loads(done.stdout)
    return first, times


if __name__ == "__main__":
    main()
