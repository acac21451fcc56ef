"""CPU time of grading, as a ratio to that of an earlier commit, measured in turn in one run.

    python benchmarks/grading.py --against COMMIT [--tests 1000] [--pairs 20]

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
from itertools import chain
from pathlib import Path
from valve_plugin.config import Settings
from valve_plugin.tasks.repository import prepare
try:
    from valve_plugin.tasks.grading.grade import grade
    from valve_plugin.tasks.states import gold_patch
    from valve_plugin.tasks.task_set import load
except ImportError:  # as 88e9c54 has them
    from valve_plugin.rollouts.grade import grade
    from valve_plugin.rollouts.state import gold_patch
    from valve_plugin.tasks.load import load

ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: bwrap ends without having waited for what it ran

def spent():
    with suppress(ChildProcessError):
        while os.wait():
            pass
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)

found = load(Path(sys.argv[1]))
where, task = prepare(found.repository), found.tasks[0]
for patch in chain([gold_patch(where, task)], map(json.loads, sys.stdin)):
    start = spent()
    result = grade(where, task, patch, Settings())
    assert result.outcome == "resolved", result.reason
    print(spent() - start, flush=True)
"""


def main() -> None:
    """Measure both in turn; print each pair and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", required=True)
    parser.add_argument("--tests", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=20)
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
            graders = {name: _start(place, Path(scratch, name), tasks) for name, place in (("old", old), ("new", ROOT))}
            once = {name: _answer(grader) for name, grader in graders.items()}
            print(f"the untouched source, once: old {once['old']:.2f} s, new {once['new']:.2f} s", flush=True)
            ratios = []
            for pair in range(options.pairs):
                patch = calc.change(calc.BUGGY, f"{calc.OPS}# {pair}\n")
                times = {}
                for name in ("old", "new") if pair % 2 else ("new", "old"):
                    print(json.dumps(patch), file=graders[name].stdin, flush=True)
                    times[name] = _answer(graders[name])
                ratios.append(times["new"] / times["old"])
                print(f"old {times['old']:.2f} s, new {times['new']:.2f} s", flush=True)
            for grader in graders.values():
                grader.communicate()
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", old], check=False)
    low, _, high = statistics.quantiles(ratios, n=4)
    ratio = statistics.median(ratios)
    print(f"grading costs {ratio:.2f} of what it cost in {options.against}; half of the pairs: {low:.2f} to {high:.2f}")


def _start(place: Path, data: Path, tasks: Path) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(place), "VALVE_DATA": str(data)}
    command = [sys.executable, "-c", GRADE, str(tasks)]
    return subprocess.Popen(command, env=env, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _answer(grader: subprocess.Popen[str]) -> float:
    assert grader.stdout is not None
    return float(grader.stdout.readline())


if __name__ == "__main__":
    main()
