"""Work that the loop will ask for, done by idle workers before it does; what is likely to be needed comes first.

`imagine` says what that may be, and with which odds. All results go to the journal under a key of all that determines
them, where the loop finds them; what it does not ask for is never read. So speculation changes time and cost alone. A
rollout that is started with odds p is expected to waste 1 - p rollouts. The setting `speculate` limits the sum of that,
with what was wasted already, to a share of the useful rollouts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeVar

from valve_plugin.agents.protocol import payment_of
from valve_plugin.errors import BudgetError, ValveError
from valve_plugin.gate.plan import PlannedRollout
from valve_plugin.records import Attempt, Bank
from valve_plugin.rollouts.workers import Workers, stop_event
from valve_plugin.words import plural

T = TypeVar("T")
W = TypeVar("W", "PlannedRollout", "Extraction")

LEAST = 0.02
"""Odds below which nothing is imagined, and what runs is ended."""
EVEN = 0.5
_CERTAIN = 0.999
_FAILURES = 3
"""Failures in a row after which idle workers wait for the loop's next step."""
_POLL_SECONDS = 0.2


class Extraction(NamedTuple):
    """An extraction to make."""

    key: str
    """Digest of all that determines it."""
    bank: Bank
    issue: str
    attempts: Sequence[Attempt]
    feedback: str


Work = PlannedRollout | Extraction
Key = tuple[str, str, int]


def key_of(work: Work) -> Key:
    """Return what tells this work from all other work of a run."""
    if isinstance(work, Extraction):
        return "", work.key, 0
    return work.task.instance_id, work.context.hash, work.ordinal


class Prospect:
    """What the loop may still ask for."""

    def __init__(self, bank: str = "") -> None:
        self.bank = bank
        """Hash of the present bank."""
        self.odds: dict[Key, float] = {}
        """Odds that it will, also of what is done."""
        self.work: dict[Key, Work] = {}
        """What of it is not done, in the order in which the likeliest future asks for it."""
        self.likely = 0
        """Pieces of that with even odds or better."""
        self.partial = False
        """Whether there is more, which nobody has looked at."""

    def add(self, work: Work, key: Key, odds: float, *, done: bool) -> None:
        """Add what is asked for, of this key, in one more of the futures, which exclude each other."""
        before = self.odds.get(key, 0.0)
        self.odds[key] = after = min(1.0, before + odds)
        if not done:
            self.work.setdefault(key, work)
            self.likely += before < EVEN <= after


def choose(prospect: Prospect, taken: Collection[Key], allowance: float, due: Collection[Key] = ()) -> list[Key]:
    """Return what to start, the likeliest first, as far as the expected waste fits. What is certain always does. Pure.

    Args:
        prospect: what may be asked for.
        taken: what runs already, or failed.
        allowance: rollouts that may still be wasted.
        due: what the loop waits for: it would start all of it now if nobody worked ahead.
    """
    chosen = []
    for key in sorted((k for k in prospect.work if k not in taken), key=lambda k: -prospect.odds[k]):
        odds = prospect.odds[key]
        allowance -= 1 - odds
        if odds >= LEAST and (allowance >= 0 or odds >= _CERTAIN or key in due):
            chosen.append(key)
    return chosen


def expected_waste(odds: Mapping[Key, float], keys: Collection[Key]) -> float:
    """Return how many of these rollouts are not going to be needed. Pure."""
    return sum(1 - odds.get(key, 0.0) for key in keys)


class Waste(NamedTuple):
    """Rollouts of a run so far, as `valve evolve` and telemetry tell them."""

    useful: int = 0
    """Rollouts that the ledger needed."""
    early: int = 0
    """Of those, the ones that idle workers made before they were asked for."""
    waiting: int = 0
    """Finished early and not asked for yet; what becomes of them shows later."""
    ended: int = 0
    """Ended because they were no longer likely to be needed."""
    unused: int = 0
    """Finished early and not going to be needed."""
    usd: float = 0.0
    """Cost of what ended or is not going to be needed."""

    @property
    def described(self) -> str:
        """What it cost, in words; empty if nothing was wasted."""
        wasted = self.ended + self.unused
        if not wasted:
            return ""
        money = f", ${self.usd:.2f}," if self.usd else ""
        return (
            f"saved time: {self.early:,} of {plural(self.useful, 'rollout')} ran ahead on free workers; "
            f"{wasted:,} more{money} ran in vain (--speculate 0 stops that)"
        )


