"""SIMULATION: seconds of CPU that commands take on large banks, and the exponent at which they grow.

Banks that grew by gates over a panel of 50 tasks with three rollouts each (`samples.History`: one accept of six items
after two rejections), the same for the same seed, at three sizes. `start` is what a command takes on an empty bank, and
the exponent is that of the time beyond it, between the second and the largest size: 1 is linear. No timing is a test.

    python benchmarks/growth.py [--items 3000] [--seed 0] [--keep DIR]
"""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from samples import History, distinct, words

from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.extract.duplicates import fit
from valve_plugin.gate.plan import gate_plan
from valve_plugin.records import Proposal, Task
from valve_plugin.retrieval.contexts import retrieve

SETTINGS = Settings(embedding="hashing", retrieval="paper")
SHARES = (0.1, 0.3, 1.0)
COMMANDS = (
    "valve",
    "valve context --task ISSUE",
    "valve bank log",
    "valve bank verify",
    "valve certify",
    "valve report",
    "duplicates",
    "gate plan",
)
"""`duplicates` and `gate plan` are one proposal of three items in a process that has read the bank."""


def make(path: Path, seed: int, items: int) -> Path:
    """Write a bank of so many items, unless it is there."""
    if not path.exists():
        History(path).grow(tuple(distinct(random.Random(seed), items)))
    return path


class Cost(NamedTuple):
    """What a command took."""

    seconds: float
    """Of CPU."""
    mebibytes: float
    """At its peak."""


def valve(*arguments: str) -> Cost:
    """Run a command to its end; a failure ends the benchmark."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen([sys.executable, "-m", "valve_plugin", *arguments], stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        said.seek(0)
        if os.waitstatus_to_exitcode(status):
            raise SystemExit(f"valve {' '.join(arguments)} failed:\n{said.read().decode(errors='replace')}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def measure(command: str, bank: Path, issue: str) -> Cost:
    """Run one command on one bank."""
    if command in ("duplicates", "gate plan"):
        return _in_process(command, bank, issue)
    rest = command.split()[1:]
    more = ["--out", str(bank.with_suffix(".html"))] if rest == ["report"] else []
    return valve(*(issue if word == "ISSUE" else word for word in rest), *more, "--bank", str(bank))


def _in_process(command: str, bank: Path, issue: str) -> Cost:
    """Time one more proposal in a process that has read the bank, after a first one."""
    store = BankStore.open(bank)
    panel = store.panel()
    assert panel is not None
    tasks = [
        Task(instance_id=t.instance_id, repo="r", patch="p", fail_to_pass=("t",), problem_statement=f"{n} {issue}")
        for n, t in enumerate(panel.tasks)
    ]
    for seed in (-1, -2):
        move = Proposal(task_id="new", items=tuple(distinct(random.Random(seed), 3)))
        start = time.process_time()
        if command == "duplicates":
            fit(move, store.bank)
        else:
            gate_plan(SETTINGS, store, tasks, move, retrieve)
    return Cost(time.process_time() - start, 0)


def main() -> None:
    """Print each command's seconds at three sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="keep the banks here, and use those that are there")
    parser.add_argument("--only", default="", help="only the commands with this text")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = args.keep or Path(scratch)
        os.environ["VALVE_DATA"] = os.environ["XDG_DATA_HOME"] = str(place / "data")
        issue = words(random.Random(args.seed), 200)
        sizes = [round(args.items * share) for share in SHARES]
        empty, *banks = (make(place / f"items-{size}", args.seed, size) for size in (0, *sizes))
        print("SIMULATION: seconds of CPU, MB of memory at the largest")
        print(f"{'items':30} {'start':>8} {sizes[0]:>8,} {sizes[1]:>8,} {sizes[2]:>8,} {'exponent':>9} {'MB':>6}")
        for command in COMMANDS:
            if args.only not in command:
                continue
            start, *found = (measure(command, bank, issue) for bank in (empty, *banks))
            beyond = [max(cost.seconds - start.seconds, 1e-3) for cost in found]
            exponent = math.log(beyond[2] / beyond[1]) / math.log(sizes[2] / sizes[1])
            row = " ".join(f"{cost.seconds:8.2f}" for cost in (start, *found))
            print(f"{command:30} {row} {exponent:9.2f} {found[2].mebibytes:6.0f}", flush=True)


if __name__ == "__main__":
    main()
