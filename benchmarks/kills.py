"""One ledger, whatever happens: 1, 2 and 7 workers, a second run, and kill -9 at random instants with a new start.

Without options the agent and the model are hashes (`tests/evolve/toy.py`), everything around them is real, and a run
takes seconds. `--real` uses mini's own agents in bubblewrap and the scripted model: a SIMULATION.

    python benchmarks/kills.py --kills 100
    python benchmarks/kills.py --kills 20 --real
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.evolve import library
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.tasks.load import load
from valve_plugin.tasks.repository import prepare

REAL = (
    "--simulate",
    "-c",
    "embedding=hashing",
    "-c",
    "rho=0.1",
    "--panel-size",
    "2",
    "--rollouts",
    "2",
    "--limit",
    "6",
)


class Killed(NamedTuple):
    """What a campaign saw."""

    kills: int
    banks: int
    """Whole runs that those kills interrupted."""
    ends: Counter[str]
    """Kind of the ledger's last entry after each kill."""
    different: int
    """Ledgers that are not, byte for byte, the uninterrupted run's."""
    unsound: int
    """Banks in which `valve bank verify` finds an error."""


class Runs:
    """Evolutions of one task set, each in a process of its own."""

    def __init__(self, folder: Path, *, real: bool) -> None:
        self.tasks = library.write(folder / "calc")
        prepare(load(self.tasks).repository)
        self.arguments: Sequence[str] = REAL if real else library.TOY
        self.env = {**os.environ, "PYTHONPATH": str(library.toy_site(folder / "site"))}

    def start(self, bank: Path, *more: str) -> subprocess.Popen[bytes]:
        """Start a run; it goes on by itself."""
        command = [sys.executable, "-m", "valve_plugin", "evolve", str(self.tasks), "--bank", str(bank)]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([*command, *self.arguments, *more], env=self.env, **quiet)

    def whole(self, bank: Path, *more: str) -> bytes:
        """Run to the end; return the ledger's bytes."""
        assert self.start(bank, *more).wait() == 0, "the run failed"
        return (bank / "ledger.jsonl").read_bytes()


def campaign(runs: Runs, folder: Path, expected: bytes, kills: int, chance: random.Random, longest: float) -> Killed:
    """Kill runs, and only the process that was started, until `kills` of them were killed before their end.

    Args:
        longest: seconds; each run is killed after a time drawn between 0 and this, or ends by itself.
    """
    done = Killed(0, 0, Counter(), 0, 0)
    while done.kills < kills:
        bank = folder / f"bank-{done.banks}"
        while done.kills < kills:
            process = runs.start(bank, "--workers", "2")
            time.sleep(chance.uniform(0, longest))
            process.kill()
            if process.wait() == 0:
                break
            done.ends[_last(bank)] += 1
            done = done._replace(kills=done.kills + 1)
        different = runs.whole(bank) != expected
        unsound = any(finding.level == "error" for finding in verify(bank))
        done = done._replace(banks=done.banks + 1, different=done.different + different, unsound=done.unsound + unsound)
        print(f"{done.kills} kills, {done.banks} banks, {done.different} different", flush=True)
    return done


def _last(bank: Path) -> str:
    if not (bank / "ledger.jsonl").exists():
        return "none yet"
    return type([*BankStore.open(bank).entries()][-1]).__name__


def main() -> None:
    """Run everything; the figures come last."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=100)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--real", action="store_true", help="mini's own agents; minutes")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_DATA_HOME"] = str(folder / "data")
        runs = Runs(folder, real=given.real)
        started = time.monotonic()
        expected = runs.whole(folder / "whole", "--workers", "1")
        seconds = time.monotonic() - started
        same = {n: runs.whole(folder / f"w{n}", "--workers", n) == expected for n in ("1", "2", "7")}
        found = campaign(runs, folder, expected, given.kills, random.Random(given.seed), seconds / 5)
        entries = expected.count(b"\n")
    print(f"uninterrupted: {entries} ledger lines, {seconds:.1f} s; equal bytes by workers, second runs: {same}")
    print(f"the ledger ended with, after a kill: {dict(found.ends.most_common())}")
    print(
        f"{found.kills} kills over {found.banks} runs: {found.different} ledgers differ from the uninterrupted run's, "
        f"{found.unsound} banks do not verify"
    )


if __name__ == "__main__":
    main()
