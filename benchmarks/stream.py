"""How close a run comes to its limit: useful work over workers, next to the paper's protocol phase by phase.

The loop, the gate, the store and the scheduler are the real ones; model calls are drawn, and time is virtual: it goes
on where every thread of the process waits. So machine and load do not matter, and a day takes minutes. SIMULATION.

A rollout makes 10 to 40 model calls (uniform), an extraction one; a call takes lognormal seconds (median 6, sigma 0.7;
of an extraction median 40), and grading 20. Of the tasks 28 of 100 are mixed: pass chances are Beta(0.3, 0.3). Of the
proposals 15 of 100 help, by 8 points where they are injected, 25 harm as much, and the others change nothing.

    python benchmarks/stream.py [--tasks 1000] [--workers 32] [--protocol paper]
    python benchmarks/stream.py --growth [TASKS,WORKERS ...]    # 100 to 10,000 tasks, 1 to 256 workers: memory, CPU
    python benchmarks/stream.py --real         # 200 tasks, 8 workers: real time, processes and `valve panel run`
"""

from __future__ import annotations

import argparse
import math
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from functools import cache, partial
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, NamedTuple

from msgspec.structs import replace

from valve_plugin import plugins
from valve_plugin.bank.entries import Baseline, Judged, Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import canonical, digest
from valve_plugin.errors import HorizonError
from valve_plugin.evolve.loop import evolve
from valve_plugin.evolve.open import fix_panel
from valve_plugin.evolve.steps import Steps
from valve_plugin.gate import judge, panel_run, plan
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Attempt, Item, Proposal, bank_hash
from valve_plugin.rollouts.workers import stop_event
from valve_plugin.tasks.task_set import load

TOPICS = 12
REAL_SCALE = 1 / 200
"""Seconds of real time per second of a model's."""


# ---- time


class VirtualTime:
    """Seconds that pass only while all threads of this process wait."""

    def __init__(self) -> None:
        self.now, self.spent = 0.0, 0.0
        self._sleeping: list[tuple[float, int, threading.Event]] = []
        self._number, self._lock = count(), threading.Lock()
        self._added = threading.Event()
        self._asleep: set[int] = set()
        self._files: dict[int, tuple[int, ...]] = {}
        self._own = threading.Thread(target=self._run, daemon=True, name=_CLOCK)
        self._own.start()

    def sleep(self, seconds: float, stop: threading.Event | None = None) -> None:
        """Wait; raise CancelledError where the rollout is ended."""
        woken, me = threading.Event(), threading.get_native_id()
        woken.awake = partial(self._asleep.discard, me)  # type: ignore[attr-defined]  # before it is woken
        self._asleep.add(me)
        with self._lock:
            until = self.now + seconds
            heappush(self._sleeping, (until, next(self._number), woken))
        self._added.set()
        if stop is not None:
            with _LISTENING:
                _STOPS.setdefault(stop, []).append(woken)
        woken.wait()
        if stop is not None and stop.is_set() and self.now < until:
            raise CancelledError

    def _run(self) -> None:
        while True:
            self._added.wait()
            if not self._quiet():
                continue
            with self._lock:
                if not self._sleeping:
                    self._added.clear()
                    continue
                self.now, _, woken = heappop(self._sleeping)
            woken.awake()  # type: ignore[attr-defined]
            woken.set()

    def _quiet(self) -> bool:
        """Whether no thread runs or wants to, besides this one; those that sleep here need no look."""
        before = self._others()
        time.sleep(0.0003)
        after = self._others()
        self.spent = time.thread_time()
        return before is not None and before == after

    def _others(self) -> list[bytes] | None:
        """Return how often each other thread was scheduled; None if one is not waiting."""
        found, threads = [], threading.enumerate()
        if len(self._files) > 2 * len(threads) + 50:  # of threads that have ended
            for tid in self._files.keys() - {thread.native_id for thread in threads}:
                for file in self._files.pop(tid):
                    os.close(file)
        for thread in threads:
            tid = thread.native_id
            if tid is None:  # it starts
                return None
            if tid in self._asleep or thread.name == _CLOCK:  # this one's, or an earlier run's
                continue
            try:
                state, times = self._look(tid)
            except OSError:  # it has ended
                continue
            if b") S " not in state:
                return None
            found.append(times)
        return found

    def _look(self, tid: int) -> tuple[bytes, ...]:
        if tid in self._files:
            with suppress(OSError):
                return tuple(os.pread(file, 512, 0) for file in self._files[tid])
            for file in self._files.pop(tid):  # of a thread that has ended, whose number another one has now
                os.close(file)
        self._files[tid] = tuple(os.open(f"/proc/self/task/{tid}/{name}", os.O_RDONLY) for name in _TOLD)
        return tuple(os.pread(file, 512, 0) for file in self._files[tid])


