"""SIMULATION: seconds of CPU that commands take on large banks, and the exponent at which they grow.

Two kinds of ledger, the same for the same seed, each at three sizes: banks of many items that were taken without a
gate, and ledgers of many gates over a panel of 50 tasks with three rollouts each. Every number in them is one that
`valve bank verify --deep` computes again. `start` is what a command takes on an empty bank, and the exponent is that of
the time beyond it, between the second and the largest size: 1 is linear. No timing is a test.

    python benchmarks/growth.py [--items 10000] [--gates 5000] [--seed 0] [--keep DIR]
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace
from samples import make_bank, words

from valve_plugin.bank import ledger, moves
from valve_plugin.bank.entries import Baseline, Entry, EpochOpened, Judged, Opened, PanelFixed, Proposed, Taken
from valve_plugin.bank.replay import Replay
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.extract.duplicates import fit
from valve_plugin.gate.plan import Plan, baseline_plan, gate_plan
from valve_plugin.records import (
    Bank,
    Item,
    Outcome,
    Panel,
    PanelOutcome,
    PanelResult,
    PanelTask,
    Proposal,
    Task,
    Verdict,
)
from valve_plugin.retrieval.contexts import retrieve
from valve_plugin.tasks.repository import Repository
from valve_plugin.tasks.task_set import SmithRow, load, write
from valve_plugin.theory.acceptance import decisive_prefix, needed_passes

REPO = "benchmark/benchmark"
TASKS, ROLLOUTS, PASSES = 50, 3, 39
EVERY = 150
"""One gate in so many accepts."""
SETTINGS = Settings(embedding="hashing", retrieval="paper")
SHARES = (0.1, 0.3, 1.0)
COMMANDS = {
    "items": (
        "valve",
        "valve context --task ISSUE",
        "valve bank verify",
        "valve bank verify --deep",
        "duplicates",
        "gate plan",
    ),
    "gates": (
        "valve",
        "valve context --task ISSUE",
        "valve bank log",
        "valve certify",
        "valve bank verify",
        "valve bank verify --deep",
        "valve report",
        "gate plan",
    ),
}
"""`duplicates` and `gate plan` are one proposal of three items in a process that has read the bank."""


class Ledger:
    """A bank that is written line by line; also what a plan reads of it."""

    def __init__(self, path: Path, tasks: Sequence[Task]) -> None:
        self.path, self.tasks, self.state = path, tasks, Replay()
        self.lines: list[bytes] = []
        self.prev = ledger.GENESIS
        self.panel = Panel(
            tasks=tuple(PanelTask(instance_id=t.instance_id, content_hash=t.content_hash) for t in tasks)
        )

    @property
    def bank(self) -> Bank:
        return self.state.bank

    def recorded(self) -> dict[str, tuple[int, int]]:
        return self.state.recorded

    def current_outcomes(self) -> tuple[PanelOutcome, ...] | None:
        return self.state.outcomes

    def ordinals(self, task_id: str, context_hash: str) -> int:
        return self.state.ordinals.get((task_id, context_hash), 0)

    def append(self, entry: Entry, bank_hash: str) -> None:
        self.state.feed(entry)
        self.lines.append(ledger.encode(len(self.lines), self.prev, bank_hash, entry))
        self.prev = ledger.line_hash(self.lines[-1])

    def take(self, items: Sequence[Item]) -> None:
        """Take items without a gate, six at a time."""
        now = self.bank.hash
        for move in proposals(items, 6):
            self.append(Proposed(proposal=move), now)
            after = moves.apply(self.bank, move).hash
            self.append(Taken(proposal_id=move.id, bank_hash=now, bank_after=after), after)
            now = after

    def judge(self, items: Sequence[Item], gates: int) -> None:
        """Open an epoch and ask the gate about proposals of three items; one in `EVERY` is accepted."""
        now = self.bank.hash
        self.append(PanelFixed(panel=self.panel), now)
        terms = EpochOpened(epoch=1, horizon=gates, delta="0.05", panel_hash=self.panel.hash, reason="benchmark")
        self.append(terms, now)
        plan = baseline_plan(SETTINGS, self, self.tasks, retrieve)
        values: list[Outcome] = ["resolved" if n % (TASKS * ROLLOUTS) < PASSES else "unresolved" for n in range(150)]
        self.append(Baseline(epoch=1, result=PanelResult(bank_hash=now, outcomes=outcomes(plan, values))), now)
        for query, move in enumerate(proposals(items, 3), start=1):
            self.append(Proposed(proposal=move), now)
            verdict = self._verdict(move, query, now)
            after = moves.apply(self.bank, move).hash if verdict.decision == "accept" else now
            self.append(Judged(verdict=verdict, bank_after=after), after)
            now = after

    def _verdict(self, move: Proposal, query: int, bank_hash: str) -> Verdict:
        plan = gate_plan(SETTINGS, self, self.tasks, move, retrieve)
        before = self.current_outcomes() or ()
        current = [o.outcome for o in before]
        passed = {(o.task_id, n % ROLLOUTS) for n, o in enumerate(before) if o.outcome == "resolved"}
        values: list[Outcome] = [
            "resolved" if (c.task.instance_id, n % ROLLOUTS) in passed else "unresolved"
            for n, c in enumerate(plan.cells)
        ]
        needed = needed_passes(self.panel.rho, TASKS, ROLLOUTS)
        accept = query % EVERY == 0
        if accept:
            failed = [n for n, value in enumerate(values) if value == "unresolved"]
            for n in failed[:needed]:
                values[n] = "resolved"
        found = outcomes(plan, values)[: decisive_prefix(current, values, needed)]
        return Verdict(
            proposal_id=move.id,
            decision="accept" if accept else "reject",
            epoch=1,
            query=query,
            panel_hash=self.panel.hash,
            bank_hash=bank_hash,
            pairing="paper",
            rho=self.panel.rho,
            n_tasks=TASKS,
            rollouts=ROLLOUTS,
            needed=needed,
            current_passes=current.count("resolved"),
            candidate_passes=sum(o.outcome == "resolved" for o in found),
            order=plan.order,
            outcomes=found,
            deployed=self._deployed(move, plan) if accept else 0,
        )

    def _deployed(self, move: Proposal, plan: Plan) -> int:
        enlarged = moves.apply(self.bank, move)
        judged = {c.task.instance_id: c.context.hash for c in plan.cells}
        return sum(
            retrieve(SETTINGS, enlarged, t.instance_id, t.problem_statement).hash == judged[t.instance_id]
            for t in self.tasks
        )

    def write(self) -> None:
        BankStore.create(self.path, REPO, {"embedding": "hashing"})
        (self.path / ledger.FILE_NAME).write_bytes(b"".join(line + b"\n" for line in self.lines))
        valve("bank", "verify", "--repair", "--bank", str(self.path))


def outcomes(plan: Plan, values: Sequence[Outcome]) -> tuple[PanelOutcome, ...]:
    """Return the outcomes of the plan's rollouts in canonical order."""
    return tuple(
        PanelOutcome(task_id=c.task.instance_id, ordinal=c.ordinal, outcome=v, context_hash=c.context.hash)
        for c, v in zip(plan.cells, values, strict=True)
    )


