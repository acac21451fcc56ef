"""Duplicates: exact ones merge into the bank's item, near ones are suppressed, clashing names get a number."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence, Set

import msgspec

from valve_plugin.records import Bank, Item, Kind, Merge, Suppressed
from valve_plugin.theory.similarity import jaccard, near_duplicate, tokens

_NAME_LENGTH = 120  # of records.Name


def split(items: Sequence[Item], bank: Bank) -> tuple[tuple[Item, ...], tuple[Merge, ...], tuple[Suppressed, ...]]:
    """Sort proposed items into new ones, merges and suppressed ones, in the order proposed.

    Only items of the same kind are compared. An exact duplicate (equal search sentence, body and scope hint
    after Unicode, case and white space are normalized) of a bank item is a merge. One whose tokens overlap
    by 0.45 or more with an item of the bank, or with an earlier new item of this proposal, is suppressed and
    names the item it resembles most. A new item whose name is taken by different content becomes `name-2`.

    Source: eq:impl-dedup.
    """
    known = [_Known(item) for item in bank.items]
    exact = {(k.item.kind, k.normal): k.item for k in reversed(known)}
    taken = {item.key for item in bank.items}
    new: list[Item] = []
    merges: list[Merge] = []
    suppressed: list[Suppressed] = []
    for item in items:
        proposed = _Known(item)
        same = exact.get((item.kind, proposed.normal))
        if same is not None:
            merges.append(_merge(item, into=same))
            continue
        near = _nearest(proposed, known)
        if near is not None:
            suppressed.append(near)
            continue
        item = _named_apart(item, taken)
        taken.add(item.key)
        known.append(_Known(item))
        new.append(item)
    return tuple(new), tuple(merges), tuple(suppressed)


def nearest(item: Item, others: Iterable[Item]) -> Suppressed | None:
    """Return which of the other items of its kind this one repeats most, exactly or nearly; None for none."""
    return _nearest(_Known(item), map(_Known, others))


class _Known:
    """An item with what it is compared by."""

    def __init__(self, item: Item) -> None:
        self.item = item
        fields = (item.text, item.markdown, item.scope_hint)
        self.normal = tuple(" ".join(unicodedata.normalize("NFKC", f).casefold().split()) for f in fields)
        self.tokens = frozenset(t for f in fields for t in tokens(f))


def _merge(item: Item, *, into: Item) -> Merge:
    source = item.source_tasks[0] if item.source_tasks else ""
    return Merge(
        kind=into.kind, name=into.name, source_task=source, passes=item.passes, attempts=item.attempts, item=item
    )


def _nearest(proposed: _Known, known: Iterable[_Known]) -> Suppressed | None:
    """Return what suppresses the proposed item: the most similar near-duplicate, the earliest of equals."""
    item = proposed.item
    found: tuple[float, str] | None = None
    for other in known:
        if other.item.kind != item.kind:
            continue
        if other.normal == proposed.normal:
            similarity = 1.0
        elif near_duplicate(proposed.tokens, other.tokens):
            shared, union = jaccard(proposed.tokens, other.tokens)
            similarity = shared / union
        else:
            continue
        if found is None or similarity > found[0]:
            found = (similarity, other.item.name)
    return found and Suppressed(kind=item.kind, name=item.name, duplicate_of=found[1], similarity=found[0], item=item)


def _named_apart(item: Item, taken: Set[tuple[Kind, str]]) -> Item:
    name, number = item.name, 1
    while (item.kind, name) in taken:
        number += 1
        ending = f"-{number}"
        name = item.name[: _NAME_LENGTH - len(ending)] + ending
    return item if name == item.name else msgspec.structs.replace(item, name=name)