_TOLD = ("stat", "schedstat")
_CLOCK = "clock"
_STOPS: dict[threading.Event, list[threading.Event]] = {}
_LISTENING = threading.Lock()


def _notice_stops() -> None:
    """Wake a virtual sleeper when its event is set."""
    real = threading.Event.set

    def set_(self: threading.Event) -> None:
        real(self)
        with _LISTENING:
            woken = _STOPS.pop(self, [])
        for event in woken:
            event.awake()  # type: ignore[attr-defined]
            real(event)

    threading.Event.set = set_  # type: ignore[method-assign]


class RealTime:
    """Seconds of the wall clock, scaled; each sleeper is a process."""

    spent = 0.0

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        """Seconds of a model's time so far."""
        return (time.monotonic() - self._began) / REAL_SCALE

    def sleep(self, seconds: float, stop: threading.Event | None = None) -> None:
        """Wait for a process that sleeps."""
        process = subprocess.Popen(["sleep", str(seconds * REAL_SCALE)])
        while process.poll() is None:
            if stop is not None and stop.wait(0.005):
                process.kill()
                process.wait()
                raise CancelledError
            if stop is None:
                process.wait()


CLOCK: VirtualTime | RealTime = RealTime()
"""In processes that this one starts, time is real."""


# ---- the world


def draw(*key: Any) -> random.Random:
    """Return random numbers that depend on the key alone."""
    return random.Random(digest(list(key)))


@cache
def chance(task_id: str) -> float:
    """Return a task's chance to pass without a bank."""
    return draw("chance", task_id).betavariate(0.3, 0.3)


def rollout_seconds(task_id: str, ordinal: int, context_hash: str) -> float:
    """Return how long a rollout takes."""
    numbers = draw("time", task_id, ordinal, context_hash)
    return 20 + sum(numbers.lognormvariate(math.log(6), 0.7) for _ in range(numbers.randint(10, 40)))


def topic(task_id: str) -> int:
    """Return what a task is about."""
    return draw("topic", task_id).randrange(TOPICS)


class World:
    """The steps of a simulated agent and model."""

    @hookimpl
    def valve_attempt(self, settings: Any, task: Any, context: Any, ordinal: int, source: str) -> Attempt:
        """Wait as long as the rollout takes, and draw its outcome."""
        seconds = rollout_seconds(task.instance_id, ordinal, context.hash)
        CLOCK.sleep(seconds, stop_event() or PANEL_STOP)
        effect = 0.08 * (context.text.count("EFFECT+") - context.text.count("EFFECT-"))
        passed = draw("outcome", task.instance_id, ordinal, context.hash).random() < chance(task.instance_id) + effect
        return Attempt(
            id=digest([task.instance_id, ordinal, context.hash])[:16], task_id=task.instance_id, ordinal=ordinal,
            source=source, outcome="resolved" if passed else "unresolved", context_hash=context.hash,  # type: ignore[arg-type]
            context_items=context.items, recorded_at=0.0, seconds=seconds, cost_usd=0.1, steps=25,
        )  # fmt: skip

    @hookimpl
    def valve_extract(
        self, settings: Any, bank: Any, issue: str, attempts: Any, trajectories: Any, feedback: str
    ) -> Proposal:
        """Wait for the model's answer, and propose one skill."""
        task_id = attempts[0].task_id
        content = bank_hash(replace(bank, schema_version=1))  # the world stays the same where hashes of banks change
        key = digest([task_id, content, feedback, [a.outcome for a in attempts]])
        numbers = draw("extract", key)
        CLOCK.sleep(numbers.lognormvariate(math.log(40), 0.5), stop_event())
        sort = numbers.random()
        effect = "EFFECT+" if sort < 0.15 else "EFFECT-" if sort < 0.4 else "nothing"
        words = " ".join(f"topic{topic(task_id)}word{n}" for n in range(8))
        name = f"note_{key[:12]}"
        unique = " ".join(digest([key, n])[:10] for n in range(12))
        item = Item(
            kind="skill", name=name, text=f"For {words} {unique}", markdown=f"{words} {unique} {effect}",
            scope_hint=words, source_tasks=(task_id,), support=1,
        )  # fmt: skip
        return Proposal(task_id=task_id, items=(item,), model="simulated", prompt_hash="0" * 64)


