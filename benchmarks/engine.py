"""The engine next to a plain loop over stock `mini` processes: rollouts per minute, memory, and what is left behind.

Both run mini's own agent against the same SIMULATED model, which answers at once, on the same small repository: ours
two at a time, each in a workspace and bubblewrap where it works; mini's one after the other and plainly, as a shell
loop does. They take turns, so that what else the machine does hits both. Loading the fork server is in our time.

With --tasks, real rollouts are graded too, and the share of their time that hidden tests took is shown: no test run is
taken from the cache.

    python benchmarks/engine.py [--rollouts 1000] [--minis 20] [--workers 2] [--tasks examples/deepdiff]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from valve_plugin.agents.process import run
from valve_plugin.agents.protocol import RolloutResult, RolloutSpec
from valve_plugin.config import SCRIPTED_MODEL, Settings
from valve_plugin.lab.simulation.server import start
from valve_plugin.records import Context, Task
from valve_plugin.rollouts.attempt import attempt
from valve_plugin.rollouts.workers import Workers, stop_event
from valve_plugin.sandbox import workspace
from valve_plugin.tasks.grading import kept
from valve_plugin.tasks.repository import prepare
from valve_plugin.tasks.task_set import load

FILE = "shop/cart.py"
BUGGY = """\
def total(prices, tax):
    result = 0
    for price in prices:
        result -= price
    return result + tax
"""
PATCH = f"""diff --git a/{FILE} b/{FILE}
--- a/{FILE}
+++ b/{FILE}
@@ -2,4 +2,4 @@ def total(prices, tax):
     result = 0
     for price in prices:
-        result += price
+        result -= price
     return result + tax
"""
TASK = Task(
    instance_id="acme__shop.0a1b2c3d.func_pm_op_change__00000001",
    repo="acme/shop",
    patch=PATCH,
    fail_to_pass=("tests/test_cart.py::test_total",),
    problem_statement="Totals are negative: total([1, 2], 0) gives -3.",
)
SETTINGS = Settings(
    model=SCRIPTED_MODEL, model_kwargs={"seed": 0}, step_limit=30, model_tries=1, unsafe_local=True, embedding="hashing"
)


def write(folder: Path) -> None:
    """Put the small repository into a folder."""
    (folder / FILE).parent.mkdir()
    (folder / FILE).write_text(BUGGY)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["chmod", "-R", "a+rwX", str(folder)], check=True)  # the sandbox has a user of its own


def ours() -> RolloutResult:
    """Run one rollout, the same each time."""
    with workspace.open_workspace() as place:
        write(place.path)
        spec = RolloutSpec(
            task_id=TASK.instance_id,
            ordinal=0,
            issue=TASK.problem_statement,
            block="",
            workspace=place,
            settings=SETTINGS,
        )
        return run(spec, stop=stop_event())


def minis(folder: Path) -> int:
    """Run one `mini` process; return its model calls."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write(folder)
    trajectory = folder.with_suffix(".traj.json")
    command = [str(Path(sys.executable).parent / "mini"), "-y", "--exit-immediately", "-m", SCRIPTED_MODEL]
    command += ["-t", TASK.problem_statement, "-o", str(trajectory)]
    nothing = subprocess.DEVNULL
    subprocess.run(command, cwd=folder, check=True, stdin=nothing, stdout=nothing, stderr=nothing)
    calls: int = json.loads(trajectory.read_text())["info"]["model_stats"]["api_calls"]
    return calls


class Memory:
    """Resident memory of this process, its fork server and the largest rollout, looked at five times a second."""

    def __init__(self) -> None:
        self.peaks: list[dict[str, int]] = []
        threading.Thread(target=self._watch, daemon=True).start()

    def mark(self) -> None:
        """Begin another stretch of the run."""
        self.peaks.append(Counter())

    def _watch(self) -> None:
        me = psutil.Process()
        while True:
            time.sleep(0.2)
            with suppress(psutil.Error, IndexError):
                servers = [p for p in me.children() if "agents.process" in " ".join(p.cmdline())]
                seen = {"here": me.memory_info().rss, "server": sum(p.memory_info().rss for p in servers)}
                forks = [f.memory_info().rss for p in servers for f in p.children()]
                for name, value in {**seen, "rollout": max(forks, default=0)}.items():
                    self.peaks[-1][name] = max(self.peaks[-1].get(name, 0), value)


def timed(job: Callable[[], Any]) -> tuple[float, Any]:
    """Return (seconds, what the job returned)."""
    began = time.perf_counter()
    result = job()
    return time.perf_counter() - began, result


