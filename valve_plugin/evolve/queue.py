"""Learning from what waits: live attempts queued by `mini --plugin valve`, first in, first out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from valve_plugin.bank.entries import Proposed
from valve_plugin.evolve.group import note
from valve_plugin.evolve.loop import settle
from valve_plugin.evolve.steps import Steps
from valve_plugin.records import Attempt


def drain(steps: Steps) -> bool:
    """Judge the proposal left pending, then extract from and judge each queued group; tell whether anything waited.

    Raises:
        InfrastructureError: host or provider failed; what is left stays queued.
        HorizonError: all declared gate queries are used; what is left stays queued.
    """
    before = steps.store.head
    settle(steps)
    while jobs := steps.store.local.queue():
        job = jobs[0]
        attempts = attempts_of(steps, job)
        if attempts and not _proposed_already(steps, attempts):
            proposal = steps.extract(str(job["issue"]), attempts)
            steps.record(proposal, attempts)
        steps.store.local.queue_done(job["id"])
        settle(steps)
    return steps.store.head != before


def attempts_of(steps: Steps, job: Mapping[str, Any]) -> list[Attempt]:
    """Return the attempts a job names, as they were recorded; those that are gone are left out."""
    wanted = job.get("attempts", ())
    recorded = {a.id: a for a in steps.store.local.attempts(job.get("task_id"))}
    return [recorded[attempt_id] for attempt_id in wanted if attempt_id in recorded]


def _proposed_already(steps: Steps, attempts: list[Attempt]) -> bool:
    """Whether a process was killed after it recorded this job's proposal and before it took the job off."""
    notes = tuple(note(a) for a in attempts)
    return any(isinstance(e, Proposed) and e.attempts == notes for e in steps.store.entries())
