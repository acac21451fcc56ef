"""Attempts at the stream's next tasks, made by workers that would be idle.

They run under the context that the current bank gives, and are kept in the same journal as all others. So what they
give is what the sequential protocol would have got there, unless an accept changes that context first: then it is
waste. Ordinals come from the ledger, which nothing here writes; running ahead changes time and cost, nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from types import TracebackType

from valve_plugin.errors import ValveError
from valve_plugin.gate.plan import Cell
from valve_plugin.records import Attempt
from valve_plugin.rollouts.executors import LocalExecutor, stopping

Run = Callable[[Cell], Attempt]

_POLL_SECONDS = 0.2
_Key = tuple[str, str, int]


class Ahead:
    """A queue behind the protocol's own rollouts. Use it as a context manager: leaving it ends what still runs."""

    def __init__(self, run: Run, workers: int) -> None:
        """Take what runs a cell, durably, and how many workers there are in all."""
        self._run, self._workers, self._busy = run, workers, 0
        self._planned: dict[_Key, Cell] = {}
        self._running: dict[_Key, Future[Attempt]] = {}
        self._lock = threading.RLock()
        self._executor = LocalExecutor(workers)

    def plan(self, cells: Sequence[Cell]) -> None:
        """Set what is worth running, the next first; what runs and is not among it is ended."""
        with self._lock:
            self._planned = {_key(cell): cell for cell in cells}
            for key in [key for key in self._running if key not in self._planned]:
                self._executor.cancel(self._running.pop(key))
            for key in self._running:
                self._planned.pop(key)
        self._fill()

    def busy(self, workers: int) -> None:
        """Say how many workers the protocol itself can use now; what runs ahead already is not ended for it."""
        with self._lock:
            self._busy = workers
        self._fill()

    def first(self, cell: Cell) -> Attempt:
        """Return the cell's attempt: the one that runs ahead, if one does, else run it now."""
        with self._lock:
            self._planned.pop(_key(cell), None)
            begun = self._running.pop(_key(cell), None)
        try:
            done = _awaited(begun) if begun else None
        except ValveError:
            done = None
        return done if done is not None and done.outcome != "errored" else self._run(cell)

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._planned = {}
        self._executor.kill()

    def _fill(self) -> None:
        begun = []
        with self._lock:
            self._running = {key: job for key, job in self._running.items() if not job.done()}
            while self._planned and len(self._running) + self._busy < self._workers:
                key = next(iter(self._planned))
                job = self._executor.submit(partial(self._run, self._planned.pop(key)))
                self._running[key] = job
                begun.append(job)
        for job in begun:
            job.add_done_callback(lambda _: self._fill())


def _awaited(job: Future[Attempt]) -> Attempt:
    """Wait for a job, unless the executor of whoever waits is killed."""
    stop = stopping()
    while not job.done():
        if stop is not None and stop.is_set():
            raise CancelledError
        wait([job], timeout=_POLL_SECONDS)
    return job.result()


def _key(cell: Cell) -> _Key:
    return cell.task.instance_id, cell.context.hash, cell.ordinal