def many(jobs: list[Callable[[], Any]], workers: int) -> list[Any]:
    """Run jobs, several at a time."""
    with Workers(workers) as executor:
        return [job.result() for job in [executor.submit(job) for job in jobs]]


def compare(scratch: Path, rollouts: int, count: int, workers: int) -> None:
    """Take turns, and print the ratio, the memory of the first and the last tenth, and what is left."""
    memory, spent = Memory(), {"ours": 0.0, "mini": 0.0}
    stretch = -(-rollouts // 10)
    for tenth in range(10):
        memory.mark()
        now = min(stretch, rollouts - tenth * stretch)
        seconds, done = timed(partial(many, [ours] * now, workers))
        spent["ours"] += seconds
        if wrong := [r for r in done if r.ended != "submitted"]:
            sys.exit(f"{len(wrong)} rollouts did not end: {wrong[0].ended} {wrong[0].reason}")
        for _ in range(tenth, count, 10):
            seconds, calls = timed(partial(minis, scratch / "plain"))
            spent["mini"] += seconds
            if {calls} != {r.steps for r in done}:
                sys.exit(f"not the same work: mini made {calls} model calls, ours {done[0].steps}")
    ours_minute, mini_minute = 60 * rollouts / spent["ours"], 60 * count / spent["mini"]
    print(f"{rollouts:,} rollouts, {workers} at a time: {ours_minute:.0f} a minute; mini: {mini_minute:.1f} a minute")
    for name in ("here", "server", "rollout"):
        first, last = (memory.peaks[i].get(name, 0) / 2**20 for i in (0, -1))
        print(f"peak memory, {name:<8} {first:>6.0f} MB in the first tenth, {last:>6.0f} MB in the last")
    left = leaked()
    print(f"left behind: {len(left)} processes, {len(list(scratch.glob('valve-rollout-*')))} folders")
    print(f"{ours_minute / mini_minute:.1f} times the rollouts per minute of a loop over mini")


def leaked() -> list[psutil.Process]:
    """Return what runs that should not: descendants of this process other than its fork server."""
    below = psutil.Process().children(recursive=True)
    return [p for p in below if p.is_running() and "agents.process" not in " ".join(p.cmdline())]


def graded(folder: Path, rollouts: int, workers: int) -> None:
    """Run real rollouts with grading, and print the share of their time that hidden tests took."""
    taskset = load(folder)
    prepare(taskset.repository)
    kept.GRADER_VERSION = time.time_ns()  # its cache does not know that one
    tests, lock, real = 0.0, threading.Lock(), kept.run_tests

    def watched(*args: Any) -> Any:
        nonlocal tests
        seconds, result = timed(partial(real, *args))
        with lock:
            tests += seconds
        return result

    kept.run_tests = watched
    cells = [(task, n // len(taskset.tasks)) for n, task in enumerate(islice(cycle(taskset.tasks), rollouts))]
    with serving(taskset):
        jobs = [partial(attempt, SETTINGS, task, Context(text=""), n, "evolve") for task, n in cells]
        seconds, done = timed(partial(many, jobs, workers))
    outcomes = ", ".join(f"{n} {outcome}" for outcome, n in sorted(Counter(a.outcome for a in done).items()))
    print(f"graded: {60 * rollouts / seconds:.0f} rollouts a minute on {taskset.repository.name} ({outcomes})")
    print(f"hidden tests took {tests / sum(a.seconds for a in done):.0%} of the rollouts' time")


@contextmanager
def serving(taskset: Any) -> Iterator[None]:
    """Serve the scripted model."""
    with start(taskset) as server:
        os.environ.update(server.environment())
        yield


def main() -> None:
    """Run the comparison and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--minis", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tasks", type=Path, help="a task set; its repository is prepared")
    args = parser.parse_args()
    os.environ.update(MSWEA_SILENT_STARTUP="1", MSWEA_CONFIGURED="true")
    print("SIMULATED model")
    if args.tasks:
        graded(args.tasks, max(20, args.rollouts // 10), args.workers)
    with tempfile.TemporaryDirectory() as scratch, serving(SimpleNamespace(tasks=(TASK,))):
        os.environ.update(VALVE_DATA=f"{scratch}/data", MSWEA_GLOBAL_CONFIG_DIR=f"{scratch}/mini")
        tempfile.tempdir = scratch  # what is left in there is ours
        compare(Path(scratch), args.rollouts, args.minis, args.workers)


if __name__ == "__main__":
    main()
