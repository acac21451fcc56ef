"""Workers of a run: threads, each of which waits for one rollout that it can end.

Where the rollout itself runs is up to its attempt step: in a process of this machine (`rollouts.attempt`), or on a node
of a cluster (`rollouts.ray_executor`). Outcomes do not depend on it, since each rollout depends only on its arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_STOP: ContextVar[threading.Event | None] = ContextVar("valve_executor_stop", default=None)


class Workers:
    """Run jobs in parallel."""

    def __init__(self, workers: int) -> None:
        self._stops: WeakKeyDictionary[Future[Any], threading.Event] = WeakKeyDictionary()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="valve-rollout")

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Queue a job; return a future with its result or exception (CancelledError after `kill`)."""
        stop = threading.Event()
        future = self._pool.submit(_stoppable, job, stop)
        self._stops[future] = stop
        return future

    def cancel(self, job: Future[Any]) -> None:
        """Remove a job from the queue, or end its rollout; its future ends with CancelledError, unless it is done."""
        if not job.cancel():
            self._stops[job].set()

    def kill(self) -> None:
        """Remove queued jobs and end running rollouts; their futures end with CancelledError. Idempotent."""
        for stop in list(self._stops.values()):
            stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for all jobs; after an error (or Ctrl-C) kill them instead."""
        if kind is not None:
            self.kill()
        self._pool.shutdown(wait=True)


def stop_event() -> threading.Event | None:
    """Return the event that is set when this job is cancelled or its workers are killed; None outside of a job."""
    return _STOP.get()


def _stoppable(job: Callable[[], T], stop: threading.Event) -> T:
    token = _STOP.set(stop)
    try:
        return job()
    finally:
        _STOP.reset(token)
