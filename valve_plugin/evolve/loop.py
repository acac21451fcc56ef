"""The evolution loop: one line per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from valve_plugin.bank.entries import Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.evolve.imagine import Imagination
from valve_plugin.evolve.steps import Steps, attempt_note
from valve_plugin.records import Attempt, Task


def evolve(steps: Steps, stream: Sequence[Task]) -> None:
    """Learn from a stream of tasks in sequence: each task uses what was learned from all earlier ones.

    A run that is interrupted at any point and started again ends with the same bank as an uninterrupted run.

    Raises:
        InfrastructureError: host or provider failed beyond retries; start again to go on.
        HorizonError: all declared gate queries are used.

    Source: sec:valve-framework, app:impl-agent.
    """
    ahead = Imagination(evolve, steps, stream)
    with steps.speculating(ahead.prospect, ahead.go_on):
        settle(steps)
        for task in steps.remaining(stream):
            context = steps.retrieve(task)
            attempts = steps.attempt(task, context)
            if material := steps.material(attempts):
                proposal = steps.extract(task.problem_statement, material)
                steps.record(proposal, material)
                settle(steps)


def settle(steps: Steps) -> None:
    """Judge the pending proposal, if there is one; judge it again if the bank changed during its gate."""
    while proposal := steps.pending():
        if decision := steps.validate(proposal):
            steps.commit(proposal, decision)


def drain(steps: Steps) -> bool:
    """Judge the pending proposal, then extract from each queued group and judge; return whether anything was done.

    Raises:
        InfrastructureError: host or provider failed; what is left stays queued.
        HorizonError: all declared gate queries are used; what is left stays queued.
    """
    before = steps.store.head
    settle(steps)
    while jobs := steps.store.local.queue():
        job = jobs[0]
        attempts = attempts_of(steps, job)
        if attempts and times_proposed(steps.store, attempts) <= job.get("earlier", 0):
            proposal = steps.extract(str(job["issue"]), attempts)
            steps.record(proposal, attempts)
        steps.store.local.queue_done(job["id"])
        settle(steps)
    return steps.store.head != before


def attempts_of(steps: Steps, job: Mapping[str, Any]) -> list[Attempt]:
    """Return the recorded attempts of a job, without missing ones."""
    wanted = job.get("attempts", ())
    recorded = {a.id: a for a in steps.store.local.attempts(job.get("task_id"))}
    return [recorded[attempt_id] for attempt_id in wanted if attempt_id in recorded]


def times_proposed(store: BankStore, attempts: Sequence[Attempt]) -> int:
    """Return how many proposals of these attempts are recorded.

    A process may be killed after it recorded one and before it removed the job.
    """
    notes = tuple(attempt_note(a) for a in attempts)
    return sum(isinstance(e, Proposed) and e.attempts == notes for e in store.entries())


def queue_again(store: BankStore, attempts: Sequence[Attempt]) -> None:
    """Queue one more extraction from attempts at one task, after those that are recorded."""
    store.local.queue_push(
        {
            "kind": "extract",
            "task_id": attempts[0].task_id,
            "issue": attempts[0].task_text,
            "attempts": [a.id for a in attempts],
            "earlier": times_proposed(store, attempts),
        }
    )