def proposals(items: Sequence[Item], size: int) -> Iterator[Proposal]:
    """Yield moves of so many items each."""
    for first in range(0, len(items), size):
        yield Proposal(task_id=f"mixed-{first}", items=tuple(items[first : first + size]))


def distinct(seed: int, count: int) -> list[Item]:
    """Return items as they are proposed: none repeats another, because each speaks of things of its own."""
    rng = random.Random(seed)
    made = make_bank(rng, count)
    own = [" ".join(f"thing{n}x{j}" for j in range(60)) for n in range(count)]
    return [replace(item, markdown=f"{item.markdown}\n{own[n]}", created_step=0) for n, item in enumerate(made.items)]


def make(path: Path, tasks: Sequence[Task], seed: int, items: int, gates: int) -> Path:
    """Write a bank of so many items and gates, unless it is there."""
    if not path.exists():
        made = Ledger(path, tasks)
        made.append(Opened(repo=REPO), Bank(repo=REPO).hash)
        every = distinct(seed, items + 3 * gates)
        made.take(every[:items])
        made.judge(every[items:], gates)
        made.write()
    return path


def make_tasks(folder: Path, seed: int) -> Path:
    """Write the task set of the panel."""
    rng = random.Random(seed)
    definition = Repository(name=REPO, source="pypi:benchmark==1.0")
    rows = [
        SmithRow(
            instance_id=f"benchmark__benchmark.{n:08x}",
            repo=REPO,
            patch=f"--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-good {n}\n+bad {n}\n",
            fail_to_pass=(f"tests/test_x.py::test_{n}",),
            pass_to_pass=(),
            problem_statement=words(rng, rng.randint(50, 400)),
        )
        for n in range(TASKS)
    ]
    write(folder, definition, rows, made_by="benchmarks/growth.py")
    return folder


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


