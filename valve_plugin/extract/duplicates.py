"""Duplicates: exact ones merge into the bank's item, near ones are suppressed, repeated names get a number."""

from __future__ import annotations

import unicodedata
from array import array
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence, Set
from threading import Lock

from msgspec import UNSET
from msgspec.structs import replace

from valve_plugin.records import Bank, Item, Kind, Merge, Proposal, Suppressed
from valve_plugin.theory.similarity import jaccard, near_duplicate, overlaps, tokens

_NAME_LENGTH = 120  # of records.Name


def fit(proposal: Proposal, bank: Bank) -> Proposal:
    """Return a proposal as it fits a bank: without duplicates, and without removals of what the bank lacks.

    An item under the name of one that is removed is its new version: the old one is no duplicate of it. If the new
    version goes no further, because it repeats something else or changes nothing, the old one stays.
    """
    old = {item.key: item for item in bank.items}
    versions = {item.key: item for item in proposal.items if item.key in proposal.removed}
    unchanged = {
        k for k, item in versions.items() if k in old and _Comparable(old[k]).normal == _Comparable(item).normal
    }
    removes = tuple(key for key in proposal.removed if key in old and key not in unchanged)
    while True:
        new, merges, suppressed = sort_duplicates(proposal.items, bank, removes)
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
    items: Sequence[Item], bank: Bank, removed: Collection[tuple[Kind, str]] = ()
) -> tuple[tuple[Item, ...], tuple[Merge, ...], tuple[Suppressed, ...]]:
    """Sort proposed items into new ones, merges and suppressed ones, in the order proposed.

    Only items of the same kind are compared. An exact duplicate (equal search sentence, body and scope hint
    after Unicode, case and white space are normalized) of a bank item is a merge. One whose tokens overlap
    by 0.45 or more with an item of the bank, or with an earlier new item of this proposal, is suppressed and
    names the item it resembles most. A new item whose name is taken by different content becomes `name-2`. Items that
    the move removes count for nothing.

    Source: eq:impl-dedup.
    """
    kept = [item for item in bank.items if item.key not in removed]
    known = {kind: _Known([i for i in kept if i.kind == kind]) for kind in {item.kind for item in items}}
    taken = {item.key for item in kept}
    new: list[Item] = []
    merges: list[Merge] = []
    suppressed: list[Suppressed] = []
    for item in items:
        proposed = _Comparable(item)
        same = known[item.kind].exact(proposed)
        if same is not None:
            merges.append(_merge(item, into=same))
            continue
        near = _nearer(known[item.kind].nearest(proposed), nearest(item, new))
        if near is not None:
            suppressed.append(near)
            continue
        item = _unique_name(item, taken)
        taken.add(item.key)
        new.append(item)
    return tuple(new), tuple(merges), tuple(suppressed)


def nearest(item: Item, others: Iterable[Item]) -> Suppressed | None:
    """Return the most similar duplicate of this item among the others of its kind, or None."""
    return _nearest(_Comparable(item), map(_Comparable, others))


def _nearer(first: Suppressed | None, then: Suppressed | None) -> Suppressed | None:
    return then if first is None or (then and then.similarity > first.similarity) else first


class _Comparable:
    """An item with its normalized texts and tokens, for comparison."""

    def __init__(self, item: Item) -> None:
        self.item = item
        fields = (item.text, item.markdown, item.scope_hint)
        self.normal = tuple(" ".join(unicodedata.normalize("NFKC", f).casefold().split()) for f in fields)
        self.tokens = frozenset(t for f in fields for t in tokens(f))


class _Texts:
    """Texts of one kind with an inverted index of their tokens. It only grows, so threads may share it."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, str, str], int] = {}
        """Search sentence, body and scope hint of an item -> its place."""
        self.sizes = array("L")
        """Number of tokens, by place."""
        self.by_token: defaultdict[str, array[int]] = defaultdict(lambda: array("L"))
        self.by_normal: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)

    def place(self, item: Item) -> int:
        """Return the place of an item's texts; new ones are added."""
        texts = (item.text, item.markdown, item.scope_hint)
        known = self.places.get(texts)
        if known is not None:
            return known
        added, place = _Comparable(item), len(self.sizes)
        self.sizes.append(len(added.tokens))
        self.by_normal[added.normal].append(place)
        for token in added.tokens:
            self.by_token[token].append(place)
        self.places[texts] = place
        return place


_TEXTS: dict[Kind, _Texts] = {}
_TEXTS_LOCK = Lock()
_MOST_OLD = 1000


class _Known:
    """The items of one kind in a bank, to compare many with. What was read for an earlier bank is not read again."""

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = items
        if not items:
            return
        with _TEXTS_LOCK:
            kind = items[0].kind
            if kind not in _TEXTS or len(_TEXTS[kind].sizes) > 2 * len(items) + _MOST_OLD:
                _TEXTS[kind] = _Texts()  # most of it is of other banks
            self.texts = _TEXTS[kind]
            self.ranks = {self.texts.place(item): rank for rank, item in reversed([*enumerate(items)])}

    def exact(self, proposed: _Comparable) -> Item | None:
        """Return the earliest item whose normalized texts are the same."""
        places = self.texts.by_normal.get(proposed.normal, ()) if self.items else ()
        ranks = [self.ranks[place] for place in places if place in self.ranks]
        return self.items[min(ranks)] if ranks else None

    def nearest(self, proposed: _Comparable) -> Suppressed | None:
        """Return what suppresses the proposed item: the most similar near-duplicate, the earliest of equals."""
        shared: Counter[int] = Counter()
        for token in proposed.tokens if self.items else ():
            shared.update(self.texts.by_token.get(token, ()))
        size, best = len(proposed.tokens), (0.0, 0)
        for place, both in shared.items():
            union = size + self.texts.sizes[place] - both
            if overlaps(both, union) and place in self.ranks:
                best = max(best, (both / union, -self.ranks[place]))
        return _suppressed(proposed.item, self.items[-best[1]], best[0]) if best[0] else None


def _merge(item: Item, *, into: Item) -> Merge:
    source = item.source_tasks[0] if item.source_tasks else ""
    return Merge(
        kind=into.kind, name=into.name, source_task=source, passes=item.passes, attempts=item.attempts, item=item
    )


def _nearest(proposed: _Comparable, known: Iterable[_Comparable]) -> Suppressed | None:
    """Return what suppresses the proposed item: the most similar near-duplicate, the earliest of equals."""
    item = proposed.item
    found: tuple[float, Item] | None = None
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
            found = (similarity, other.item)
    return found and _suppressed(item, found[1], found[0])


def _suppressed(item: Item, by: Item, similarity: float) -> Suppressed:
    return Suppressed(kind=item.kind, name=item.name, duplicate_of=by.name, similarity=similarity, item=item)


def _unique_name(item: Item, taken: Set[tuple[Kind, str]]) -> Item:
    name, number = item.name, 1
    while (item.kind, name) in taken:
        number += 1
        ending = f"-{number}"
        name = item.name[: _NAME_LENGTH - len(ending)] + ending
    return item if name == item.name else replace(item, name=name)