def write_tasks(folder: Path, number: int) -> Path:
    """Write a task set of which nothing is ever run."""
    folder.mkdir()
    (folder / "source").mkdir()
    (folder / "repository.toml").write_text('name = "acme/stream"\nsource = "path:source"\ntest_roots = ["tests"]\n')
    rows = []
    for n in range(number):
        task_id = f"acme__stream.0a1b2c3d.func_pm__{n:08d}"
        words = " ".join(f"topic{topic(task_id)}word{k}" for k in range(8))
        row = {
            "instance_id": task_id, "repo": "acme/stream", "FAIL_TO_PASS": [f"tests/test_{n}.py::test"],
            "PASS_TO_PASS": [], "problem_statement": f"Report {n}: {words} is wrong.",
            "patch": f"diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a{n}\n+b{n}\n",
        }  # fmt: skip
        rows.append(canonical(row))
    (folder / "tasks.jsonl").write_bytes(b"\n".join(rows) + b"\n")
    return folder


PANEL_STOP = threading.Event()


def panel_here(
    settings: Any, bank_dir: Path, proposal: Any, *, observe: Any, charge: Any, unused: Any, confirm: bool = False
) -> Iterator[Any]:
    """What `valve panel run` does, in this process, so that its rollouts wait in virtual time."""
    store, hook = BankStore.open(bank_dir), manager().hook
    members = plan.panel_tasks(plan.fixed_panel(store), load(Path(settings.tasks)).tasks)
    planned = plan.panel_plan(settings, store, members, proposal, hook.valve_retrieve, confirm=confirm)
    stage = plan.staging(store, planned) if settings.early_stop and proposal else None
    lines: SimpleQueue[Any] = SimpleQueue()

    def run() -> None:
        with suppress(CancelledError):
            panel_run.run_panel(hook.valve_attempt, store.local, settings, planned, lines.put, stage)
        lines.put(None)

    PANEL_STOP.clear()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        while (line := lines.get()) is not None:
            if isinstance(line, panel_run.PanelLine):
                yield line
    finally:
        for stop in [stop for stop in list(_STOPS) if stop is not None]:
            stop.set()
        thread.join()


@cache
def _tasks(folder: Path) -> Any:
    return load(folder)


def install(site: Path) -> None:
    """Make this file an installed plugin, for `valve panel run`."""
    info = site / "world-1.0.dist-info"
    info.mkdir(parents=True)
    shutil.copy(__file__, site / "stream_world.py")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: world\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[minisweagent.plugins]\nworld = stream_world:World\n")
    sys.path.insert(0, str(site))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])


def manager() -> Any:
    """Return VALVE's steps with the world's in place of agent and model."""
    if isinstance(CLOCK, RealTime):
        return plugins.load(("valve", "world"))
    found = plugins.load(("valve",))
    found.register(World(), "world")
    found.check_pending()
    return found


# ---- runs


class Result(NamedTuple):
    """What one run came to."""

    seconds: float
    useful: float
    """Seconds of the rollouts that the ledger rests on."""
    rollouts: int
    gates: int
    accepts: int
    waste: Any
    cpu: float
    memory: float
    ledger: str


def run(folder: Path, tasks: Path, limit: int, workers: int, speculate: float, **given: Any) -> Result:
    """Run the loop over a stream; return its times."""
    global CLOCK
    CLOCK = RealTime() if isinstance(CLOCK, RealTime) else VirtualTime()
    store = BankStore.create(folder, "acme/stream")
    everything = {
        "tasks": str(tasks), "model": "simulated", "unsafe_local": True, "embedding": "hashing", "workers": workers,
        "speculate": speculate, "horizon": 1_000_000, "max_mixed": 1_000_000, "protocol": "paper",
        "plugins": ("valve", "world") if isinstance(CLOCK, RealTime) else ("valve",), **given,
    }  # fmt: skip
    settings = store.settings(everything)
    stream = fix_panel(store, settings, load(tasks))[:limit]
    began = time.process_time()
    steps = Steps(manager(), store, settings)
    with suppress(HorizonError):
        evolve(steps, stream)
    cpu = time.process_time() - began - CLOCK.spent
    useful, number = useful_work(store, steps, stream)
    judged = [e.verdict for e in store.entries() if isinstance(e, Judged)]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    ledger = digest((folder / "ledger.jsonl").read_text())[:12]
    accepts = sum(v.decision == "accept" for v in judged)
    return Result(CLOCK.now, useful, number, len(judged), accepts, steps.ahead.waste, cpu, memory, ledger)


