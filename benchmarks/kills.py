"""One ledger, whatever happens: 1, 2 and 7 workers, a second run, and kill -9 in every phase with a new start.

Without options the agent and the model are hashes (`tests/evolve/toy.py`), everything around them is real, and a run
takes seconds. `--real` uses mini's own agents in bubblewrap and the scripted model: a SIMULATION.

A run says which phase it enters (`tests/evolve/phases.py`). Half of the kills come after a time drawn uniformly,
counted from the first step on and not from the interpreter's start; the other half in the phase that is furthest from
its share: at one of its next occurrences, after a time drawn from what it usually takes. Half of both kill only the
process that evolves, half also all it started. The bank's disk is made slow, or its writes would be over before a kill
arrives. Epochs are short, so that new ones open on the way.

    python benchmarks/kills.py --kills 300
    python benchmarks/kills.py --kills 20 --real
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.evolve import library
from tests.evolve.phases import ATTEMPTS, BASELINE, EPOCH, EXTRACTION, GATE, GATE_STARTS, LEDGER, PHASES
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.errors import BankNotFoundError
from valve_plugin.evolve.steps import waiting
from valve_plugin.tasks.repository import prepare
from valve_plugin.tasks.task_set import load

TOY = (*library.TOY, "-c", 'plugins=["valve","toy","phases:Phases"]', "-c", "horizon=3", "-c", "protocol=fresh")
REAL = (
    "--simulate", "-c", "embedding=hashing", "-c", "rho=0.1", "--panel-size", "2", "--rollouts", "2", "--limit", "6",
    "-c", 'plugins=["valve","phases:Phases"]', "-c", "horizon=2",
)  # fmt: skip
STARTS = "before the first step"
SHARES = {ATTEMPTS: 2, EXTRACTION: 1, BASELINE: 2, GATE_STARTS: 2, GATE: 3, LEDGER: 2, EPOCH: 1}
"""What the stratified half of the kills aims at."""
PER_RUN = 25
"""Kills a run gets, about."""


class Entered(NamedTuple):
    """A phase that a run said it entered."""

    phase: str
    at: float


class Kill(NamedTuple):
    """Where one kill arrived."""

    phase: str
    tenth: int
    """Of the whole run's ledger, by lines that were on disk; from 0."""
    tree: bool
    """Also all that the process had started."""


class Killed(NamedTuple):
    """What a campaign saw."""

    kills: list[Kill]
    banks: int
    """Whole runs that those kills interrupted."""
    different: int
    """Ledgers that are not, byte for byte, the uninterrupted run's."""
    unsound: int
    """Banks in which `valve bank verify` finds an error."""


class Process:
    """One `valve evolve`, and what it says of its phases."""

    def __init__(self, command: Sequence[str], env: dict[str, str], scratch: Path) -> None:
        address = scratch / f"{random.randrange(10**9)}.socket"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(address))
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with this object)
        self.entered = [Entered(STARTS, time.monotonic())]
        self.process = subprocess.Popen(
            command, env=env | {"PHASES_TO": str(address)}, stdout=subprocess.DEVNULL, stderr=self._errors
        )

    def listen(self, until: float) -> bool:
        """Listen until this time, or until the process ends or enters another phase; whether it did the last."""
        while (left := until - time.monotonic()) > 0 and self.process.poll() is None:
            self._socket.settimeout(min(left, 0.2))
            with suppress(TimeoutError):
                self.entered.append(Entered(self._socket.recv(100).decode(), time.monotonic()))
                return True
        return False

    def kill(self, *, tree: bool) -> str:
        """Kill it, and all it started where asked for; return the phase it was in, "" where it had ended by itself."""
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.process.pid).children(recursive=True) if tree else []
            for process in (self.process, *children):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        code = self.process.wait()
        self._socket.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                self.entered.append(Entered(self._socket.recv(100).decode(), time.monotonic()))
        return self.entered[-1].phase if code == -9 else ""

    def ended(self) -> bool:
        """Whether it came to its end; False: it wants a new epoch."""
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace")
        code = self.process.wait()
        assert code == 0 or "--new-epoch" in said, f"the run failed ({code}): {said[-2000:]}"
        return code == 0


class Runs:
    """Evolutions of one task set, each in a process of its own."""

    def __init__(self, folder: Path, *, real: bool) -> None:
        self.tasks = library.write(folder / "calc")
        prepare(load(self.tasks).repository)
        self._arguments: Sequence[str] = REAL if real else TOY
        path = os.pathsep.join([str(library.toy_site(folder / "site")), str(Path(__file__).resolve().parent.parent)])
        self._env = {**os.environ, "PYTHONPATH": path, "PHASES_SYNC": "0.02", "TOY_SECONDS": "0.05"}
        self._scratch = Path(tempfile.mkdtemp(prefix="k", dir=folder))

    def start(self, bank: Path, *more: str) -> Process:
        """Start a run; it goes on by itself. A bank whose epoch is used up gets a new one."""
        command = [sys.executable, "-m", "valve_plugin", "evolve", str(self.tasks), "--bank", str(bank)]
        return Process([*command, *self._arguments, *more, *_epoch(bank)], self._env, self._scratch)

    def whole(self, bank: Path, *more: str) -> tuple[bytes, list[Entered]]:
        """Run to the end; return the ledger's bytes, and the phases as they were entered."""
        entered: list[Entered] = []
        while True:
            run = self.start(bank, *more)
            while run.process.poll() is None:
                run.listen(time.monotonic() + 1)
            entered += [*run.entered, Entered("", time.monotonic())]
            if run.ended():
                return (bank / "ledger.jsonl").read_bytes(), entered


