"""What `kill -9` at random instants of `valve tasks generate`, `verify` and `mine` leaves behind.

    pip install 'valve-plugin[smith]' pytest
    python benchmarks/kills_tasks.py [--kills 100] [--seed 0]

A little repository with a history, real bugs, real sandboxes. Each run is killed somewhere between its start and the
time a whole one took. Then one runs to its end: its tasks must be those of a run that nobody killed. The last line is
the figure.
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


HISTORY = {  # what the second of two commits fixed, with its test
    "calc.py": SOURCE.replace("    if x > high:\n        return high\n", ""),
    "tests/test_calc.py": TESTS.replace("(-1, 5, 10)] == [0, 5, 9]", "(-1, 5)] == [0, 5]"),
}


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
        commit(tree, HISTORY, "Clamp and total")
        commit(tree, {"calc.py": SOURCE, "tests/test_calc.py": TESTS}, "Clamp what is too high")
        scratch.mkdir()
        env = {**os.environ, "VALVE_DATA": f"{place}/data", "TMPDIR": str(scratch)}
        valve = [sys.executable, "-m", "valve_plugin", "tasks"]
        about = [str(tree), "--repo", "acme/calc", "--python", sys.prefix, "--n", "3"]
        commands = [
            [*valve, "generate", *about],
            [*valve, "mine", *about],
            [*valve, "verify", "acme/calc", "--times", "1"],
        ]
        sets = [Path(place) / "data" / "tasks" / name for name in ("acme__calc", "acme__calc__mined")]
        seconds = [whole(command, env) for command in commands]
        expected = rows(sets)
        print(f"whole runs took {', '.join(f'{took:.1f}' for took in seconds)} s", flush=True)
        for number in range(options.kills):
            turn = number % len(commands)
            for known in [path for found in sets[turn : turn + 1] for path in (found / "work").glob("*.json*")]:
                known.unlink()  # else there is little to do
            with subprocess.Popen(commands[turn], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
                time.sleep(draw.uniform(0, seconds[turn]))
                run.kill()
        time.sleep(2)
        processes = [p for p in psutil.process_iter(["cmdline"]) if place in " ".join(p.info["cmdline"] or ())]
        mounts = Path("/proc/mounts").read_text().count(place)
        for command in commands:
            whole(command, env)
        folders = [p for p in (Path(place) / "data" / "workspaces").iterdir() if p.is_dir()] + list(scratch.iterdir())
        halves = [path for found in sets for path in found.rglob(".*")]
        same = f"the same {len(b''.join(expected).splitlines())} tasks" if rows(sets) == expected else "OTHER TASKS"
        print(f"then a whole run made {same}", *folders, *halves)
    left = f"{len(processes)} processes, {mounts} mounts, {len(folders) + len(halves)} folders"
    print(f"left after {options.kills} kills: {left}")


def commit(tree: Path, files: dict[str, str], message: str) -> None:
    """Write files into a repository, and commit them."""
    for path, text in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", message]):
        subprocess.run(["git", *words], cwd=tree, check=True)


def rows(sets: list[Path]) -> list[bytes]:
    """Return what the task files hold."""
    return [(found / "tasks.jsonl").read_bytes() for found in sets]


def whole(command: list[str], env: dict[str, str]) -> float:
    """Run a command to its end; return the seconds it took."""
    started = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stdout[-500:]}{done.stderr[-1500:]}")
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
