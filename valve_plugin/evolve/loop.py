"""The loop: one line per step, in flow order."""

from __future__ import annotations

from collections.abc import Sequence

from valve_plugin.evolve.steps import Steps
from valve_plugin.records import Task


def evolve(steps: Steps, stream: Sequence[Task]) -> None:
    """Learn from a stream of tasks, sequentially: each task gets what all before it taught.

    Interrupted at any point and started again, it ends where an uninterrupted run ends.

    Raises:
        InfrastructureError: host or provider failed beyond retries; start again to go on.
        HorizonError: all declared gate queries are used.

    Source: sec:valve-framework, app:impl-agent.
    """
    settle(steps)
    with steps.ahead:
        for task in steps.remaining(stream):
            context = steps.retrieve(task)
            attempts = steps.attempt(task, context)
            if material := steps.material(attempts):
                proposal = steps.extract(task.problem_statement, material)
                steps.record(proposal, material)
                settle(steps)


def settle(steps: Steps) -> None:
    """Decide about the proposal that waits, if one does; again should the bank have changed meanwhile."""
    while proposal := steps.pending():
        decision = steps.validate(proposal)
        steps.commit(proposal, decision)
