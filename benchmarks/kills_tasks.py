"""What `kill -9` at random instants of `valve tasks generate` and `valve tasks verify` leaves behind.

    pip install 'valve-plugin[smith]' pytest
    python benchmarks/kills_tasks.py [--kills 100] [--seed 0]

A little repository, real bugs, real sandboxes. Each run is killed somewhere between its start and the time a whole one
took. Then one runs to its end: its tasks must be those of a run that nobody killed. The last line is the figure.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

SOURCE = """\
def clamp(x, low, high):
    if x < low:
        return low
    if x > high:
        return high
    return x


def total(numbers):
    result = 0
    for number in numbers:
        if number > 0:
            result = result + number
    return result
"""
TESTS = """\
from calc import clamp, total


def test_clamp():
    assert [clamp(x, 0, 9) for x in (-1, 5, 10)] == [0, 5, 9]


def test_total():
    assert total([1, 2, -3]) == 3


def test_nothing():
    assert total([]) == 0
"""


def main() -> None:
    """Run once, kill many, look, run once more."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place) / "scratch"
        tree = Path(place) / "calc"
        for path, text in (("calc.py", SOURCE), ("tests/test_calc.py", TESTS)):
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_text(text)
        scratch.mkdir()
        env = {**os.environ, "VALVE_DATA": f"{place}/data", "TMPDIR": str(scratch)}
        valve = [sys.executable, "-m", "valve_plugin", "tasks"]
        generate = [*valve, "generate", str(tree), "--repo", "acme/calc", "--python", sys.prefix, "--n", "3"]
        commands = [generate, [*valve, "verify", "acme/calc", "--times", "1"]]
        rows = Path(place) / "data" / "tasks" / "acme__calc" / "tasks.jsonl"
        seconds = [whole(command, env) for command in commands]
        expected = rows.read_bytes()
        print(f"whole runs took {seconds[0]:.1f} and {seconds[1]:.1f} s", flush=True)
        for number in range(options.kills):
            turn = number % 2
            if not turn:
                (rows.parent / "work" / "ground.json").unlink(missing_ok=True)  # else there is little to do
                for tried in (rows.parent / "work").glob("tried-*"):
                    tried.unlink()
            with subprocess.Popen(commands[turn], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
                time.sleep(draw.uniform(0, seconds[turn]))
                run.kill()
        time.sleep(2)
        processes = [p for p in psutil.process_iter(["cmdline"]) if place in " ".join(p.info["cmdline"] or ())]
        mounts = Path("/proc/mounts").read_text().count(place)
        for command in commands:
            whole(command, env)
        folders = [p for p in (Path(place) / "data" / "workspaces").iterdir() if p.is_dir()] + list(scratch.iterdir())
        halves = list(rows.parent.rglob(".*"))
        same = "the same tasks" if rows.read_bytes() == expected else "OTHER TASKS"
        print(f"then a whole run made {same}", *folders, *halves)
    left = f"{len(processes)} processes, {mounts} mounts, {len(folders) + len(halves)} folders"
    print(f"left after {options.kills} kills: {left}")


def whole(command: list[str], env: dict[str, str]) -> float:
    """Run a command to its end; return the seconds it took."""
    started = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
