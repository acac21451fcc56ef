"""Changes to a bank: apply an accepted proposal or an owner's act, reduce it to one item, remove one item."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from valve_plugin.errors import RecordError
from valve_plugin.records import Bank, Item, Kind, Proposal


def apply(bank: Bank, proposal: Proposal) -> Bank:
    """Return the bank after an accept: items removed, merges made, new items appended, version one higher.

    Raises:
        RecordError: a new item's name is taken, or a merge or removal names an item the bank does not have.

    Source: m(B) of eq:gate; app:impl-memory.
    """
    version = bank.version + 1
    if proposal.removed or proposal.merges:
        bank = _changed(bank, proposal)
    known = vars(bank).pop("keys", None) or {item.key for item in bank.items}  # goes on to the next version
    for item in proposal.items:
        if item.key in known:
            raise RecordError(f"{item.kind} {item.name!r} is to be added, a name already taken: rename it")
        known.add(item.key)
    new = _with_items(bank, tuple(replace(i, created_step=version, judged=UNSET) for i in proposal.items))
    after = replace(bank, version=version, principles=bank.principles + new.principles, skills=bank.skills + new.skills)
    vars(after)["keys"] = known
    return after


def _changed(bank: Bank, proposal: Proposal) -> Bank:
    """Return the bank after a proposal's removals and merges."""
    items = {item.key: item for item in bank.items}
    for gone in proposal.removed:
        if items.pop(gone, None) is None:
            raise RecordError(f"version {bank.version} has no {gone[0]} {gone[1]!r}, which is to be removed")
    for merge in proposal.merges:
        key = (merge.kind, merge.name)
        if key not in items:
            raise RecordError(f"proposal {proposal.id} merges into {merge.kind} {merge.name!r}, which the bank lacks")
        item = items[key]
        known = merge.source_task in item.source_tasks
        items[key] = replace(
            item,
            support=item.support + 1,
            source_tasks=item.source_tasks if known else (*item.source_tasks, merge.source_task),
            passes=item.passes + merge.passes,
            attempts=item.attempts + merge.attempts,
        )
    return _with_items(bank, tuple(items.values()))


def change(bank: Bank, removes: Collection[tuple[Kind, str]], items: Sequence[Item]) -> Bank:
    """Return the bank after its owner removed and added items; what is added is marked as not judged.

    Raises:
        RecordError: see `apply`.
    """
    after = apply(bank, Proposal(task_id="", removes=tuple(removes) or UNSET, items=tuple(items)))
    added = {item.key for item in items}
    marked = tuple(replace(i, judged=False) if i.key in added else i for i in after.items)
    return _with_items(after, marked)


def restore(bank: Bank, earlier: Bank) -> Bank:
    """Return the bank with the items of an earlier version, as a version of its own."""
    return replace(earlier, version=bank.version + 1)


def single_item_bank(bank: Bank, key: tuple[Kind, str]) -> Bank:
    """Return the bank reduced to one item.

    Raises:
        RecordError: the bank has no such item.
    """
    return _with_items(bank, (_find_item(bank, key),))


def remove_item(bank: Bank, key: tuple[Kind, str]) -> Bank:
    """Return the bank without one item.

    Raises:
        RecordError: the bank has no such item.
    """
    gone = _find_item(bank, key)
    return _with_items(bank, tuple(item for item in bank.items if item is not gone))


def _find_item(bank: Bank, key: tuple[Kind, str]) -> Item:
    for item in bank.items:
        if item.key == tuple(key):
            return item
    raise RecordError(f"version {bank.version} has no {key[0]} {key[1]!r}")


def _with_items(bank: Bank, items: tuple[Item, ...]) -> Bank:
    return replace(
        bank,
        principles=tuple(i for i in items if i.kind == "principle"),
        skills=tuple(i for i in items if i.kind == "skill"),
    )
