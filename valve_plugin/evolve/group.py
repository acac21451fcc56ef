"""A task's attempts together: whether they teach anything, and what is kept of each."""

from __future__ import annotations

from collections.abc import Sequence

from valve_plugin.bank.entries import AttemptNote
from valve_plugin.bank.store import BankStore
from valve_plugin.codec import digest_bytes
from valve_plugin.errors import BankError
from valve_plugin.records import Attempt


def mixed(attempts: Sequence[Attempt]) -> bool:
    """Whether some attempts passed and some failed.

    Source: eq:impl-mixed.
    """
    passed = sum(a.outcome == "resolved" for a in attempts)
    return 0 < passed < len(attempts)


def note(attempt: Attempt) -> AttemptNote:
    """Return what the ledger keeps of an attempt that a proposal was learned from."""
    return AttemptNote(
        task_id=attempt.task_id,
        ordinal=attempt.ordinal,
        outcome=attempt.outcome,
        context_hash=attempt.context_hash,
        patch_hash=digest_bytes(attempt.patch.encode("utf-8", "surrogatepass")),
    )


def trajectory(store: BankStore, attempt: Attempt) -> bytes:
    """The trajectory kept with an attempt; a lost one leaves patch and outcome to learn from."""
    try:
        return store.local.trajectory(attempt)
    except BankError:
        return b""
