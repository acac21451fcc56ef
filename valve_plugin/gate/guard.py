"""Stopping a run whose rollouts only fail: a circuit breaker around the attempt step, shared by all workers."""

from __future__ import annotations

import threading

from valve_plugin.config import Settings
from valve_plugin.errors import InfrastructureError
from valve_plugin.gate.rollout import RunAttempt
from valve_plugin.records import Attempt, Context, Source, Task
from valve_plugin.rollouts.faults import LASTING

IN_A_ROW = 3
"""Tries that a provider failed, or rollouts that the host failed, with no success of any worker between them."""


class Guard:
    """The attempt step, until it is no use: then every further call raises what a person has to do.

    Failures of the infrastructure are no outcomes. A refused key or a used-up quota opens the circuit at once, a
    provider or host that fails again and again after a few tries. What ran is kept; a new process starts closed.
    """

    def __init__(self, attempt: RunAttempt) -> None:
        self._attempt = attempt
        self._lock = threading.Lock()
        self._tries = 0
        self._rollouts: set[tuple[str, int]] = set()
        self._why = ""

    def __call__(self, *, settings: Settings, task: Task, context: Context, ordinal: int, source: Source) -> Attempt:
        """Run one rollout; see `hookspecs.Steps.valve_attempt`.

        Raises:
            InfrastructureError: the circuit is open.
        """
        self.check()
        done = self._attempt(settings=settings, task=task, context=context, ordinal=ordinal, source=source)
        self._count(done)
        return done

    def check(self) -> None:
        """Go on only while the circuit is closed.

        Raises:
            InfrastructureError: it is open; what to do is said.
        """
        if self._why:
            raise InfrastructureError(f"{self._why}; the run pauses, nothing is lost: then start it again")

    def _count(self, done: Attempt) -> None:
        with self._lock:
            if done.outcome != "errored":
                self._tries, self._rollouts = 0, set()
                return
            self._tries += bool(done.fault)
            self._rollouts.add((done.task_id, done.ordinal))
            if done.fault in LASTING or self._tries >= IN_A_ROW or len(self._rollouts) >= IN_A_ROW:
                self._why = self._why or done.reason
