"""Every proposed item: what became of it, and the attempts it was learned from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import UnsetType
from msgspec.structs import asdict

from valve_plugin.bank.entries import AttemptNote, Entry, Judged, OwnerAct, Proposed, Taken
from valve_plugin.records import Attempt, Bank, Item, Kind, PanelOutcome, Proposal, owner_task
from valve_plugin.report.run import ItemState, ProposedItem, Rollout, SourceAttempt

Key = tuple[Kind, str]
_STATES: dict[str, ItemState] = {"accept": "accepted", "reject": "rejected", "indecisive": "waiting"}


class KeptAttempts:
    """The attempts on this machine, found by task, context hash and ordinal."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self._ids = {(a.task_id, a.context_hash, a.ordinal): a.id for a in attempts if a.outcome != "errored"}

    def rollout(self, o: PanelOutcome | AttemptNote) -> Rollout:
        """Return the rollout, with the id of its attempt if that is kept."""
        known = self._ids.get((o.task_id, o.context_hash, o.ordinal), "")
        return Rollout(ordinal=o.ordinal, outcome=o.outcome, attempt=known)

    def source(self, note: AttemptNote) -> SourceAttempt:
        """Return a source attempt of a proposal, with its id if it is kept."""
        return SourceAttempt(task_id=note.task_id, **asdict(self.rollout(note)))


def accepted_proposal(entry: Entry) -> str:
    """Return the id of the proposal that this entry accepts, or an empty string."""
    if isinstance(entry, Judged) and entry.verdict.decision == "accept":
        return entry.verdict.proposal_id
    return entry.proposal_id if isinstance(entry, Taken) else ""


def proposed_items(
    entries: Sequence[Entry], bank: Bank, kept: KeptAttempts, uses: Mapping[Key, int]
) -> tuple[ProposedItem, ...]:
    """Return the items of every proposal in ledger order, without proposals that a later one of the task replaces.

    Args:
        uses: number of injections of each item on this machine.
    """
    now = {item.key: item for item in bank.items}
    proposed = {e.proposal.id: (n, e) for n, e in enumerate(entries, 1) if isinstance(e, Proposed)}
    states: dict[str, ItemState] = {}  # of decided proposals
    for act in entries:
        if isinstance(act, Judged):
            states[act.verdict.proposal_id] = _STATES[act.verdict.decision]
        elif isinstance(act, Taken):
            states[act.proposal_id] = "taken"
    stands = _source_proposals(entries, {id_: e.proposal for id_, (_, e) in proposed.items()})
    last = {e.proposal.task_id: id_ for id_, (_, e) in proposed.items()}  # a task's last proposal replaces its others
    found: list[ProposedItem] = []
    for line, entry in proposed.values():
        proposal = entry.proposal
        if proposal.id not in states and last[proposal.task_id] != proposal.id:
            continue
        where: dict[str, Any] = {
            "task_id": proposal.task_id,
            "proposal_id": proposal.id,
            "line": line,
            "model": proposal.model,
            "sources": tuple(map(kept.source, entry.attempts)),
        }
        decided = states.get(proposal.id, "waiting")
        for item in proposal.items:
            here = now[item.key] if stands.get(item.key) == proposal.id else None
            found.append(
                ProposedItem(
                    **where,
                    **_text(item),
                    kind=item.kind,
                    name=item.name,
                    state="retired" if decided in ("accepted", "taken") and not here else decided,
                    version=here.created_step if here else None,
                    support=(here or item).support,
                    uses=uses.get(item.key, 0),
                )
            )
        found += _excluded_items(proposal, where)
    return (*found, *_owned_items(entries, now, uses))


def _owned_items(entries: Sequence[Entry], now: Mapping[Key, Item], uses: Mapping[Key, int]) -> Iterable[ProposedItem]:
    """Yield the current items that the bank's owner put in, each from the last act about it."""
    acts = {item.key: (line, e) for line, e in enumerate(entries, 1) if isinstance(e, OwnerAct) for item in e.items}
    for key, (line, entry) in acts.items():
        item = now.get(key)
        if item and item.judged is False:
            yield ProposedItem(
                task_id=owner_task(entry.reason), proposal_id="", line=line, **_text(item), kind=item.kind,
                name=item.name, state="taken", version=item.created_step, support=item.support,
                uses=uses.get(key, 0),
            )  # fmt: skip


def _excluded_items(proposal: Proposal, where: Mapping[str, Any]) -> Iterable[ProposedItem]:
    """Yield a proposal's duplicates and withheld items."""
    merged = [(m, m.item, f"the same text as {m.name}: counts as support") for m in proposal.merges]
    near = [(s, s.item, f"repeats {s.duplicate_of}, similarity {s.similarity:.2f}") for s in proposal.suppressed]
    withheld = [(w, w.item, w.why) for w in proposal.withheld]
    groups: tuple[tuple[ItemState, list[Any]], ...] = (
        ("merged", merged), ("near-duplicate", near), ("withheld", withheld)
    )  # fmt: skip
    for state, group in groups:
        for record, item, why in group:
            yield ProposedItem(**where, **_text(item), kind=record.kind, name=record.name, state=state, why=why)


def _text(item: Item | UnsetType | None) -> dict[str, Any]:
    """Return an item's texts, if the ledger holds them."""
    if not isinstance(item, Item):
        return {}
    return {"text": item.text, "markdown": item.markdown, "scope_hint": item.scope_hint}


def _source_proposals(entries: Iterable[Entry], proposals: Mapping[str, Proposal]) -> dict[Key, str]:
    """Return, by item, the id of the proposal that added it to the current bank."""
    versions: list[dict[Key, str]] = [{}]
    for entry in entries:
        found = versions[-1]
        if id_ := accepted_proposal(entry):
            removed, added = proposals[id_].removed, {item.key: id_ for item in proposals[id_].items}
        elif isinstance(entry, OwnerAct):
            found = found if isinstance(entry.undo_to, UnsetType) else versions[entry.undo_to]
            removed, added = (*entry.removes, *(item.key for item in entry.items)), {}
        else:
            continue
        versions.append({key: id_ for key, id_ in found.items() if key not in removed} | added)
    return versions[-1]


class ItemGroup(NamedTuple):
    """A group of items on the page."""

    in_bank: bool
    states: dict[str, int]
    places: list[int]
    """Positions in the list of items, in display order."""


def group_items(items: Sequence[ProposedItem]) -> list[ItemGroup]:
    """Return the bank's items, then the others, each group with the newest first."""
    order = sorted(range(len(items)), key=lambda n: (-items[n].line, n))
    found = []
    for in_bank in (True, False):
        places = [place for place in order if (items[place].version is not None) is in_bank]
        found.append(ItemGroup(in_bank, Counter(items[place].state for place in places), places))
    return [group for group in found if group.places]
