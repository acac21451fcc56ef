"""The panel run: every rollout of a plan, several at once, each reported the moment it is durable."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Any, NoReturn

import msgspec

from valve_plugin.bank.local import LocalStore
from valve_plugin.codec import decode
from valve_plugin.config import Settings
from valve_plugin.errors import BudgetError
from valve_plugin.gate.guard import Guard, limits_of
from valve_plugin.gate.plan import Cell, Plan, Stage
from valve_plugin.gate.rollout import SPENDING, RunAttempt, durable, outcome, telemetry
from valve_plugin.records import Attempt, PanelOutcome
from valve_plugin.rollouts.executors import LocalExecutor
from valve_plugin.theory.budget import each


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the stream that `valve panel run` prints."""

    outcome: PanelOutcome
    """What the ledger may keep."""
    telemetry: dict[str, Any] = {}
    """What it took; nothing that decides reads it."""


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line between them: what happens meanwhile, for whoever watches."""

    event: str
    data: dict[str, Any] = {}


class _Kind(msgspec.Struct):
    event: str = ""


def read(raw: bytes) -> Line | Told:
    """Return one line of the stream.

    Raises:
        RecordError: it is none.
    """
    where = "valve panel run"
    if decode(raw, _Kind, where=where).event:
        return decode(raw, Told, where=where)
    return decode(raw, Line, where=where)


class _Starts:
    """Starts the rollouts of a plan, each on a worker's thread, until those that have ended decide."""

    def __init__(self, start: Callable[[Cell], Attempt], stage: Stage | None) -> None:
        self._start, self._stage = start, stage
        self._found: dict[tuple[str, int], PanelOutcome] = {}
        self._lock = threading.Lock()
        self._decided = stage is not None and stage({})[1] is not None

    def __call__(self, cell: Cell) -> Attempt | None:
        """Return the rollout; None: it was not needed any more.

        The worker that ends the deciding one takes it in before it turns to its next: the reader of the stream, who
        judges, would be too late for that.
        """
        if self._decided:
            return None
        done = self._start(cell)
        if self._stage:
            with self._lock:
                self._found[cell.task.instance_id, cell.ordinal] = outcome(cell, done)
                self._decided = self._decided or self._stage(self._found)[1] is not None
        return done


def run(
    attempt: RunAttempt, local: LocalStore, settings: Settings, plan: Plan, stage: Stage | None = None
) -> Iterator[Line | Told]:
    """Yield each rollout of the plan as it ends. They start in canonical order and may end in any.

    Leaving the iterator early ends the rollouts that still run.

    Args:
        stage: says whether what has ended decides; then nothing more starts. None: the whole plan runs.

    Raises:
        InfrastructureError: host or provider fail again and again; the rollouts that still ran are ended.
        BudgetError: a limit of the settings is reached; the rollouts that still ran are awaited and yielded first.
    """
    heard: SimpleQueue[Told | Future[Attempt | None]] = SimpleQueue()
    guard = Guard(
        attempt,
        limits_of(settings),
        observe=lambda name, data: heard.put(Told(name, dict(data))),
        usd_each=_usd_each(local, settings),
        spending=lambda usd, rollouts: local.telemetry(SPENDING, {"cost_usd": usd, "rollouts": rollouts}),
    )
    with LocalExecutor(settings.workers) as executor:
        starts = _Starts(lambda cell: durable(guard, local, settings, cell, "panel"), stage)
        jobs = [executor.submit(partial(starts, cell)) for cell in plan.cells]
        cells = dict(zip(jobs, plan.cells, strict=True))
        for job in jobs:
            job.add_done_callback(heard.put)
        left, stopped = len(jobs), None
        while left:
            news = heard.get()
            if isinstance(news, Told):
                yield news
                continue
            left -= 1
            try:
                done = news.result()
            except BudgetError as e:
                stopped = e
                continue
            if done is None:
                continue
            line = _line(cells[news], done, replayed=not guard.ran(done))
            guard.check()  # before an errored rollout can count for anything
            yield line
        if stopped:
            raise stopped


def _usd_each(local: LocalStore, settings: Settings) -> float:
    """What a rollout is expected to cost before one has ended: else all workers start one on the last cent."""
    if not settings.budget_usd:
        return 0.0
    return (
        each(r for r in local.told("rollouts") if r.get("model", "") in ("", settings.model or r.get("model"))).usd
        or 0.0
    )


def stop_with(parent: int) -> None:
    """End this process like an interrupt when it is told to terminate, or when its parent is gone.

    Args:
        parent: process id of who asked for the run; 0 when nobody waits for it.
    """

    def interrupt(signum: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if parent:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


def _line(cell: Cell, attempt: Attempt, *, replayed: bool) -> Line:
    return Line(outcome=outcome(cell, attempt), telemetry={**telemetry(attempt), "replayed": replayed})
