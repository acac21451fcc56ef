"""Workers and a budget that several runs share: the process that started them lends a worker to one rollout at a time.

A run asks over a socket; what it holds ends with its connection, however its process ends. Outcomes do not depend on
who waits for whom, since each rollout depends only on its arguments.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from valve_plugin.errors import BudgetError, InfrastructureError
from valve_plugin.rollouts.workers import stop_event
from valve_plugin.sandbox.scratch import private_folder
from valve_plugin.theory import budget
from valve_plugin.theory.budget import BudgetLimits, Spending

VARIABLE = "VALVE_SHARE"
"""Names the socket for the runs that share."""
_POLL_SECONDS = 0.2


class Share:
    """What the runs share. A context manager: it answers until the block ends."""

    def __init__(self, workers: int, limits: BudgetLimits | None = None) -> None:
        """Set the workers, and the limits of all runs together."""
        self._limits, self._started = limits or BudgetLimits(), time.monotonic()
        self._spent, self._running = Spending(), 0
        self._lock = threading.Lock()
        self._workers = threading.Semaphore(workers)
        self._claims: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._folder = private_folder("valve-share-")
        self.address = str(Path(self._folder.name, "socket"))
        self._listener = Listener(self.address, backlog=1024)

    def __enter__(self) -> Share:
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.close()
        self._folder.cleanup()

    def reached(self) -> str:
        """Return the limit that lets no rollout start any more, in words; empty while there is none."""
        with self._lock:
            return self._reached()

    def _reached(self) -> str:
        spent = self._spent._replace(hours=(time.monotonic() - self._started) / 3600)
        each = spent.usd / spent.rollouts if spent.rollouts else 0.0
        if not (limit := budget.reached_limit(self._limits, spent, self._running, each)):
            return ""
        used = budget.describe_spending(spent, self._running, each if self._limits.usd else 0.0)
        return f"the budget of {limit} that all runs share is used up ({used})"

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept(),), daemon=True).start()

    def _serve(self, run: Connection) -> None:
        """Answer a request for a worker (empty), what only one may do (a name), or the limit that is reached (None).

        A number is USD that were spent without a worker.
        """
        with run, suppress(OSError, EOFError):
            asked = run.recv()
            if isinstance(asked, float):
                with self._lock:
                    self._spent = self._spent.plus(asked)
            elif asked is None:
                run.send(self.reached())
            elif asked:
                with self._claims[asked]:
                    run.send("")
                    run.recv()
            else:
                with self._workers:
                    with self._lock:
                        reached = self._reached()
                        self._running += not reached
                    lent, usd = False, 0.0
                    try:
                        run.send(reached)  # fails where nobody waits any more
                        lent = not reached
                        usd = run.recv() if lent else 0.0
                    finally:
                        with self._lock:
                            self._running -= not reached
                            self._spent = self._spent.plus(usd, int(lent))


class Worker:
    """The worker of one rollout."""

    def __init__(self) -> None:
        self.usd = 0.0
        """What the rollout cost; set it before its end."""


@contextmanager
def worker() -> Iterator[Worker]:
    """Hold one of the shared workers during the block; where nothing is shared, just run it.

    Raises:
        BudgetError: the shared budget is used up.
        CancelledError: this job was cancelled while it waited.
        InfrastructureError: the process that shares is gone.
    """
    held = Worker()
    with _asked("") as connection:
        yield held
        if connection:
            with suppress(OSError):
                connection.send(held.usd)


@contextmanager
def claim(name: str) -> Iterator[None]:
    """Be the only one among the runs that share with this name; another one waits until the block ends."""
    with _asked(name):
        yield


def reached() -> str:
    """Return the limit of the shared budget that is reached, in words; empty where none is, or nothing is shared."""
    try:
        with _asked(None):
            return ""
    except BudgetError as e:
        return str(e)


def spend(usd: float) -> None:
    """Charge the shared budget with what was spent without a worker."""
    if usd and (address := os.environ.get(VARIABLE)):
        with suppress(OSError), Client(address) as connection:
            connection.send(usd)


@contextmanager
def _asked(what: str | None) -> Iterator[Connection | None]:
    address = os.environ.get(VARIABLE)
    if not address:
        yield None
        return
    stop = stop_event()
    try:
        connection = Client(address)
        connection.send(what)
        while not connection.poll(_POLL_SECONDS):
            if stop is not None and stop.is_set():
                connection.close()
                raise CancelledError
        refused = connection.recv()
    except (OSError, EOFError) as e:
        raise InfrastructureError("the process that started this run is gone; start it again") from e
    with connection:
        if refused:
            raise BudgetError(refused)
        yield connection
