"""SIMULATION: seconds of CPU that commands take on large banks, and the exponent at which they grow.

Banks that grew by gates over a panel of 50 tasks with three rollouts each (one accept of six items
after two rejections), the same for the same seed, at three sizes. `start` is what a command takes on an empty bank, and
the exponent is that of the time beyond it, between the second and the largest size: 1 is linear. No timing is a test.

    python benchmarks/growth.py [--items 10000] [--seed 0] [--keep DIR]

`lint`, `gate plan` and `--deep` are left out at more than 1,200 items, where they take minutes; name them with
`--only`. The last line has the exponents alone.
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

from valve_plugin.bank import ledger
from valve_plugin.bank.entries import Baseline, Entry, EpochOpened, Judged, Opened, PanelFixed, Proposed
from valve_plugin.bank.moves import apply
from valve_plugin.bank.replay import Replay
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import digest
from valve_plugin.config import Settings
from valve_plugin.extract.duplicates import fit
from valve_plugin.gate.plan import gate_plan
from valve_plugin.records import Item, Panel, PanelOutcome, PanelResult, PanelTask, Proposal, Task, Verdict
from valve_plugin.retrieval.contexts import retrieve
from valve_plugin.theory.gate_rule import decisive_prefix, needed_passes
from valve_plugin.theory.panel_order import task_order

SETTINGS = Settings(embedding="hashing", retrieval="paper")
SHARES = (0.01, 0.1, 1.0)
COMMANDS = (
    "valve",
    "valve context ISSUE",
    "valve bank list",
    "valve bank diff",
    "valve bank lint",
    "valve bank log",
    "valve bank verify",
    "valve bank verify --deep",
    "valve certify",
    "valve plan",
    "valve report",
    "duplicates",
    "gate plan",
)
"""`duplicates` and `gate plan` are one proposal of three items in a process that has read the bank."""
SLOW = ("valve bank verify --deep", "valve bank lint", "gate plan")


def _split(text: str) -> list[str]:
    return text.split()


VERBS = _split("check compare trace reproduce isolate narrow rerun inspect restore guard normalize validate bisect log")
AREAS = _split(
    "parser lexer delta diff hash cache token path index iterator encoder serializer exclude ignore order type "
    "config option report tree node visitor formatter filter style schema dataset element sequence pixel rule "
    "dialect segment fixture import module boundary regex unicode bytes date decimal numpy set tuple enum slot"
)
FILLER = _split(
    "the a of to in and is when that it for with not on as be by this are from or an if at which before after only "
    "every each one two first last value result call function method class test case error exception argument"
)
FIELD = [area + ending for ending in ("", "s", "ed", "ing", "map", "state", "name", "info") for area in AREAS]


def words(rng: random.Random, count: int) -> str:
    """Return prose-like words: function words, words of the field (few common, most rare), identifiers."""

    def rare(vocabulary: list[str]) -> str:
        return vocabulary[int(rng.paretovariate(0.5) - 1) % len(vocabulary)]

    def word() -> str:
        kind = rng.random()
        if kind < 0.45:
            return rng.choice(FILLER)
        if kind < 0.8:
            return rare(FIELD)
        if kind < 0.9:
            return rng.choice(VERBS)
        if kind < 0.96:
            return f"{rng.choice(VERBS)}_{rare(FIELD)}"
        return f"{rare(FIELD).title()}{rare(FIELD).title()}Error"

    return " ".join(word() for _ in range(count))


def distinct(rng: random.Random, count: int) -> list[Item]:
    """Return items as they are proposed, half of each kind: none repeats another, each speaks of things of its own."""

    def item(n: int) -> Item:
        skill = n % 2 == 1
        steps = "\n".join(f"{step}. {words(rng, 18)}." for step in range(1, rng.randint(4, 8)))
        own = " ".join(f"thing{n}x{j}" for j in range(60))
        return Item(
            kind="skill" if skill else "principle",
            name=f"{rng.choice(VERBS)}-{rng.choice(AREAS)}-{n}",
            text=words(rng, rng.randint(10, 25)),
            scope_hint=words(rng, rng.randint(4, 12)) if skill else "",
            markdown=f"**Trigger**: {words(rng, 20)}\n\n**Procedure**\n{steps}\n\n{own}",
            passes=rng.randint(1, 2),
            attempts=3,
        )

    return [item(n) for n in range(count)]


class History:
    """The ledger of a bank that grew by gates over a full panel: six items an accept, two rejections for each."""

    def __init__(self, path: Path, tasks: int = 50) -> None:
        self.path = path
        self.store = BankStore.create(path, "benchmark/benchmark")
        self.state = Replay(trusting=True)
        self.state.feed(Opened(repo="benchmark/benchmark"))
        self.lines, self.last = [(path / "ledger.jsonl").read_bytes().rstrip(b"\n")], self.state.bank.hash
        self.tasks = tuple(f"benchmark__task-{n:02}" for n in range(tasks))
        members = tuple(PanelTask(instance_id=task, content_hash=digest(task)) for task in self.tasks)
        self.panel, self.epoch = Panel(tasks=members), 0
        self._append(PanelFixed(panel=self.panel))
        self._open_epoch()

    def _append(self, entry: Entry) -> None:
        """Write a line as the store does, without a file for each: that alone would take an hour."""
        self.state.feed(entry)
        self.last = self.state.bank.hash if isinstance(entry, Judged) else self.last
        self.lines.append(ledger.encode(len(self.lines), ledger.line_hash(self.lines[-1]), self.last, entry))

    def _open_epoch(self) -> None:
        self.passes, self.query, self.epoch = len(self.tasks) // 4, 0, self.epoch + 1
        self._append(
            EpochOpened(epoch=self.epoch, horizon=1000, delta="0.05", panel_hash=self.panel.hash, reason="benchmark")
        )
        found = self._outcomes(f"epoch {self.epoch}", self.passes, self.tasks)
        self._append(Baseline(epoch=self.epoch, result=PanelResult(bank_hash=self.last, outcomes=found)))

    def grow(self, items: tuple[Item, ...]) -> None:
        """Accept the items, six at a time; the store itself writes the last line, and the snapshot with it."""
        for first in range(0, len(items), 6):
            if self.passes + self._needed > len(self.tasks) * self.panel.rollouts:
                self._open_epoch()
            move = Proposal(task_id=f"mixed-{first}", items=items[first : first + 6])
            for reason in ("worse", "no better"):
                rejected = Proposal(task_id=f"mixed-{first}", items=items[first : first + 1], issue_summary=reason)
                self._judge(rejected, self.passes, accept=False)
            self._judge(move, self.passes + self._needed, accept=True)
            self.passes += self._needed
        (self.path / "ledger.jsonl").write_bytes(b"".join(line + b"\n" for line in self.lines))
        BankStore.open(self.path).append(Proposed(proposal=Proposal(task_id="last", reason="nothing")))

    @property
    def _needed(self) -> int:
        return needed_passes(self.panel.rho, len(self.tasks), self.panel.rollouts)

    def _outcomes(self, block: str, passes: int, order: tuple[str, ...]) -> tuple[PanelOutcome, ...]:
        cells = [(task, ordinal) for task in order for ordinal in range(self.panel.rollouts)]
        return tuple(
            PanelOutcome(
                task_id=task,
                ordinal=ordinal,
                outcome="resolved" if n < passes else "unresolved",
                context_hash=digest([block, task]),
            )
            for n, (task, ordinal) in enumerate(cells)
        )

    def _judge(self, move: Proposal, passes: int, *, accept: bool) -> None:
        bank, self.query = self.state.bank, self.query + 1
        current = self.state.outcomes or ()
        order = task_order(self.tasks, self.state.recorded, current)
        found = self._outcomes(move.id, passes, order)
        if not accept:  # gates stop a rejection as early as they can
            now = [o.outcome for o in current]
            found = found[: decisive_prefix(now, [o.outcome for o in found], self._needed)]
        verdict = Verdict(
            proposal_id=move.id,
            decision="accept" if accept else "reject",
            epoch=self.epoch,
            query=self.query,
            panel_hash=self.panel.hash,
            bank_hash=self.last,
            pairing=self.panel.pairing,
            rho=self.panel.rho,
            n_tasks=len(self.tasks),
            rollouts=self.panel.rollouts,
            needed=self._needed,
            current_passes=self.passes,
            candidate_passes=sum(o.outcome == "resolved" for o in found),
            order=order,
            outcomes=found,
        )
        self._append(Proposed(proposal=move))
        self._append(Judged(verdict=verdict, bank_after=apply(bank, move).hash if accept else self.last))


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
    parser.add_argument("--items", type=int, default=10_000)
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
        exponents = []
        for command in COMMANDS:
            if args.only not in command or (command in SLOW and not args.only and args.items > 1_200):
                continue
            start, *found = (measure(command, bank, issue) for bank in (empty, *banks))
            beyond = [max(cost.seconds - start.seconds, 1e-3) for cost in found]
            exponent = math.log(beyond[2] / beyond[1]) / math.log(sizes[2] / sizes[1])
            row = " ".join(f"{cost.seconds:8.2f}" for cost in (start, *found))
            exponents.append(f"{command} {exponent:.2f}")
            print(f"{command:30} {row} {exponent:9.2f} {found[2].mebibytes:6.0f}", flush=True)
        print("exponents:", "; ".join(exponents))


if __name__ == "__main__":
    main()
