"""Every item a model proposed, what became of it, where it came from and what it pushed out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from msgspec import UnsetType
from msgspec.structs import replace

from valve_plugin.bank.entries import Entry, Judged, Taken
from valve_plugin.bank.entries import Proposed as ProposedEntry
from valve_plugin.records import Attempt, Bank, Item, Kind, Proposal, Verdict
from valve_plugin.report.run import ItemState, Proposed, Source
from valve_plugin.report.run_panel import came_in

Key = tuple[Kind, str]


def items(
    entries: Sequence[Entry],
    bank: Bank,
    attempts: Sequence[Attempt],
    uses: Mapping[Key, int],
    behind: Mapping[str, tuple[Source, ...]],
) -> tuple[Proposed, ...]:
    """Return the items of every proposal in ledger order; a proposal or try that another stands in for is left out.

    Args:
        uses: item -> how often it was injected, on this machine.
        behind: task -> the attempts its proposal was learned from.
    """
    now = {item.key: item for item in bank.items}
    fate = _fates(entries)
    lost = displaced(entries, attempts)
    stands = _standing(entries)
    found: list[Proposed] = []
    for number, proposal in _told(entries, fate):
        sources = behind.get(proposal.task_id, ())
        decided = fate.get(proposal.id, "waiting")
        entered = decided in ("accepted", "taken")
        for item in proposal.items:
            here = stands.get(item.key) == proposal.id
            kept_item = now[item.key] if here else item
            state = "retired" if entered and not here else decided
            found.append(
                Proposed(
                    **_where(proposal, number, sources),
                    kind=item.kind,
                    name=item.name,
                    state=state,
                    text=item.text,
                    markdown=item.markdown,
                    scope_hint=item.scope_hint,
                    version=kept_item.created_step if here else None,
                    support=kept_item.support,
                    uses=uses.get(item.key, 0),
                    displaced=lost.get(proposal.id),
                )
            )
        found += _duplicates(proposal, number, sources)
    return tuple(merged(found))


def merged(items: Sequence[Proposed]) -> list[Proposed]:
    """Return the items with those that were rejected more than once, word by word, as one: the last try."""
    same: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, item in enumerate(items):
        if item.state == "rejected" and (item.text or item.markdown):
            same[item.kind, item.name, item.text, item.markdown].append(place)
    found = list(items)
    for *before, last in same.values():
        tries = [items[place] for place in (*before, last)]
        sources = tuple(source for item in reversed(tries) for source in item.sources)
        earlier = tuple(item.proposal_id for item in tries[:-1])
        found[last] = replace(items[last], sources=sources, tries=len(tries), earlier=earlier)
    gone = {place for *before, _ in same.values() for place in before}
    return [item for place, item in enumerate(found) if place not in gone]


def displaced(entries: Sequence[Entry], attempts: Iterable[Attempt]) -> dict[str, tuple[str, ...]]:
    """Return, by accepted proposal, the items that some panel task's context lost when it came in.

    Seen in the contexts of the panel's rollouts: what the gate before and the gate after the accept injected
    into the same task, each without its own proposal's items. Only this machine's attempts name a context's items.
    """
    contexts = {(a.task_id, a.context_hash): frozenset(a.context_items) for a in attempts if a.source == "panel"}
    proposals = {e.proposal.id: e.proposal for e in _proposed(entries)}
    verdicts = [e.verdict for e in entries if isinstance(e, Judged)]
    found: dict[str, tuple[str, ...]] = {}
    for accepted, later in pairwise(verdicts):
        if accepted.decision == "accept":
            before = _without_own(accepted, proposals, contexts)
            after = _without_own(later, proposals, contexts)
            both = before.keys() & after.keys()
            gone = {key for task in both for key in before[task] - after[task]}
            if both:  # else nothing shows it
                found[accepted.proposal_id] = tuple(sorted(f"{kind}: {name}" for kind, name in gone))
    return found


def _without_own(
    verdict: Verdict, proposals: Mapping[str, Proposal], contexts: Mapping[tuple[str, str], frozenset[Key]]
) -> dict[str, frozenset[Key]]:
    """Task -> items the bank gave it in this gate's contexts."""
    own = {item.key for item in proposals[verdict.proposal_id].items}
    seen: dict[str, frozenset[Key]] = defaultdict(frozenset)
    for o in verdict.outcomes:
        if (o.task_id, o.context_hash) in contexts:
            seen[o.task_id] = contexts[o.task_id, o.context_hash] - own
    return seen


def _told(entries: Sequence[Entry], fate: Mapping[str, ItemState]) -> Iterable[tuple[int, Proposal]]:
    """Proposals with their lines: those decided about, and a task's last, which stands in for its others."""
    last = {e.proposal.task_id: e.proposal.id for e in _proposed(entries)}
    found = {e.proposal.id: (n, e.proposal) for n, e in enumerate(entries, 1) if isinstance(e, ProposedEntry)}
    return [(n, p) for n, p in found.values() if p.id in fate or last[p.task_id] == p.id]


def _standing(entries: Iterable[Entry]) -> dict[Key, str]:
    """Item -> id of the proposal that brought in what the bank holds now."""
    proposals: dict[str, Proposal] = {}
    stands: dict[Key, str] = {}
    for entry in entries:
        if isinstance(entry, ProposedEntry):
            proposals[entry.proposal.id] = entry.proposal
        elif id_ := came_in(entry):
            for key in proposals[id_].removed:
                stands.pop(key, None)
            stands |= {item.key: id_ for item in proposals[id_].items}
    return stands


def _duplicates(proposal: Proposal, line: int, sources: tuple[Source, ...]) -> Iterable[Proposed]:
    where = _where(proposal, line, sources)
    for merge in proposal.merges:
        why = f"the same text as {merge.name}: counts as support"
        told = _text(merge.item)
        yield Proposed(**where, **told, kind=merge.kind, name=merge.name, state="merged", why=why, twin=merge.name)
    for near in proposal.suppressed:
        yield Proposed(
            **where,
            **_text(near.item),
            kind=near.kind,
            name=near.name,
            state="near-duplicate",
            why=f"repeats {near.duplicate_of}",
            twin=near.duplicate_of,
            similarity=near.similarity,
        )
    for withheld in proposal.withheld:
        told = _text(withheld.item)
        yield Proposed(**where, **told, kind=withheld.kind, name=withheld.name, state="withheld", why=withheld.why)


def _text(item: Item | UnsetType | None) -> dict[str, Any]:
    """What an item says; without it, that its text is kept nowhere. Never another's."""
    if not isinstance(item, Item):
        return {"kept": False}
    return {"text": item.text, "markdown": item.markdown, "scope_hint": item.scope_hint}


def _where(proposal: Proposal, line: int, sources: tuple[Source, ...]) -> dict[str, Any]:
    return {
        "task_id": proposal.task_id,
        "proposal_id": proposal.id,
        "line": line,
        "model": proposal.model,
        "sources": sources,
    }


def _fates(entries: Iterable[Entry]) -> dict[str, ItemState]:
    """Proposal id -> what was decided about its items; what nothing was decided about is not named."""
    words: dict[str, ItemState] = {"accept": "accepted", "reject": "rejected", "indecisive": "waiting"}
    fates: dict[str, ItemState] = {}
    for entry in entries:
        if isinstance(entry, Judged):
            fates[entry.verdict.proposal_id] = words[entry.verdict.decision]
        elif isinstance(entry, Taken):
            fates[entry.proposal_id] = "taken"
    return fates


def _proposed(entries: Iterable[Entry]) -> Iterable[ProposedEntry]:
    return (e for e in entries if isinstance(e, ProposedEntry))
