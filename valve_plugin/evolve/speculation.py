"""Attempts at the stream's next tasks, made by workers that would otherwise be idle.

They use the current bank's context and the same journal as all others. So they are the attempts that the sequential
protocol makes later, unless an accept changes the context first; then they are wasted. Ordinals come from the ledger,
which is not written here. So running ahead changes only time and cost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from types import TracebackType

from valve_plugin.errors import ValveError
from valve_plugin.gate.plan import PlannedRollout
from valve_plugin.records import Attempt
from valve_plugin.rollouts.workers import Workers, stop_event

RunCell = Callable[[PlannedRollout], Attempt]

_POLL_SECONDS = 0.2
_CellKey = tuple[str, str, int]


class Speculation:
    """A queue with lower priority than the protocol's own rollouts. A context manager: its end stops all rollouts."""

    def __init__(self, run: RunCell, workers: int) -> None:
        """Set the function that runs a planned rollout durably, and the total number of workers."""
        self._run, self._workers, self._busy = run, workers, 0
        self._planned: dict[_CellKey, PlannedRollout] = {}
        self._running: dict[_CellKey, Future[Attempt]] = {}
        self._lock = threading.RLock()
        self._executor = Workers(workers)

    def plan(self, cells: Sequence[PlannedRollout]) -> None:
        """Set the rollouts to run, the next one first; end running rollouts that are not among them."""
        with self._lock:
            self._planned = {_key(cell): cell for cell in cells}
            for key in [key for key in self._running if key not in self._planned]:
                self._executor.cancel(self._running.pop(key))
            for key in self._running:
                self._planned.pop(key)
        self._fill()

    def busy(self, workers: int) -> None:
        """Set how many workers the protocol itself needs now; running rollouts are not ended for it."""
        with self._lock:
            self._busy = workers
        self._fill()

    def first(self, cell: PlannedRollout) -> Attempt:
        """Return the attempt of a planned rollout: wait for it if it is running already, else run it now."""
        with self._lock:
            self._planned.pop(_key(cell), None)
            begun = self._running.pop(_key(cell), None)
        try:
            done = _awaited(begun) if begun else None
        except ValveError:
            done = None
        return done if done is not None and done.outcome != "errored" else self._run(cell)

    def __enter__(self) -> Speculation:
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
    """Wait for a job; raise CancelledError if the waiting job itself is cancelled."""
    stop = stop_event()
    while not job.done():
        if stop is not None and stop.is_set():
            raise CancelledError
        wait([job], timeout=_POLL_SECONDS)
    return job.result()


def _key(cell: PlannedRollout) -> _CellKey:
    return cell.task.instance_id, cell.context.hash, cell.ordinal
