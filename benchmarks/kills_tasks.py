"""What `kill -9` at random instants of `valve tasks generate`, `verify` and `mine` leaves behind.

    pip install '.[smith]' pytest
    python benchmarks/kills_tasks.py [--kills 100] [--seed 0]

A little repository with a history, real bugs, real sandboxes. `generate` has its turn twice: with an environment that
is there, and in a set that is begun anew each time, so that requirements are resolved by pip, a virtual
environment is made and filled. Each run is killed somewhere between its start and the time a whole one took. Soon after
no process may be left; then the command runs to its end, and the tasks must be those of a run that nobody killed.
The last line is the figure.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
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


PATIENCE = 2.0  # seconds
MADE = "acme/made"  # its environment is made
HISTORY = {  # what the second of two commits fixed, with its test
    "calc.py": SOURCE.replace("    if x > high:\n        return high\n", ""),
    "tests/test_calc.py": TESTS.replace("(-1, 5, 10)] == [0, 5, 9]", "(-1, 5)] == [0, 5]"),
}


def main() -> None:
    """Run once; then kill, look, and run to the end, many times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        made = Making(Path(place))
        expected = rows(made.sets)
        print(f"whole runs took {', '.join(f'{took:.1f}' for took in made.seconds)} s", flush=True)
        processes: list[str] = []
        others = early = 0
        for number in range(options.kills):
            turn = number % len(made.commands)
            made.forget(turn)
            silent, after = subprocess.DEVNULL, draw.uniform(0, made.seconds[turn])
            with subprocess.Popen(made.commands[turn], env=made.env, stdout=silent, stderr=silent) as run:
                time.sleep(after)
                run.kill()
            found, gone = left(place)
            processes += found
            early += (half := made.environment_half_made())
            whole(made.commands[turn], made.env)
            others += (other := rows(made.sets) != expected)
            name = f"{made.commands[turn][4]}{', making its environment' if half else ''}"
            what = f"left {found}" if found else f"all gone after {gone:.1f} s"
            print(
                f"{number + 1}: {name}, killed after {after:.1f} s: {what}; {'OTHER' if other else 'same'} tasks",
                flush=True,
            )
        mounts = Path("/proc/mounts").read_text().count(place)
        folders = [p for p in (made.data / "workspaces").iterdir() if p.is_dir()] + list(made.scratch.iterdir())
        halves = [path for found in made.sets for path in found.rglob(".*")]
        tasks = len(b"".join(expected).splitlines())
        print(f"{early} kills came while an environment was made")
        print(f"{options.kills - others} of {options.kills} runs after a kill made the same {tasks} tasks", *processes)
    found = f"{len(processes)} processes, {mounts} mounts, {len(folders) + len(halves)} folders, {others} other tasks"
    print(f"left after {options.kills} kills: {found}")


class Making:
    """The commands, each run once to its end, and what they work on."""

    def __init__(self, place: Path) -> None:
        tree = place / "calc"
        self.data, self.scratch = place / "data", place / "scratch"
        self.scratch.mkdir()
        commit(tree, HISTORY, "Clamp and total")
        commit(tree, {"calc.py": SOURCE, "tests/test_calc.py": TESTS}, "Clamp what is too high")
        self.env = {**os.environ, "VALVE_DATA": str(self.data), "TMPDIR": str(self.scratch)}
        valve = [sys.executable, "-m", "valve_plugin", "tasks"]
        there = [str(tree), "--n", "3", "--repo", "acme/calc", "--python", sys.prefix]
        self.commands = [
            [*valve, "generate", *there],
            [*valve, "generate", str(tree), "--n", "3", "--repo", MADE],
            [*valve, "mine", *there],
            [*valve, "verify", "acme/calc", "--times", "1"],
        ]
        self.sets = [self.data / "tasks" / name for name in ("acme__calc", "acme__made", "acme__calc__mined")]
        self.seconds = [whole(command, self.env) for command in self.commands]

    def forget(self, turn: int) -> None:
        """Remove what a command found out, else there is little to do; and the environment that one makes."""
        if MADE in self.commands[turn]:
            for folder in (self.data / "tasks" / "acme__made", self.data / "repos" / "acme__made"):
                shutil.rmtree(folder)
        for known in [path for found in self.sets[turn : turn + 1] for path in (found / "work").glob("*.json*")]:
            known.unlink()

    def environment_half_made(self) -> bool:
        """Whether a virtual environment is there, to resolve or to test in, and none that is whole."""
        found = [*self.data.glob("workspaces/*/venv"), *self.data.glob("repos/acme__made/*/venv")]
        return bool(found) and not any((venv / "valve-complete").exists() for venv in found[-1:])


def left(place: str) -> tuple[list[str], float]:
    """Return the commands of processes about the place that outlive a kill by more than two seconds, and the seconds
    until there was none."""
    started = time.perf_counter()
    while (found := about(place)) and time.perf_counter() - started < PATIENCE:
        time.sleep(0.05)
    return found, time.perf_counter() - started


def about(place: str) -> list[str]:
    """Return the commands of running processes that name the place, or were started for it."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = (*process.cmdline(), process.environ().get("VALVE_DATA", ""))
            if process.status() != psutil.STATUS_ZOMBIE and any(place in word for word in words):
                found.append(" ".join(process.cmdline()))
    return found


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
