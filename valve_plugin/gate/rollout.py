"""One durable rollout: out of the journal when it ran before, else run, kept, and journaled before anyone counts it."""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import Protocol

from valve_plugin.bank.local import LocalStore
from valve_plugin.config import Settings
from valve_plugin.errors import BankNotFoundError
from valve_plugin.gate.plan import Cell
from valve_plugin.records import Attempt, Context, PanelOutcome, Source, Task
from valve_plugin.rollouts import paid, trajectories
from valve_plugin.rollouts.attempt import rollout_key

CUT = "cut"
"""The telemetry of rollouts that began and were ended before they were done."""
SPENDING = "spending"
"""The telemetry of what panel runs under limits start and pay, for the budget of who asked for them."""


class RunAttempt(Protocol):
    """The attempt step, as all plugins of a run implement it."""

    def __call__(self, *, settings: Settings, task: Task, context: Context, ordinal: int, source: Source) -> Attempt:
        """See `hookspecs.Steps.valve_attempt`."""
        ...


def durable(attempt: RunAttempt, local: LocalStore, settings: Settings, cell: Cell, source: Source) -> Attempt:
    """Return the rollout of a cell, run at most once however often its process is killed.

    An errored rollout is never journaled: the next process tries it anew.
    """
    key = rollout_key(settings, cell.task, cell.context, cell.ordinal)
    known = local.journal_get(key)
    if known is not None:
        return known
    try:
        done = attempt(settings=settings, task=cell.task, context=cell.context, ordinal=cell.ordinal, source=source)
    except CancelledError as e:
        about = {"task_id": cell.task.instance_id, "context_hash": cell.context.hash, "ordinal": cell.ordinal}
        had = paid.of(e)
        local.telemetry(CUT, {**about, "source": source, "steps": had.calls, "cost_usd": had.usd})
        raise
    kept = local.add_attempt(done, _trajectory(done))
    local.telemetry("rollouts", telemetry(kept))
    if kept.outcome != "errored":
        local.journal_put(key, kept)
    return kept


def outcome(cell: Cell, attempt: Attempt) -> PanelOutcome:
    """Return what the ledger may keep of a rollout."""
    assert attempt.outcome != "ungraded"  # panel and holdout tasks have tests
    return PanelOutcome(
        task_id=cell.task.instance_id,
        ordinal=cell.ordinal,
        outcome=attempt.outcome,
        context_hash=cell.context.hash,
    )


def telemetry(attempt: Attempt) -> dict[str, object]:
    """Return what a rollout took; it informs people, never a verdict."""
    return {
        "task_id": attempt.task_id,
        "ordinal": attempt.ordinal,
        "context_hash": attempt.context_hash,
        "source": attempt.source,
        "outcome": attempt.outcome,
        "reason": attempt.reason,
        "fault": attempt.fault,
        "exit_status": attempt.exit_status,
        "steps": attempt.steps,
        "cost_usd": attempt.cost_usd,
        "seconds": round(attempt.seconds, 3),
        "model": attempt.model,
    }


def _trajectory(attempt: Attempt) -> bytes | None:
    try:
        return trajectories.read(attempt) if attempt.trajectory else None
    except BankNotFoundError:  # the shared folder forgets the oldest; the outcome stands without it
        return None
