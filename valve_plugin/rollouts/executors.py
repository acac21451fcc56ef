"""Executors of rollouts: a small interface, so that a cluster can replace the pool of threads.

Outcomes do not depend on the executor, because each rollout depends only on its arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")

_STOP: ContextVar[threading.Event | None] = ContextVar("valve_executor_stop", default=None)


class Executor(Protocol):
    """Runs jobs in parallel."""

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Queue a job; return a future with its result or exception (CancelledError after `kill`)."""
        ...

    def cancel(self, job: Future[Any]) -> None:
        """Remove a job from the queue, or end its rollout; its future ends with CancelledError, unless it is done."""
        ...

    def kill(self) -> None:
        """Remove queued jobs and end running rollouts; their futures end with CancelledError. Idempotent."""
        ...


class LocalExecutor:
    """Threads of this process; each rollout is a killable process of its own."""

    def __init__(self, workers: int) -> None:
        self._stops: WeakKeyDictionary[Future[Any], threading.Event] = WeakKeyDictionary()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="valve-rollout")

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """See Executor."""
        stop = threading.Event()
        future = self._pool.submit(_stoppable, job, stop)
        self._stops[future] = stop
        return future

    def cancel(self, job: Future[Any]) -> None:
        """See Executor."""
        if not job.cancel():
            self._stops[job].set()

    def kill(self) -> None:
        """See Executor."""
        for stop in list(self._stops.values()):
            stop.set()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Wait for all jobs; after an error (or Ctrl-C) kill them instead."""
        if kind is not None:
            self.kill()
        self._pool.shutdown(wait=True)


def stop_event() -> threading.Event | None:
    """Return the event that is set when this job is cancelled or its executor is killed; None outside of a job."""
    return _STOP.get()


def _stoppable(job: Callable[[], T], stop: threading.Event) -> T:
    token = _STOP.set(stop)
    try:
        return job()
    finally:
        _STOP.reset(token)
