"""The panel run: every rollout of a plan, several at once, each reported the moment it is durable."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
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
from valve_plugin.gate.plan import Cell, Plan
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


def run(attempt: RunAttempt, local: LocalStore, settings: Settings, plan: Plan) -> Iterator[Line | Told]:
    """Yield each rollout of the plan as it ends. They start in canonical order and may end in any.

    Leaving the iterator early ends the rollouts that still run.

    Raises:
        InfrastructureError: host or provider fail again and again; the rollouts that still ran are ended.
        BudgetError: a limit of the settings is reached; the rollouts that still ran are awaited and yielded first.
    """
    heard: SimpleQueue[Told | Future[Attempt]] = SimpleQueue()
    guard = Guard(
        attempt,
        limits_of(settings),
        observe=lambda name, data: heard.put(Told(name, dict(data))),
        usd_each=_usd_each(local, settings),
        spending=lambda usd, rollouts: local.telemetry(SPENDING, {"cost_usd": usd, "rollouts": rollouts}),
    )
    with LocalExecutor(settings.workers) as executor:
        jobs = [executor.submit(partial(durable, guard, local, settings, cell, "panel")) for cell in plan.cells]
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
