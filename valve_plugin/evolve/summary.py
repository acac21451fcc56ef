"""What a ledger's steps amount to, for tables: one row per proposal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from valve_plugin.bank.entries import Baseline, Entry, Judged, Proposed, Taken
from valve_plugin.records import Proposal, Verdict


class Row(NamedTuple):
    """One proposal and what became of it."""

    task_id: str
    passed: int
    """Resolved attempts behind it."""
    attempts: int
    proposal: Proposal
    verdict: Verdict | None
    version: int
    """The bank's version after it."""
    taken: bool = False
    """Without a gate."""

    @property
    def outcome(self) -> Literal["accept", "reject", "indecisive", "taken", "empty", "pending"]:
        """What became of the proposal, in one word."""
        if self.taken:
            return "taken"
        if self.verdict:
            return self.verdict.decision
        return "empty" if self.proposal.empty else "pending"


class Score(NamedTuple):
    """What an accepted bank scored on the panel it was selected by."""

    version: int
    passes: int
    rollouts: int


def rows(entries: Iterable[Entry]) -> list[Row]:
    """Return the proposals in order, each with its last verdict."""
    found: dict[str, Row] = {}
    version = 0
    for entry in entries:
        if isinstance(entry, Proposed):
            passed = sum(a.outcome == "resolved" for a in entry.attempts)
            p = entry.proposal
            found[p.id] = Row(p.task_id, passed, len(entry.attempts), p, None, version)
        elif isinstance(entry, Judged):
            version += entry.verdict.decision == "accept"
            row = found[entry.verdict.proposal_id]
            found[entry.verdict.proposal_id] = row._replace(verdict=entry.verdict, version=version)
        elif isinstance(entry, Taken):
            version += 1
            found[entry.proposal_id] = found[entry.proposal_id]._replace(taken=True, version=version)
    return list(found.values())


def scores(entries: Iterable[Entry]) -> list[Score]:
    """Return each version's complete panel score: the baseline's, then every accept's."""
    found: list[Score] = []
    version = 0
    for entry in entries:
        if isinstance(entry, Baseline):
            found.append(Score(version, entry.result.passes, len(entry.result.outcomes)))
        elif isinstance(entry, Taken):
            version += 1
        elif isinstance(entry, Judged) and entry.verdict.decision == "accept":
            version += 1
            outcomes = entry.verdict.measured
            found.append(Score(version, sum(o.outcome == "resolved" for o in outcomes), len(outcomes)))
    return found
