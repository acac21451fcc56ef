"""What stands between a run and its next rollout: further tries, a circuit breaker and a budget, for all workers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from msgspec.structs import replace

from valve_plugin.config import Settings
from valve_plugin.errors import BudgetError, InfrastructureError
from valve_plugin.gate.rollout import RunAttempt
from valve_plugin.records import Attempt, Context, Source, Task
from valve_plugin.rollouts import paid
from valve_plugin.rollouts.executors import stopping
from valve_plugin.rollouts.faults import LASTING
from valve_plugin.rollouts.waits import Wait, bare, heard
from valve_plugin.theory import budget
from valve_plugin.theory.budget import Limits, Spent

T = TypeVar("T")
Observe = Callable[[str, Mapping[str, Any]], None]
Spend = Callable[[float, int], None]
"""Told USD and rollouts."""

PAUSES = (1.0, 5.0, 20.0, 60.0, 60.0, 60.0)
"""Seconds before each further try of a rollout whose host or provider failed, half of them drawn by lot."""
IN_A_ROW = 3
"""Tries that a provider failed, or whole rollouts that the host failed, with no success of any worker between them."""

_UNCOUNTED = (
    "mini counts no cost for {model}, so --budget-usd cannot hold: limit the run with --max-rollouts N or --max-hours "
    "H instead, or unset MSWEA_COST_TRACKING=ignore_errors"
)


class Guard:
    """The attempt step with further tries, until it is no use or too dear: then every call raises what a person can do.

    Failures of the infrastructure are no outcomes. A refused key or a used-up quota opens the circuit at once, a
    provider or host that fails again and again a little later. What ran is kept; a new process starts closed.
    """

    def __init__(
        self,
        attempt: RunAttempt,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        lost_in_a_row: int = IN_A_ROW,
        observe: Observe = lambda name, data: None,
        usd_each: float = 0.0,
        spending: Spend = lambda usd, rollouts: None,
    ) -> None:
        """Take the step and its limits.

        Args:
            attempt: the step.
            limits: of the run.
            clock: seconds.
            lost_in_a_row: rollouts that the host may fail one after the other.
            observe: told, by any thread, about waiting (one wait at a time, however many workers wait) and paused.
            usd_each: what a rollout is expected to cost, until one has ended here; 0: unknown.
            spending: told, by any thread, of each rollout as it starts and of its cost as it ends; only under limits.
        """
        self._attempt = attempt
        self._limits, self._clock, self._started = limits or Limits(), clock, clock()
        self._spent, self._running = Spent(), 0
        self._ran: set[tuple[str, str, int]] = set()
        self._lock = threading.Lock()
        self._failed = self._lost = 0
        self._lost_in_a_row = lost_in_a_row
        self._why = ""
        self._observe, self._told_until = observe, 0.0
        self._usd_each = usd_each
        self._spending: Spend = spending if any(self._limits) else lambda usd, rollouts: None
        self._lent = False

    def __call__(self, *, settings: Settings, task: Task, context: Context, ordinal: int, source: Source) -> Attempt:
        """Run one rollout, again where the infrastructure ended it; see `hookspecs.Steps.valve_attempt`.

        Raises:
            InfrastructureError: the circuit is open.
            BudgetError: a limit is reached.
        """
        for number, pause in enumerate((*PAUSES, None), 1):
            done = self._once(settings=settings, task=task, context=context, ordinal=ordinal, source=source)
            if done.outcome != "errored" or self._why or pause is None:
                break
            seconds = pause * (0.5 + random.random() / 2)  # noqa: S311 (spreads load, no secret)
            said = f"a rollout of {task.instance_id} was lost ({bare(done.reason)})"
            self.waits(Wait(said=said, tried=number, at_most=len(PAUSES) + 1, seconds=seconds))
            _sleep(seconds)
        self._ran.add(_key(done))
        with self._lock:
            self._lost = self._lost + 1 if done.outcome == "errored" else 0
            if self._lost >= self._lost_in_a_row:
                self._pause(done.reason)
        return done

    def _once(self, **about: Any) -> Attempt:
        self.check()
        with self._lock:
            if self._lent:
                raise BudgetError("what is left of the budget is the gate's until its rollouts have ended")
            self._require(self._running)
            self._running += 1
        usd = 0.0
        try:
            self._spending(0.0, 1)
            with heard(self.waits):
                done = self._attempt(**about)
            usd = done.cost_usd
        except CancelledError as e:
            usd = paid.of(e).usd
            raise
        finally:
            with self._lock:
                self._running -= 1
                self._spent = self._spent.plus(usd, 1)
            self._spending(usd, 0)
        with self._lock:
            if done.outcome != "errored":
                self._failed = 0
                if self._limits.usd and done.steps and not done.cost_usd:
                    self._pause(_UNCOUNTED.format(model=done.model))
            elif done.fault:
                self._failed += 1
                if done.fault in LASTING or self._failed >= IN_A_ROW:
                    self._pause(done.reason)
        return done

    def waits(self, wait: Wait) -> None:
        """Tell about a wait, unless another one that was told of goes on, or the run pauses: nothing follows that."""
        with self._lock:
            now = self._clock()
            if self._why or now < self._told_until:
                return
            self._told_until = now + wait.seconds
        self._observe(
            "waiting", {"said": wait.said, "try": wait.tried, "of": wait.at_most, "seconds": round(wait.seconds, 1)}
        )

    def _pause(self, why: str) -> None:
        """Open the circuit, under the lock."""
        if not self._why:
            self._why = why
            self._observe("paused", {"reason": why})

    def check(self) -> None:
        """Go on only while the circuit is closed.

        Raises:
            InfrastructureError: it is open; what to do is said.
        """
        if self._why:
            raise InfrastructureError(f"{self._why}; the run pauses, nothing is lost")

    def ran(self, attempt: Attempt) -> bool:
        """Whether this process ran it; else it came out of the journal and cost nothing."""
        return _key(attempt) in self._ran

    def spend(self, usd: float, rollouts: int) -> None:
        """Count what another process, or a call that is no rollout, has spent of this run's budget."""
        with self._lock:
            self._spent = self._spent.plus(usd, rollouts)

    def left(self) -> Limits:
        """Return what is left of the budget.

        Raises:
            BudgetError: nothing is.
        """
        with self._lock:
            return self._left()

    def _left(self) -> Limits:
        """What neither was spent nor runs, under the lock."""
        self._require(self._running)
        total = self._total()
        return budget.left(self._limits, total.plus(self._running * self._each(total), self._running))

    @contextmanager
    def lend(self, told: Callable[[], Iterable[Mapping[str, Any]]]) -> Iterator[Limits]:
        """Lend what is left to panel runs, processes of their own, and charge what they told of by the end.

        Meanwhile no rollout starts here that would use up what was lent.

        Args:
            told: all that such runs have noted of their `spending`, oldest first.

        Raises:
            BudgetError: nothing is left.
        """
        before = sum(1 for _ in told())
        with self._lock:
            left = self._left()
            self._lent = bool(left.usd or left.rollouts)
        try:
            yield left
        finally:
            for noted in islice(told(), before, None):
                self.spend(noted["cost_usd"], noted["rollouts"])
            self._lent = False

    def used_up(self) -> BudgetError:
        """Return the error of a run whose part, a process of its own, got no further with what was left for it."""
        try:
            left = self.left()
        except BudgetError as e:
            return e
        told = budget.started(self._total(), 0, 0.0)
        return BudgetError(f"of the budget of {budget.words(self._limits)} too little is left for another rollout: "
                           f"{budget.words(left)} ({told})")  # fmt: skip

    def _total(self) -> Spent:
        return self._spent._replace(hours=(self._clock() - self._started) / 3600)

    def _require(self, running: int) -> None:
        total = self._total()
        each = self._each(total)
        if reached := budget.reached(self._limits, total, running, each):
            used = budget.started(total, running, each if self._limits.usd else 0.0)
            raise BudgetError(f"the budget of {reached} is used up ({used})")

    def _each(self, total: Spent) -> float:
        return total.usd / total.rollouts if total.rollouts else self._usd_each


def _sleep(seconds: float) -> None:
    """Wait, but no longer than the executor runs."""
    stop = stopping()
    stop.wait(seconds) if stop else time.sleep(seconds)


def _key(attempt: Attempt) -> tuple[str, str, int]:
    return attempt.task_id, attempt.context_hash, attempt.ordinal


def limits_of(settings: Settings) -> Limits:
    """Return the limits that settings set."""
    return Limits(settings.budget_usd or 0.0, settings.max_rollouts or 0, settings.max_hours or 0.0)


def limited(settings: Settings, limits: Limits) -> Settings:
    """Return settings with these limits."""
    usd, rollouts, hours = limits
    return replace(settings, budget_usd=usd or None, max_rollouts=rollouts or None, max_hours=hours or None)


def finished(jobs: Iterable[Future[T]]) -> Iterator[tuple[Future[T], T]]:
    """Yield each job with what it returned. A budget that is used up is raised last, when what still ran has ended.

    Raises:
        BudgetError: some jobs did not start.
    """
    stopped: BudgetError | None = None
    for job in jobs:
        try:
            result = job.result()
        except BudgetError as e:
            stopped = e
        else:
            yield job, result
    if stopped:
        raise stopped