class Aim:
    """Where the kills go: to times, and to phases, by turns."""

    def __init__(self, entered: Sequence[Entered], chance: random.Random) -> None:
        """Learn what each phase takes from an uninterrupted run's."""
        self._took = defaultdict[str, list[float]](list)
        for this, after in pairwise(entered):
            if this.phase:
                self._took[this.phase].append(after.at - this.at)
        self._chance = chance
        self._shares = {phase: share for phase, share in SHARES.items() if self._took[phase]}
        self._longest = 2 * sum(map(sum, self._took.values())) / PER_RUN

    def kill(self, run: Process, hits: Counter[str], number: int, *, tree: bool) -> str:
        """Wait for the next instant and kill; return the phase, "" where the run had ended before."""
        if number % 2:
            target = min(self._shares, key=lambda phase: hits[phase] / self._shares[phase])
            skipped = self._chance.randrange(3) if len(self._took[target]) > 9 else 0
            self._await(run, target, skipped)
            until = time.monotonic() + self._chance.uniform(0, mean(self._took[target]))
            while run.listen(until):
                if run.entered[-1].phase != target:
                    break  # it was shorter than it usually is, so this is its end
        else:
            run.listen(time.monotonic() + 60)  # the first step
            until = time.monotonic() + self._chance.uniform(0, self._longest)
            while run.listen(until):
                pass
        return run.kill(tree=tree)

    @staticmethod
    def _await(run: Process, target: str, skipped: int) -> None:
        """Wait until the run enters a phase, having let some occurrences pass."""
        while run.process.poll() is None:
            skipped -= run.listen(time.monotonic() + 1) and run.entered[-1].phase == target
            if skipped < 0:
                return


def campaign(
    runs: Runs, folder: Path, expected: bytes, entered: Sequence[Entered], kills: int, chance: random.Random
) -> Killed:
    """Kill runs, and what they started, until `kills` of them were killed before their end."""
    aim, done, hits = Aim(entered, chance), Killed([], 0, 0, 0), Counter[str]()
    while len(done.kills) < kills:
        bank = folder / f"bank-{done.banks}"
        while len(done.kills) < kills:
            run = runs.start(bank, "--workers", "2")
            tree = chance.random() < 0.5
            phase = aim.kill(run, hits, len(done.kills), tree=tree)
            if phase:
                hits[phase] += 1
                done.kills.append(Kill(phase, 10 * _lines(bank) // (expected.count(b"\n") + 1), tree))
            elif run.ended():
                break
        different = runs.whole(bank, "--workers", "2")[0] != expected
        unsound = any(finding.level == "error" for finding in verify(bank))
        done = done._replace(banks=done.banks + 1, different=done.different + different, unsound=done.unsound + unsound)
        said = f"{len(done.kills)} kills, {done.banks} banks, {done.different} different, {done.unsound} unsound"
        print(f"{said}; {dict(hits.most_common())}", flush=True)
    return done


def table(found: Killed) -> str:
    """Return hits by phase and by tenth of the run, as Markdown."""
    lines = ["| Phase | Kills | of which with all it had started |", "| --- | --- | --- |"]
    for phase in (STARTS, *PHASES):
        hits = [kill for kill in found.kills if kill.phase == phase]
        lines.append(f"| {phase} | {len(hits)} | {sum(kill.tree for kill in hits)} |")
    tenths = Counter(kill.tenth for kill in found.kills)
    return "\n".join([*lines, "by tenth of the ledger: " + " ".join(str(tenths[n]) for n in range(10))])


def _epoch(bank: Path) -> list[str]:
    """A new epoch where the run has said that it wants one: all queries are used, and a proposal waits."""
    try:
        store = BankStore.open(bank)
    except BankNotFoundError:
        return []
    epoch = store.epoch()
    return ["--new-epoch"] if epoch and store.queries_used() >= epoch.horizon and waiting(store) else []


def _lines(bank: Path) -> int:
    return (bank / "ledger.jsonl").read_bytes().count(b"\n") if (bank / "ledger.jsonl").exists() else 0


def main() -> None:
    """Run everything; the figures come last."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=300)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--real", action="store_true", help="mini's own agents; minutes")
    options.add_argument("--others", default="1,2,7", help="workers of the second runs; empty: none")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_DATA_HOME"] = str(folder / "data")
        runs = Runs(folder, real=given.real)
        started = time.monotonic()
        expected, entered = runs.whole(folder / "whole", "--workers", "2")
        seconds = time.monotonic() - started
        same = {n: runs.whole(folder / f"w{n}", "--workers", n)[0] == expected for n in given.others.split(",") if n}
        lines = expected.count(b"\n")
        print(f"{lines} ledger lines, {seconds:.1f} s; equal bytes by workers, second runs: {same}", flush=True)
        found = campaign(runs, folder, expected, entered, given.kills, random.Random(given.seed))
    print(table(found))
    print(
        f"{len(found.kills)} kills over {found.banks} runs: {found.different} ledgers differ from the uninterrupted "
        f"run's, {found.unsound} banks do not verify"
    )


if __name__ == "__main__":
    main()