def useful_work(store: BankStore, steps: Steps, stream: Any) -> tuple[float, int]:
    """Return the seconds and the number of the rollouts that the sequential protocol needs."""
    keys = []
    for entry in store.entries():
        if isinstance(entry, Judged):
            keys += [(o.task_id, o.ordinal, o.context_hash) for o in entry.verdict.outcomes]
        elif isinstance(entry, Baseline):
            keys += [(o.task_id, o.ordinal, o.context_hash) for o in entry.result.outcomes]
        elif isinstance(entry, Proposed):
            keys += [(n.task_id, n.ordinal, n.context_hash) for n in entry.attempts]
    known = {task for task, _, _ in keys}
    for task in stream:  # those that were not mixed leave no entry: each has three, of about the mean length
        if task.instance_id not in known:
            keys += [(task.instance_id, n, "0") for n in range(3)]
    return sum(rollout_seconds(*key) for key in keys), len(keys)


def shown(name: str, result: Result, workers: int) -> str:
    """Return one line about a run."""
    limit, w = result.useful / workers, result.waste
    wasted = w.ended + w.unused + w.waiting
    return (
        f"{name:<26} {result.seconds / 3600:8.1f} h, {result.seconds / limit:5.2f} times the limit "
        f"of {limit / 3600:.1f} h; {result.rollouts:,} useful rollouts ({w.early:,} early), {wasted:,} wasted; "
        f"{result.gates} gates, {result.accepts} accepts; {1000 * result.cpu / result.rollouts:.1f} ms CPU a rollout, "
        f"{result.memory:.0f} MB; ledger {result.ledger}"
    )


def compare(scratch: Path, number: int, workers: int, protocol: str, shares: list[float]) -> None:
    """Run both ways, and print the ratio that this file exists for."""
    tasks = write_tasks(scratch / "tasks", number + 50)
    found = []
    for share in shares:
        found.append(run(scratch / f"ahead{share}", tasks, number, workers, share, protocol=protocol))
        print(shown(f"speculate = {share}", found[-1], workers), flush=True)
    plain = run(scratch / "plain", tasks, number, workers, 0, protocol=protocol)
    print(shown("phase by phase, early stop", plain, workers), flush=True)
    paper = run(scratch / "paper", tasks, number, workers, 0, protocol=protocol, early_stop=False)
    print(shown("phase by phase", paper, workers), flush=True)
    if len({r.ledger for r in (*found, plain, paper)}) > 1:
        sys.exit("the ledgers differ")
    best = min(found, key=lambda r: r.seconds)
    print(
        f"SIMULATION, {number:,} tasks, {workers} workers: {best.seconds * workers / best.useful:.2f} times the limit "
        f"(useful work / workers), {paper.seconds / best.seconds:.1f} times as fast as phase by phase"
    )


def growth(sizes: list[str]) -> None:
    """Show how memory and CPU of the driver grow; each run is a process of its own."""
    for size in sizes or ["100,32", "1000,32", "10000,32", "1000,1", "1000,8", "1000,256"]:
        command = [sys.executable, __file__, "--one", size]
        print(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip(), flush=True)
    print("SIMULATION: see the CPU a rollout and the memory above")


@contextmanager
def scratch_folder(*, real: bool) -> Iterator[Path]:
    """Yield a folder in memory where there is one, so that a sync of a file takes no time."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() and not real else None) as folder:
        os.environ.update(
            VALVE_DATA=f"{folder}/data", MSWEA_GLOBAL_CONFIG_DIR=f"{folder}/mini", MSWEA_CONFIGURED="true"
        )
        yield Path(folder)


def in_virtual_time() -> None:
    """Keep all that waits in this process."""
    global CLOCK
    CLOCK = VirtualTime()
    _notice_stops()
    judge.plugins = SimpleNamespace(load=lambda names: manager())  # type: ignore[assignment]
    judge.load = _tasks  # type: ignore[assignment]
    judge.panel_process = panel_here  # type: ignore[assignment]


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, help="1000, or 200 in real time")
    parser.add_argument("--workers", type=int, help="32, or 8 in real time")
    parser.add_argument("--protocol", default="paper", choices=["paper", "fresh"])
    parser.add_argument("--speculate", type=float, nargs="+", default=[0.1])
    parser.add_argument("--growth", nargs="*", metavar="TASKS,WORKERS")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--real", action="store_true")
    args = parser.parse_args()
    with scratch_folder(real=args.real) as scratch:
        if args.real:
            install(scratch / "site")
        else:
            in_virtual_time()
        if args.one:
            number, workers = map(int, args.one.split(","))
            tasks = write_tasks(scratch / "tasks", number + 50)
            print(
                shown(
                    f"{number:,} tasks, {workers} workers", run(scratch / "bank", tasks, number, workers, 0.1), workers
                )
            )
        elif args.growth is not None:
            growth(args.growth)
        else:
            number, workers = args.tasks or (200 if args.real else 1000), args.workers or (8 if args.real else 32)
            compare(scratch, number, workers, args.protocol, args.speculate)


if __name__ == "__main__":
    main()
