"""A switch the paper names: reflection is told what validation said about earlier proposals.

It is told names and verdicts, nothing that a rollout on the panel did. Ungated runs have no verdicts to tell.

Source: app:impl-ablations, "Interpretive scope".
"""

from __future__ import annotations

from collections.abc import Iterable

from valve_plugin.bank.entries import Entry
from valve_plugin.evolve.steps import Steps
from valve_plugin.evolve.summary import rows

LAST = 10
"""Verdicts told, the newest ones."""


def with_feedback(steps: type[Steps]) -> type[Steps]:
    """Return the same steps, whose reflection also reads the latest verdicts."""

    class Told(steps):  # type: ignore[valid-type,misc]  # the base is an argument
        def feedback(self) -> str:
            """Return what became of earlier proposals."""
            return told(self.store.entries())

    return Told


def told(entries: Iterable[Entry]) -> str:
    """Return the latest verdicts in words, one a line; empty when there is none. Pure."""
    judged = [row for row in rows(entries) if row.verdict is not None and row.verdict.decision != "indecisive"]
    lines = [
        f"- {row.outcome}: {', '.join(f'{i.kind} {i.name}' for i in row.proposal.items) or 'a removal'}"
        for row in judged[-LAST:]
    ]
    return "\n".join(lines)
