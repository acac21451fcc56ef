"""Which gate ran the rollouts that no ledger line names: they were under way when its verdict was certain. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from valve_plugin.bank.entries import Entry, Judged, Proposed
from valve_plugin.records import Attempt, AttemptOutcome
from valve_plugin.report.run_cost import Rolled, places

_LOST: AttemptOutcome = "errored"


def beyond(attempts: Iterable[Attempt], entries: Sequence[Entry]) -> dict[str, tuple[Attempt, ...]]:
    """Return proposal id -> rollouts that its gate ran and its verdict does not name, of those kept here.

    Telemetry counts them when the verdict falls; what ended a moment later it misses, while the attempts are kept and
    cost what they cost. A rollout belongs to the last proposal whose attempts ended before it did. Gates of which
    nothing is kept here are left out: unknown.
    """
    kept = {(a.task_id, a.context_hash, a.ordinal): a for a in attempts if a.outcome != _LOST and a.recorded_at}
    known = places(entries)
    begun = sorted((at, id_) for id_, at in _begun(entries, kept).items())
    starts = [at for at, _ in begun]
    more: dict[str, list[Attempt]] = defaultdict(list)
    for rolled, attempt in kept.items():
        if attempt.source == "panel" and rolled not in known:
            place = bisect_right(starts, attempt.recorded_at) - 1
            if place >= 0:
                more[begun[place][1]].append(attempt)
    judged = [e.verdict for e in entries if isinstance(e, Judged)]
    here = {v.proposal_id for v in judged if any((o.task_id, o.context_hash, o.ordinal) in kept for o in v.outcomes)}
    return {id_: tuple(more[id_]) for id_ in here}


def _begun(entries: Iterable[Entry], kept: Mapping[Rolled, Attempt]) -> dict[str, float]:
    """Proposal id -> when the last attempt behind it ended, in seconds since the epoch."""
    found: dict[str, float] = {}
    for entry in entries:
        if isinstance(entry, Proposed):
            ends = [
                kept[key].recorded_at
                for note in entry.attempts
                if (key := (note.task_id, note.context_hash, note.ordinal)) in kept
            ]
            if ends:
                found[entry.proposal.id] = max(ends)
    return found
