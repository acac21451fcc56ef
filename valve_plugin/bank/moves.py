"""What an accepted proposal does to a bank."""

from __future__ import annotations

from msgspec.structs import replace

from valve_plugin.errors import RecordError
from valve_plugin.records import Bank, Item, Kind, Merge, Proposal


def apply(bank: Bank, proposal: Proposal) -> Bank:
    """Return the bank after an accept: items removed, merges made, new items appended, version one higher.

    Raises:
        RecordError: a new item's name is taken, or a merge or removal names an item the bank does not have.

    Source: m(B) of eq:gate; app:impl-memory.
    """
    version = bank.version + 1
    items = {item.key: item for item in bank.items}
    for gone in proposal.removed:
        if items.pop(gone, None) is None:
            raise RecordError(f"proposal {proposal.id} removes {gone[0]} {gone[1]!r}, which the bank lacks")
    for merge in proposal.merges:
        key = (merge.kind, merge.name)
        if key not in items:
            raise RecordError(f"proposal {proposal.id} merges into {merge.kind} {merge.name!r}, which the bank lacks")
        items[key] = _merged(items[key], merge)
    for item in proposal.items:
        if item.key in items:
            raise RecordError(f"proposal {proposal.id} adds {item.kind} {item.name!r}, a name already taken: rename it")
        items[item.key] = replace(item, created_step=version)
    return _kept(replace(bank, version=version), tuple(items.values()))


def only(bank: Bank, key: tuple[Kind, str]) -> Bank:
    """Return the bank reduced to one item.

    Raises:
        RecordError: the bank has no such item.
    """
    return _kept(bank, (_named(bank, key),))


def without(bank: Bank, key: tuple[Kind, str]) -> Bank:
    """Return the bank without one item.

    Raises:
        RecordError: the bank has no such item.
    """
    gone = _named(bank, key)
    return _kept(bank, tuple(item for item in bank.items if item is not gone))


def _named(bank: Bank, key: tuple[Kind, str]) -> Item:
    for item in bank.items:
        if item.key == tuple(key):
            return item
    raise RecordError(f"version {bank.version} has no {key[0]} {key[1]!r}")


def _kept(bank: Bank, items: tuple[Item, ...]) -> Bank:
    return replace(
        bank,
        principles=tuple(i for i in items if i.kind == "principle"),
        skills=tuple(i for i in items if i.kind == "skill"),
    )


def _merged(item: Item, merge: Merge) -> Item:
    known = merge.source_task in item.source_tasks
    return replace(
        item,
        support=item.support + 1,
        source_tasks=item.source_tasks if known else (*item.source_tasks, merge.source_task),
        passes=item.passes + merge.passes,
        attempts=item.attempts + merge.attempts,
    )
