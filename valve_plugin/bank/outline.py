"""What `valve` shows of a ledger, from one pass that checks the chain and reads a few fields of each line."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from valve_plugin.bank.entries import EpochOpened, Judged
from valve_plugin.bank.ledger import FILE_NAME, GENESIS, StoredLine, line_hash
from valve_plugin.codec import decode, digest_bytes
from valve_plugin.errors import RecordError
from valve_plugin.records import Proposal, Verdict


class Outline(NamedTuple):
    """Where a ledger stands."""

    epoch: EpochOpened | None
    """The open epoch."""
    queries: int
    """Gate queries of the open epoch."""
    waiting: tuple[str, ...]
    """Ids of the undecided proposals, oldest first, see `entries.undecided`."""
    verdict: Verdict | None
    """The last one."""
    types: frozenset[str]
    """Tags of all entries."""
    source_tasks: frozenset[str]
    """Ids of the tasks whose attempts proposals were learned from."""
    head: str
    """Hash of the last line."""


class _Verdict(msgspec.Struct):
    proposal_id: str
    decision: str
    query: int


class _Attempt(msgspec.Struct):
    task_id: str


class _Entry(msgspec.Struct):
    type: str
    proposal: msgspec.Raw = msgspec.Raw()
    attempts: tuple[_Attempt, ...] = ()
    verdict: _Verdict | None = None
    proposal_id: str = ""


class _Line(msgspec.Struct):
    prev: str
    entry: _Entry


def outline(data: bytes) -> Outline:
    """Return where the ledger of these bytes stands.

    Raises:
        RecordError: a line is damaged, or does not follow the one before it.
    """
    opened, judged, prev = b"", b"", GENESIS
    queries, waiting, types, sources = 0, dict[str, Proposal](), set[str](), set[str]()
    for raw in data[: data.rfind(b"\n") + 1].splitlines():
        line = decode(raw, _Line, where=FILE_NAME)
        if line.prev != prev:
            raise RecordError(f"{FILE_NAME}: a line does not follow the one before it; `valve bank verify` names it")
        entry, prev = line.entry, line_hash(raw)
        types.add(entry.type)
        decided = entry.proposal_id if entry.type == "taken" else ""
        if entry.type in ("panel_fixed", "owner_act", "epoch_opened"):
            opened, queries = raw if entry.type == "epoch_opened" else b"", 0
        elif entry.type == "proposed":
            proposal = decode(entry.proposal, Proposal, where=FILE_NAME)
            vars(proposal)["id"] = digest_bytes(entry.proposal)[:16]  # a ledger is canonical JSON
            waiting[proposal.task_id] = proposal
            sources.update(attempt.task_id for attempt in entry.attempts)
        elif entry.verdict:
            judged, queries = raw, entry.verdict.query
            decided = "" if entry.verdict.decision == "indecisive" else entry.verdict.proposal_id
        if decided:
            waiting = {task: proposal for task, proposal in waiting.items() if proposal.id != decided}
    epoch, last = (decode(raw, StoredLine, where=FILE_NAME).entry if raw else None for raw in (opened, judged))
    return Outline(
        epoch if isinstance(epoch, EpochOpened) else None,
        queries,
        tuple(proposal.id for proposal in waiting.values() if not proposal.empty),
        last.verdict if isinstance(last, Judged) else None,
        frozenset(types),
        frozenset(sources),
        prev,
    )
