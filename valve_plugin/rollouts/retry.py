"""Retries, circuit breaker and budget of rollouts, shared by all workers of a run."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec.structs import replace

from valve_plugin.agents.faults import LASTING_FAULTS, without_wrappers
from valve_plugin.agents.protocol import payment_of
from valve_plugin.agents.retry import listen_to_waits
from valve_plugin.config import Settings
from valve_plugin.errors import BudgetError, InfrastructureError
from valve_plugin.events import AgentsWorking, Observe, RunPaused, Waiting, ignore
from valve_plugin.records import Attempt, Context, Source, Task
from valve_plugin.rollouts import share
from valve_plugin.rollouts.workers import stop_event
from valve_plugin.theory import budget
from valve_plugin.theory.budget import BudgetLimits, Spending

T = TypeVar("T")
OnSpend = Callable[[float, int], None]
"""Receives spent USD and the number of started rollouts."""

PAUSES = (1.0, 5.0, 20.0, 60.0, 60.0, 60.0)
"""Seconds before each further try after a failure of host or provider; half of each is random."""
FAILURES_IN_A_ROW = 3
"""Number of consecutive failures, over all workers, that open the circuit."""

STEPS_SECONDS = 5.0
"""Least seconds between two events about the steps of running rollouts."""

_NO_COST = (
    "mini counts no cost for {model}, so --budget-usd cannot hold: limit the run with --max-rollouts N or --max-hours "
    "H instead, or unset MSWEA_COST_TRACKING=ignore_errors"
)


class RunAttempt(Protocol):
    """The attempt step as implemented by the plugins of a run."""

    def __call__(self, *, settings: Settings, task: Task, context: Context, ordinal: int, source: Source) -> Attempt:
        """See `hookspecs.StepHooks.valve_attempt`."""
        ...


class Guard:
    """The attempt step with retries, a circuit breaker and a budget.

    Failures of the infrastructure are tried again. A refused key or a used-up quota opens the circuit at once, repeated
    failures of provider or host open it later; then each call raises the reason. A new process starts with a closed
    circuit.
    """

    def __init__(
        self,
        attempt: RunAttempt,
        limits: BudgetLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        lost_in_a_row: int = FAILURES_IN_A_ROW,
        observe: Observe = ignore,
        usd_each: float = 0.0,
        spending: OnSpend = lambda usd, rollouts: None,
    ) -> None:
        """Set the step and its limits.

        Args:
            attempt: the step.
            limits: budget of the run.
            clock: returns seconds.
            lost_in_a_row: consecutive lost rollouts that open the circuit.
            observe: called from any thread.
            usd_each: expected cost of a rollout until one has ended; 0 if unknown.
            spending: called from any thread when a rollout starts, and with its cost when it ends; only under limits.
        """
        self._attempt = attempt
        self._limits, self._clock, self._started = limits or BudgetLimits(), clock, clock()
        self._spent, self._running = Spending(), 0
        self._ran: set[tuple[str, str, int]] = set()
        self._lock = threading.Lock()
        self._failed_tries = self._lost_rollouts = 0
        self._lost_in_a_row = lost_in_a_row
        self._open_reason = ""
        """Why the circuit is open; empty while it is closed."""
        self._observe, self._waiting_until = observe, 0.0
        self._usd_each = usd_each
        self._on_spend: OnSpend = spending if any(self._limits) else lambda usd, rollouts: None
        self._lent = False
        self._steps: dict[int, int] = {}
        """Answered model calls of each running rollout, by thread."""
        self._told_steps = clock()

    def __call__(self, *, settings: Settings, task: Task, context: Context, ordinal: int, source: Source) -> Attempt:
        """Run one rollout; try again after infrastructure failures. See `hookspecs.StepHooks.valve_attempt`.

        Raises:
            InfrastructureError: the circuit is open.
            BudgetError: a limit is reached.
        """
        for tried, pause in enumerate((*PAUSES, 0.0), start=1):
            done = self._try(settings=settings, task=task, context=context, ordinal=ordinal, source=source)
            if done.outcome != "errored" or self._open_reason or tried > len(PAUSES):
                break
            reason = f"a rollout of {task.instance_id} was lost ({without_wrappers(done.reason)})"
            seconds = pause * random.uniform(0.5, 1.0)  # noqa: S311 (spreads load)
            self.report(Waiting(said=reason, tried=tried, of=len(PAUSES) + 1, seconds=seconds))
            # Wait, but no longer than the executor runs
            stop = stop_event()
            stop.wait(seconds) if stop else time.sleep(seconds)
        self._ran.add(_key(done))
        with self._lock:
            self._lost_rollouts = self._lost_rollouts + 1 if done.outcome == "errored" else 0
            if self._lost_rollouts >= self._lost_in_a_row:
                self._open(done.reason)
        return done

    def _try(self, **arguments: Any) -> Attempt:
        """Run one rollout once, and count its cost and whether it failed."""
        self.check()
        with share.worker() as worker:
            done = self._paid(worker, **arguments)
        with self._lock:
            if done.outcome != "errored":
                self._failed_tries = 0
                if self._limits.usd and done.steps and not done.cost_usd:
                    self._open(_NO_COST.format(model=done.model))
            elif done.fault:
                self._failed_tries += 1
                if done.fault in LASTING_FAULTS or self._failed_tries >= FAILURES_IN_A_ROW:
                    self._open(done.reason)
        return done

    def once(self, *, settings: Settings, task: Task, context: Context, ordinal: int, source: Source) -> Attempt:
        """Run one rollout that may not be needed: its cost counts, but a failure neither opens the circuit nor repeats.

        Raises:
            InfrastructureError: the circuit is open.
            BudgetError: a limit is reached.
        """
        arguments = {"settings": settings, "task": task, "context": context, "ordinal": ordinal, "source": source}
        with share.worker() as worker:
            done = self._paid(worker, **arguments)
        self._ran.add(_key(done))
        return done

    def affords(self, rollouts: int) -> bool:
        """Whether so many more rollouts may start, as far as the cost of the earlier ones tells."""
        try:
            with self._lock:
                left, each = self._left(), self._each(self._total())
        except BudgetError:
            return False
        return not self._lent and (
            (not self._limits.rollouts or left.rollouts >= rollouts)
            and (not self._limits.usd or (0 < each * rollouts <= left.usd))
        )

    def _paid(self, worker: share.Worker, **arguments: Any) -> Attempt:
        """Run one rollout, and charge the budget."""
        self.check()  # it may have waited for its worker
        with self._lock:
            if self._lent:
                raise BudgetError("the rest of the budget is reserved for the gate until its rollouts have ended")
            self._require_budget()
            self._running += 1
        try:
            self._on_spend(0.0, 1)
            with listen_to_waits(self.report, partial(self._step, arguments["settings"].step_limit)):
                done = self._attempt(**arguments)
            worker.usd = done.cost_usd
        except CancelledError as e:
            worker.usd = payment_of(e).usd
            raise
        finally:
            with self._lock:
                self._running -= 1
                self._steps.pop(threading.get_ident(), None)
                self._spent = self._spent.plus(worker.usd, 1)
            self._on_spend(worker.usd, 0)
        return done

    def report(self, wait: Waiting) -> None:
        """Report a wait to the observer, unless an earlier wait is in progress or the run pauses."""
        with self._lock:
            now = self._clock()
            if self._open_reason or now < self._waiting_until:
                return
            self._waiting_until = now + wait.seconds
        self._observe(replace(wait, seconds=round(wait.seconds, 1)))

    def _step(self, limit: int, steps: int, usd: float) -> None:
        """Count one answered call of this thread's rollout; tell the observer now and then."""
        with self._lock:
            self._steps[threading.get_ident()] = steps
            now, counts = self._clock(), list(self._steps.values())
            if now - self._told_steps < STEPS_SECONDS:
                return
            self._told_steps = now
        self._observe(AgentsWorking(rollouts=self._running, steps=sum(counts), longest=max(counts), of=limit))

    def _open(self, why: str) -> None:
        """Open the circuit. Called with the lock held."""
        if not self._open_reason:
            self._open_reason = why
            self._observe(RunPaused(reason=why))

    def check(self) -> None:
        """Return if the circuit is closed.

        Raises:
            InfrastructureError: it is open; the message says why.
        """
        if self._open_reason:
            raise InfrastructureError(f"{self._open_reason}; the run pauses, nothing is lost")

    def ran(self, attempt: Attempt) -> bool:
        """Whether this process ran an attempt; if not, it came from the journal and cost nothing."""
        return _key(attempt) in self._ran

    def spend(self, usd: float, rollouts: int) -> None:
        """Charge the budget with what another process, or a model call outside of rollouts, has spent."""
        with self._lock:
            self._spent = self._spent.plus(usd, rollouts)

    def left(self) -> BudgetLimits:
        """Return what is left of the budget.

        Raises:
            BudgetError: nothing is left.
        """
        with self._lock:
            return self._left()

    def _left(self) -> BudgetLimits:
        """Return the budget that is neither spent nor in use. Called with the lock held."""
        self._require_budget()
        total = self._total()
        return budget.remaining_limits(self._limits, total.plus(self._running * self._each(total), self._running))

    @contextmanager
    def lend(self) -> Iterator[BudgetLimits]:
        """Lend the rest of the budget to panel runs (other processes), which are charged with `spend`.

        Until the block ends, no rollout starts here that would use the lent budget.

        Raises:
            BudgetError: nothing is left.
        """
        with self._lock:
            left = self._left()
            self._lent = bool(left.usd or left.rollouts)
        try:
            yield left
        finally:
            self._lent = False

    def used_up(self) -> BudgetError:
        """Return the error of a run whose panel run stopped because the lent budget was used up."""
        if shared := share.reached():
            return BudgetError(shared)
        try:
            left = self.left()
        except BudgetError as e:
            return e
        spent = budget.describe_spending(self._total(), 0, 0.0)
        return BudgetError(
            f"too little of the budget of {budget.describe_limits(self._limits)} is left for another rollout: "
            f"{budget.describe_limits(left)} ({spent})"
        )

    def _total(self) -> Spending:
        return self._spent._replace(hours=(self._clock() - self._started) / 3600)

    def _require_budget(self) -> None:
        total = self._total()
        each = self._each(total)
        if reached := budget.reached_limit(self._limits, total, self._running, each):
            used = budget.describe_spending(total, self._running, each if self._limits.usd else 0.0)
            raise BudgetError(f"the budget of {reached} is used up ({used})")

    def _each(self, total: Spending) -> float:
        return total.usd / total.rollouts if total.rollouts else self._usd_each


def _key(attempt: Attempt) -> tuple[str, str, int]:
    return attempt.task_id, attempt.context_hash, attempt.ordinal


def limits_of(settings: Settings) -> BudgetLimits:
    """Return the limits that settings set."""
    return BudgetLimits(settings.budget_usd or 0.0, settings.max_rollouts or 0, settings.max_hours or 0.0)


def with_limits(settings: Settings, limits: BudgetLimits) -> Settings:
    """Return settings with these limits."""
    usd, rollouts, hours = limits
    return replace(settings, budget_usd=usd or None, max_rollouts=rollouts or None, max_hours=hours or None)


def iterate_results(jobs: Iterable[Future[T]]) -> Iterator[tuple[Future[T], T]]:
    """Yield (job, result) for each job. If the budget is used up, raise after the jobs that still run have ended.

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
