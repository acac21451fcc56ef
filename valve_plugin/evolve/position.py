"""How far a bank's ledger reaches into a stream of tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from valve_plugin.bank.entries import Proposed
from valve_plugin.bank.evaluated import counted
from valve_plugin.bank.store import BankStore


def position(store: BankStore, ids: Sequence[str]) -> int:
    """Return how many tasks come before the first that is left: all to the last that a proposal was learned from."""
    return max((ids.index(n.task_id) + 1 for e in _proposed(store) for n in e.attempts if n.task_id in ids), default=0)


def learned(store: BankStore, ids: Sequence[str]) -> set[str]:
    """Return the stream's tasks that count as evolution steps."""
    return {task for e in _proposed(store) for task in counted(e.attempts)} & set(ids)


def _proposed(store: BankStore) -> Iterator[Proposed]:
    return (e for e in store.entries() if isinstance(e, Proposed))