class Speculation:
    """The workers of a run. The loop's own rollouts come first, and wait only for rollouts that are likely needed."""

    def __init__(self, early: Callable[[Work], Any], workers: int, share: float) -> None:
        """Set how work is done.

        Args:
            early: does work durably, perhaps for nothing.
            workers: rollouts at once, at most.
            share: wasted rollouts per useful one, at most.
        """
        self._early, self._workers, self._share = early, workers, share
        self._changed = threading.Condition(threading.RLock())
        self._pool: Workers | None = None
        self._foresee: Callable[[], Prospect] = Prospect
        self._affords: Callable[[int], bool] = lambda rollouts: True
        self._prospect, self._queue, self._age = Prospect(), list[Key](), 0
        self._running: dict[Key, Future[Any]] = {}
        self._ending: dict[Key, Future[Any]] = {}
        """What was told to end and has not yet: nobody else may start it meanwhile."""
        self._made: dict[Key, tuple[PlannedRollout, float]] = {}
        """Rollouts made early and not asked for yet, with their cost."""
        self._asked: set[Key] = set()
        """What the loop does itself, or waits for."""
        self._elsewhere: set[Key] = set()
        """What another process does for the loop."""
        self._due: dict[Key, PlannedRollout] = {}
        """What a gate waits for."""
        self._own: set[Key] = set()
        """What was started for that: no waste of ours, as it would have been started without us."""
        self._lost: set[Key] = set()
        self._failures = 0
        self._outside = self._inside = self._waiting = 0
        self._count = Waste()

    @property
    def active(self) -> bool:
        """Whether idle workers work."""
        return self._pool is not None

    @contextmanager
    def begun(self, foresee: Callable[[], Prospect], affords: Callable[[int], bool]) -> Iterator[None]:
        """Let idle workers work until the block ends, which ends all that runs.

        Args:
            foresee: says what the loop may still ask for.
            affords: whether the budget has so many more rollouts.
        """
        if self._workers < 2 or not self._share:  # a single worker is never idle for long
            yield
            return
        self._foresee, self._affords, self._pool = foresee, affords, Workers(self._workers)
        try:
            yield
        finally:
            with self._changed:
                pool, self._pool, self._queue = self._pool, None, []
                self._count = self._count._replace(
                    ended=self._count.ended + len({*self._rollouts_running()} - self._own)
                )
            pool.kill()

    @property
    def waste(self) -> Waste:
        """What was wasted so far."""
        with self._changed:
            ours = {key: usd for key, (_, usd) in self._made.items() if key not in self._own}
            unused = [usd for key, usd in ours.items() if self._odds(key) < LEAST]
            return self._count._replace(
                waiting=len(ours) - len(unused), unused=len(unused), usd=self._count.usd + sum(unused)
            )

    @property
    def unasked(self) -> list[PlannedRollout]:
        """The rollouts that were made early and not asked for yet."""
        with self._changed:
            return [cell for cell, _ in self._made.values()]

    def step(self, go_on: Callable[[], Collection[Key]]) -> None:
        """Look again, since the loop went on: `go_on` tells the foresight so, and returns what the ledger used."""
        with self._changed:
            self.used(go_on())
            self._failures, self._elsewhere = 0, set()
            self._look_again()

    def used(self, keys: Collection[Key]) -> None:
        """Note which rollouts the loop asked for."""
        with self._changed:
            self._own.difference_update(keys)
            early = sum(self._made.pop(key, None) is not None for key in keys)
            useful = self._count.useful + len(keys)
            self._count = self._count._replace(useful=useful, early=self._count.early + early)

    def outside(self, rollouts: int) -> None:
        """Set how many rollouts another process runs for the loop."""
        with self._changed:
            self._outside = rollouts
            self._fill()

    def first(self, work: W, make: Callable[[W], T]) -> T:
        """Return what work of the loop itself gives: wait for it if it is running already, else do it now."""
        with self._changed:  # from now on no idle worker starts it
            self._asked.add(key_of(work))
        try:
            done: T | None = self._result(work)
            if done is not None:
                return done
            with self._slot() if isinstance(work, PlannedRollout) else nullcontext():
                return make(work)
        finally:
            with self._changed:
                self._asked.discard(key_of(work))

    def finished(
        self, cells: Sequence[PlannedRollout], known: Callable[[PlannedRollout, Key], object]
    ) -> Iterator[PlannedRollout]:
        """Yield the rollouts of a gate as they are found or finish; end where idle workers bring no more of them."""
        left = {key_of(cell): cell for cell in cells} if self.active else {}
        self._due = left
        try:
            while left:
                with self._changed:
                    found = [key for key, cell in left.items() if known(cell, key)]
                    if not found:
                        self._look_again() if not self._coming(left) else None
                        if not self._coming(left):
                            self._elsewhere = set(left)
                            return
                        self._changed.wait(_POLL_SECONDS)
                yield from (left.pop(key) for key in found)
        finally:
            self._due = {}

    def _coming(self, keys: Collection[Key]) -> bool:
        return any(key in keys for key in (*self._running, *self._ending, *self._queue))

    def _result(self, work: Work) -> Any:
        """Wait for work that runs; None if it does not, or in vain."""
        with self._changed:
            job = self._running.get(key_of(work)) or self._ending.get(key_of(work))
            while job is not None and not job.done():
                self._raise_if_stopped()
                self._changed.wait(_POLL_SECONDS)
        try:
            result = job.result() if job is not None else None
        except (ValveError, CancelledError):
            return None
        return None if getattr(result, "outcome", "") == "errored" else result

    @contextmanager
    def _slot(self) -> Iterator[None]:
        """Take a worker for the loop's own rollout; the least likely of the others makes room, if it is unlikely."""
        with self._changed:
            self._waiting += 1
            try:
                if self._full() and (least := min(self._rollouts_running(), key=self._odds, default=None)):
                    self._end(least) if self._odds(least) < EVEN else None
                while self._full():
                    self._raise_if_stopped()
                    self._changed.wait(_POLL_SECONDS)
            finally:
                self._waiting -= 1
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._fill()
                self._changed.notify_all()

    def _full(self) -> bool:
        return self._inside + len(self._running) >= self._workers

    def _raise_if_stopped(self) -> None:
        stop = stop_event()
        if stop is not None and stop.is_set():
            raise CancelledError

    def _odds(self, key: Key) -> float:
        return self._prospect.odds.get(key, 0.0)

    def _rollouts_running(self) -> list[Key]:
        return [key for key, job in self._running.items() if key[0] and not job.done()]

    def _look_again(self) -> None:
        """Imagine anew, end what is not likely to be needed, and start what is. Called with the lock held."""
        if self._pool is not None:
            before, self._prospect, self._age = self._prospect, self._foresee(), 0
            if self._prospect.partial and self._prospect.bank == before.bank:
                for key in (*self._running, *self._made):  # what is further away is as likely as it was
                    self._prospect.odds.setdefault(key, before.odds.get(key, 0.0))
            for key in [key for key in self._running if self._odds(key) < LEAST]:
                self._end(key)
            self._queue = self._chosen() if self._failures < _FAILURES else []
            self._fill()
        self._changed.notify_all()

    def _end(self, key: Key) -> None:
        assert self._pool is not None
        self._ending[key] = job = self._running.pop(key)
        self._pool.cancel(job)
        self._count = self._count._replace(ended=self._count.ended + (bool(key[0]) and key not in self._own))

    def _fill(self) -> None:
        """Start what fits. Called with the lock held."""
        if self._pool is None:
            return
        free, taken, started = self._free(), self._taken(), list[Work]()
        while self._queue and len(started) < free:
            reserved = len(self._due) if self._odds(self._queue[0]) < _CERTAIN else 0
            if not self._affords(len(started) + 1 + reserved):  # what is left of a budget is for what is certain
                self._queue = []
                break
            if (key := self._queue.pop(0)) not in taken:
                started.append(self._prospect.work[key])
                self._own |= {key} & self._due.keys()
        for work in started:
            self._running[key_of(work)] = job = self._pool.submit(partial(self._early, work))
            job.add_done_callback(partial(self._ended, work))

    def _free(self) -> int:
        return self._workers - self._inside - self._waiting - self._outside - len(self._running)

    def _chosen(self) -> list[Key]:
        count = self._count
        ours = {*self._made, *self._rollouts_running()} - self._own
        spent = count.ended + expected_waste(self._prospect.odds, ours)
        allowed = self._share * (count.useful + self._workers) - spent
        return choose(self._prospect, self._taken(), allowed, self._due)

    def _taken(self) -> set[Key]:
        return {*self._running, *self._ending, *self._made, *self._asked, *self._elsewhere, *self._lost}

    def _ended(self, work: Work, job: Future[Any]) -> None:
        key = key_of(work)
        with self._changed:
            for jobs in (self._running, self._ending):
                if jobs.get(key) is job:
                    del jobs[key]
            error = None if job.cancelled() else job.exception()
            if isinstance(error, CancelledError) or job.cancelled():
                spent = payment_of(error).usd if isinstance(error, CancelledError) else 0.0
                self._count = self._count._replace(usd=self._count.usd + spent)
                self._changed.notify_all()
                return
            lost = error is not None or getattr(job.result(), "outcome", "") == "errored"
            self._failures = _FAILURES if isinstance(error, BudgetError) else self._failures + 1 if lost else 0
            if lost:
                self._lost.add(key)
            elif isinstance(work, PlannedRollout):
                self._made[key] = work, job.result().cost_usd
            self._age += 1
            if isinstance(work, Extraction) or self._age * (4 if self._queue else 16) >= self._workers:
                self._look_again()
            else:
                self._fill()
                self._changed.notify_all()
