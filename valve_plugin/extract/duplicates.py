"""Duplicates: exact ones merge into the bank's item, near ones are suppressed, repeated names get a number.

What a person wrote is left out only where it repeats an item exactly: 3.11 and 3.13 are one word of two rules.
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from valve_plugin.records import Bank, Item, Kind, Merge, Proposal, Suppressed, is_owners
from valve_plugin.theory.similarity import jaccard, near_duplicate, tokens

_NAME_LENGTH = 120  # of records.Name


def fit(proposal: Proposal, bank: Bank) -> Proposal:
    """Return a proposal as it fits a bank: without duplicates, and without removals of what the bank lacks.

    An item under the name of one that is removed is its new version: the old one is no duplicate of it. If the new
    version goes no further, because it repeats something else or changes nothing, the old one stays.
    """
    old = {item.key: item for item in bank.items}
    versions = {item.key: item for item in proposal.items if item.key in proposal.removed}
    unchanged = {
        k for k, item in versions.items() if k in old and _comparable(old[k]).normal == _comparable(item).normal
    }
    removes = tuple(key for key in proposal.removed if key in old and key not in unchanged)
    exact = is_owners(proposal.task_id)
    while True:
        new, merges, suppressed = sort_duplicates(proposal.items, bank, removes, exact=exact)
        kept = {item.key for item in new}
        left = tuple(key for key in removes if key not in versions or key in kept)
        if left == removes:
            break
        removes = left
    if new == proposal.items and removes == proposal.removed:
        return proposal
    return replace(
        proposal,
        items=new,
        merges=proposal.merges + merges,
        suppressed=proposal.suppressed + suppressed,
        removes=removes or UNSET,
    )


def sort_duplicates(
    items: Sequence[Item], bank: Bank, removed: Collection[tuple[Kind, str]] = (), *, exact: bool = False
) -> tuple[tuple[Item, ...], tuple[Merge, ...], tuple[Suppressed, ...]]:
    """Sort proposed items into new ones, merges and suppressed ones, in the order proposed.

    Only items of the same kind are compared. An exact duplicate (equal search sentence, body and scope hint
    after Unicode, case and white space are normalized) of a bank item is a merge. One whose tokens overlap
    by 0.45 or more with an item of the bank, or with an earlier new item of this proposal, is suppressed and
    names the item it resembles most; with `exact`, only one that is equal. A new item whose name is taken by
    different content becomes `name-2`. Items that the move removes count for nothing.

    Source: eq:impl-dedup.
    """
    kept = [item for item in bank.items if item.key not in removed]
    known = {(i.kind, _comparable(i).normal): i for i in reversed(kept)} if items else {}
    taken = {item.key for item in kept}
    new: list[Item] = []
    merges: list[Merge] = []
    suppressed: list[Suppressed] = []
    for item in items:
        if same := known.get((item.kind, _comparable(item).normal)):
            source = item.source_tasks[0] if item.source_tasks else ""
            merges.append(
                Merge(
                    kind=same.kind, name=same.name, source_task=source, passes=item.passes, attempts=item.attempts,
                    item=item,
                )
            )  # fmt: skip
            continue
        if near := nearest(item, [*kept, *new], exact=exact):
            suppressed.append(near)
            continue
        name, number = item.name, 1
        while (item.kind, name) in taken:
            number += 1
            ending = f"-{number}"
            name = item.name[: _NAME_LENGTH - len(ending)] + ending
        item = item if name == item.name else replace(item, name=name)
        taken.add(item.key)
        new.append(item)
    return tuple(new), tuple(merges), tuple(suppressed)


def nearest(item: Item, others: Iterable[Item], *, exact: bool = False) -> Suppressed | None:
    """Return the most similar duplicate of this item among the others of its kind, the earliest of equals, or None."""
    mine = _comparable(item)
    found: tuple[float, Item] | None = None
    for other in others:
        if other.kind != item.kind:
            continue
        theirs = _comparable(other)
        if mine.normal == theirs.normal:
            similarity = 1.0
        elif not exact and near_duplicate(mine.tokens, theirs.tokens):
            shared, union = jaccard(mine.tokens, theirs.tokens)
            similarity = shared / union
        else:
            continue
        if found is None or similarity > found[0]:
            found = (similarity, other)
    if found is None:
        return None
    return Suppressed(kind=item.kind, name=item.name, duplicate_of=found[1].name, similarity=found[0], item=item)


def nearest_before(items: Sequence[Item]) -> Iterator[Suppressed | None]:
    """Yield, for each item, what `nearest` finds among those before it, without a look at all of them.

    Two sets of tokens that are alike share one of the rarest of each: 0.45 or more of the larger one is in both, so
    the least that 0.45 of a set leaves over, and one more, cannot all be in one of them alone.
    """
    counts = Counter(token for item in items for token in _comparable(item).tokens)
    found: dict[Hashable, list[int]] = defaultdict(list)  # kind and token, or kind and text -> places
    for place, item in enumerate(items):
        mine = _comparable(item)
        rarest = sorted(mine.tokens, key=lambda token: (counts[token], token))
        keys = [(item.kind, key) for key in (mine.normal, *rarest[: len(rarest) - (9 * len(rarest) + 19) // 20 + 1])]
        near = sorted({place for key in keys for place in found[key]})
        yield nearest(item, [items[n] for n in near])
        for key in keys:
            found[key].append(place)


class _Comparable(NamedTuple):
    """What is compared of an item."""

    normal: tuple[str, ...]
    tokens: frozenset[str]


def _comparable(item: Item) -> _Comparable:
    return _compared(item.text, item.markdown, item.scope_hint)


@lru_cache(maxsize=100_000)  # a bank is compared with again and again; a larger one would find nothing here
def _compared(*fields: str) -> _Comparable:
    normal = tuple(" ".join(unicodedata.normalize("NFKC", field).casefold().split()) for field in fields)
    return _Comparable(normal, frozenset(token for field in fields for token in tokens(field)))
