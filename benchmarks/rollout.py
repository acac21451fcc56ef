"""Time of one rollout in a forked, preloaded process, next to a `mini` process on the same task in the same run.

Both run mini's own agent against the same SIMULATED model, which answers at once, and make the same commands in a
small repository: ours in bubblewrap where it works, mini's plainly. Each is timed from the call to its return, in
turn, so that what else the machine does hits both. Loading the fork server is shown apart: it is paid once.

    python benchmarks/rollout.py [--runs 10]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from valve_plugin.config import Settings
from valve_plugin.records import Task
from valve_plugin.rollouts import workspace
from valve_plugin.rollouts.runner import RolloutResult, RolloutSpec, run
from valve_plugin.rollouts.worker import SCRIPTED_MODEL
from valve_plugin.simulate.server import start

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


def write(folder: Path) -> None:
    """Put the small repository into a folder."""
    (folder / FILE).parent.mkdir()
    (folder / FILE).write_text(BUGGY)
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["chmod", "-R", "a+rwX", str(folder)], check=True)  # the sandbox has a user of its own


def ours(settings: Settings) -> tuple[float, RolloutResult]:
    """Time one rollout."""
    with workspace.empty() as place:
        write(place.path)
        spec = RolloutSpec(
            task_id=TASK.instance_id,
            ordinal=0,
            issue=TASK.problem_statement,
            block="",
            workspace=place,
            settings=settings,
        )
        began = time.perf_counter()
        result = run(spec)
        return time.perf_counter() - began, result


def minis(folder: Path) -> tuple[float, int]:
    """Time one `mini` process; return seconds and model calls."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    write(folder)
    trajectory = folder.with_suffix(".traj.json")
    command = [str(Path(sys.executable).parent / "mini"), "-y", "--exit-immediately", "-m", SCRIPTED_MODEL]
    command += ["-t", TASK.problem_statement, "-o", str(trajectory)]
    began = time.perf_counter()
    nothing = subprocess.DEVNULL
    subprocess.run(command, cwd=folder, check=True, stdin=nothing, stdout=nothing, stderr=nothing)
    seconds = time.perf_counter() - began
    return seconds, json.loads(trajectory.read_text())["info"]["model_stats"]["api_calls"]


def main() -> None:
    """Run the comparison and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    settings = Settings(model=SCRIPTED_MODEL, step_limit=30, model_tries=1, unsafe_local=True)
    with (
        tempfile.TemporaryDirectory() as scratch,
        start(SimpleNamespace(tasks=(TASK,))) as server,  # type: ignore[arg-type]
    ):
        os.environ.update(server.environment())
        os.environ.update(
            VALVE_DATA=f"{scratch}/data",
            MSWEA_GLOBAL_CONFIG_DIR=f"{scratch}/mini",
            MSWEA_SILENT_STARTUP="1",
            MSWEA_CONFIGURED="true",
        )
        first, result = ours(settings)
        pairs = [(ours(settings)[0], *minis(Path(scratch) / "plain")) for _ in range(runs)]
    if result.ended != "submitted" or any(calls != result.steps for _, _, calls in pairs):
        sys.exit(f"not the same work: {result.ended} {result.reason}, {result.steps} model calls against {pairs}")
    ours_s, minis_s = (statistics.median(times) for times in list(zip(*pairs, strict=True))[:2])
    print(f"{runs} runs each, {result.steps} model calls and commands a run, SIMULATED model")
    print(f"first rollout, fork server included: {first:.2f} s")
    print(f"rollout {ours_s:.2f} s, mini process {minis_s:.2f} s (medians): {minis_s / ours_s:.1f} times as fast")


if __name__ == "__main__":
    main()