def measure(command: str, bank: Path, tasks: Path) -> Cost:
    """Run one command on one bank."""
    if command in ("duplicates", "gate plan"):
        return _in_process(command, bank, load(tasks).tasks)
    rest = command.split()[1:]
    more = {"report": ["--out", str(bank.with_suffix(".html"))], "--deep": ["--tasks", str(tasks)]}.get(
        (rest or [""])[-1], []
    )
    issue = load(tasks).tasks[0].problem_statement
    return valve(*(issue if word == "ISSUE" else word for word in rest), *more, "--bank", str(bank))


def _in_process(command: str, bank: Path, tasks: Sequence[Task]) -> Cost:
    """Time one more proposal in a process that has read the bank, after a first one."""
    store = BankStore.open(bank)
    store.current_outcomes()
    for seed in (-1, -2):
        move = Proposal(task_id="new", items=tuple(distinct(seed, 3)))
        start = time.process_time()
        if command == "duplicates":
            fit(move, store.bank)
        else:
            gate_plan(SETTINGS, store, tasks, move, retrieve)
    return Cost(time.process_time() - start, 0)


def main() -> None:
    """Print each command's seconds at three sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--gates", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="keep the banks here, and use those that are there")
    parser.add_argument("--only", default="", help="only the commands with this text")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = args.keep or Path(scratch)
        os.environ["VALVE_DATA"] = os.environ["XDG_DATA_HOME"] = str(place / "data")
        folder = place / "tasks"
        tasks = load(make_tasks(folder, args.seed)).tasks
        empty = make(place / "empty", tasks, args.seed, 0, 1)
        worst = ("", 0.0, 0.0)
        for kind, most in (("items", args.items), ("gates", args.gates)):
            sizes = [round(most * share) for share in SHARES]
            counts = [(size, 10) if kind == "items" else (0, size) for size in sizes]
            banks = [make(place / f"{kind}-{a}-{b}", tasks, args.seed, a, b) for a, b in counts]
            size = ", ".join(f"{(bank / ledger.FILE_NAME).stat().st_size / 1e6:.1f} MB" for bank in banks)
            print(f"\nSIMULATION: ledgers of {size}; seconds of CPU, MB of memory at the largest")
            print(f"{kind:30} {'start':>8} {sizes[0]:>8,} {sizes[1]:>8,} {sizes[2]:>8,} {'exponent':>9} {'MB':>6}")
            for command in COMMANDS[kind]:
                if args.only not in command:
                    continue
                start, *found = (measure(command, bank, folder) for bank in (empty, *banks))
                seconds = [cost.seconds for cost in found]
                beyond = [max(s - start.seconds, 1e-3) for s in seconds]
                exponent = math.log(beyond[2] / beyond[1]) / math.log(sizes[2] / sizes[1])
                row = " ".join(f"{s:8.2f}" for s in (start.seconds, *seconds))
                print(f"{command:30} {row} {exponent:9.2f} {found[2].mebibytes:6.0f}", flush=True)
                if beyond[2] > 0.5 and exponent > worst[1]:  # below that, an exponent is noise
                    worst = (f"{command}, {kind}", exponent, seconds[2])
        print(f"\nfastest growth: {worst[0]}: exponent {worst[1]:.2f}, {worst[2]:.1f} s at the largest size")


if __name__ == "__main__":
    main()
