"""What a bank's owner does to it: the ledger entries, and the comparison of two banks. No gate judges any of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from valve_plugin.bank import ledger, moves
from valve_plugin.bank.directory import Directory
from valve_plugin.bank.entries import Entry, Judged, OwnerAct, Proposed, Taken, makes_version, undecided
from valve_plugin.bank.replay import replay
from valve_plugin.bank.store import BankStore
from valve_plugin.errors import BankNotFoundError, InfrastructureError, RecordError, TaskError
from valve_plugin.paths import BANK_NAME
from valve_plugin.records import Bank, Item, Kind, Proposal
from valve_plugin.sandbox import git

Key = tuple[Kind, str]
NOT_JUDGED = "taken by its owner, not judged"
UNGATED = "accepted without a gate"


def act(
    store: BankStore,
    what: Literal["add", "remove", "edit", "rename", "merge"],
    reason: str,
    *,
    removes: Sequence[Key] = (),
    items: Sequence[Item] = (),
) -> None:
    """Change the bank as its owner wants, in one ledger entry.

    Raises:
        BankBusyError: a run is judging the bank.
        RecordError: a name is taken, or an item is not there.
    """
    with store.lease():
        store.refresh()
        before = store.bank
        fresh = tuple(replace(item, created_step=0, judged=UNSET) for item in items)
        after = moves.change(before, removes, fresh)
        store.append(
            OwnerAct(
                act=what, reason=reason, removes=tuple(removes), items=fresh,
                bank_hash=before.hash, bank_after=after.hash,
            )
        )  # fmt: skip


def withdraw(store: BankStore, proposal: Proposal, reason: str) -> None:
    """Take back a proposal that waits: an empty one takes its place.

    Raises:
        RecordError: it does not wait, or its gate has begun.
    """
    with store.lease():
        store.refresh()
        if proposal not in undecided(store.entries()):
            raise RecordError(f"proposal {proposal.id} does not wait any more")
        verdicts = [e.verdict for e in store.entries() if isinstance(e, Judged)]
        if verdicts and verdicts[-1].decision == "indecisive" and verdicts[-1].proposal_id == proposal.id:
            raise RecordError(f"the gate of proposal {proposal.id} has begun; `valve gate` finishes it")
        store.append(Proposed(proposal=Proposal(task_id=proposal.task_id, reason=reason)))


def undo(store: BankStore, to: int | None, reason: str) -> int:
    """Give the bank the items of an earlier version, by default as before its last change; return that version.

    Raises:
        BankBusyError: a run is judging the bank.
        RecordError: there is no such version.
    """
    with store.lease():
        store.refresh()
        before = store.bank
        if to is None:  # the version before the last one that is not taken back
            same = [0]  # of each version, the oldest one with its items
            for entry in filter(makes_version, store.entries()):
                back = entry.undo_to if isinstance(entry, OwnerAct) else UNSET
                same.append(len(same) if back is UNSET else same[back])
            to = same[-1] - 1
        if not 0 <= to < before.version:
            raise RecordError(
                f"there is nothing to go back to: expected an earlier version than {before.version}; `valve bank log` "
                "lists them, and `valve bank undo --to VERSION` takes the items of any of them"
            )
        after = moves.restore(before, store.at(to))
        store.append(
            OwnerAct(
                act="undo", reason=reason, undo_to=to, bank_hash=before.hash, bank_after=after.hash
            )
        )  # fmt: skip
    return to


def standing(entries: Iterable[Entry]) -> Callable[[Item], str]:
    """Return the function that tells what no gate judged: `NOT_JUDGED`, `UNGATED`, or empty for a judged item."""
    made = enumerate(filter(makes_version, entries), start=1)
    ungated = {version for version, entry in made if isinstance(entry, Taken)}

    def about(item: Item) -> str:
        return NOT_JUDGED if item.judged is False else UNGATED if item.created_step in ungated else ""

    return about


class Difference(NamedTuple):
    """How the items of one bank differ from another's."""

    added: tuple[Item, ...]
    removed: tuple[Item, ...]
    changed: tuple[tuple[Item, Item], ...]
    """The earlier and the later one."""


def difference(before: Iterable[Item], after: Iterable[Item]) -> Difference:
    """Compare items by kind, name and text; how often they were supported does not count."""
    old, new = {i.key: i for i in before}, {i.key: i for i in after}
    both = ((old[key], new[key]) for key in new if key in old)
    return Difference(
        tuple(new[key] for key in new if key not in old),
        tuple(old[key] for key in old if key not in new),
        tuple((a, b) for a, b in both if texts(a) != texts(b)),
    )


def texts(item: Item) -> tuple[str, str, str]:
    """Return what a model reads of an item."""
    return item.text, item.scope_hint, item.markdown


def read_ledger(other: str, bank: Path) -> bytes:
    """Return the bytes of another bank's ledger.

    Args:
        other: its directory, a checkout that has it, or a branch or commit of git that holds the same bank.
        bank: this bank's directory, whose path is looked up in that commit.

    Raises:
        BankError: there is none.
    """
    places = [Path(other), Path(other) / BANK_NAME]
    for place in places:
        if (place / ledger.FILE_NAME).is_file():
            return Directory(place, warn=lambda message: None).read_ledger()
    if Path(other).exists():
        raise BankNotFoundError(f"{other}: holds no {ledger.FILE_NAME}; name a bank's directory, or a branch of git")
    try:
        repository = git.find_git_dir(bank)
        top = git.git_line("rev-parse", "--show-toplevel", cwd=bank, env=git.trust_checkout(bank), seconds=60)
        commit = "" if other.startswith("-") else git.resolve_commit(repository, other)
        inside = (bank.resolve() / ledger.FILE_NAME).relative_to(Path(top).resolve()).as_posix()
        blob = git.git("cat-file", "blob", f"{commit}:{inside}", git_dir=repository) if commit else b""
    except (InfrastructureError, TaskError, ValueError) as e:
        raise BankNotFoundError(f"{other}: no such directory, and no commit of git that holds {bank}") from e
    if not blob:
        raise BankNotFoundError(f"{other}: neither a bank's directory nor a branch or commit of {top}")
    return blob


def bank_of(other: str, bank: Path) -> Bank:
    """Return the current items of another bank; see `read_ledger`."""
    data = read_ledger(other, bank)
    return replay(ledger.parse(data, other).lines, other).state.bank


class Branch(NamedTuple):
    """What another branch's bank has beyond the part that both share."""

    bank: Bank
    shared: int
    """Ledger lines that both have."""
    items: tuple[Item, ...]
    """New there, or changed, and not changed here, too."""
    removes: tuple[Key, ...]
    """Items here that a merge takes out: removed there, or an earlier version of `items`."""
    both: tuple[Key, ...]
    """Items that both sides changed since."""


def branch(ours: bytes, theirs: bytes, where: str) -> Branch:
    """Compare two ledgers that may begin with the same lines.

    Raises:
        BankError: the other ledger is damaged.
    """
    lines = ledger.parse(theirs, where).lines
    pairs = zip(ours.split(b"\n")[:-1], theirs.split(b"\n")[:-1], strict=False)
    shared = next((n for n, (a, b) in enumerate(pairs) if a != b), min(ours.count(b"\n"), len(lines)))
    base = replay(lines[:shared], where).state.bank.items if shared else ()
    other = replay(lines, where).state.bank
    here = {i.key: i for i in replay(ledger.parse(ours, ledger.FILE_NAME).lines, ledger.FILE_NAME).state.bank.items}
    there, mine = difference(base, other.items), difference(base, here.values())
    own = {i.key for i in (*mine.added, *mine.removed, *(new for _, new in mine.changed))}
    coming = (*there.added, *(new for _, new in there.changed))
    both = {i.key for i in coming if i.key in own and (i.key not in here or texts(i) != texts(here[i.key]))}
    both |= {item.key for item in there.removed if item.key in own and item.key in here}
    replaced = (new.key for _, new in there.changed)
    return Branch(
        bank=other,
        shared=shared,
        items=tuple(item for item in coming if item.key not in both),
        removes=tuple(k for k in (*(i.key for i in there.removed), *replaced) if k in here and k not in both),
        both=tuple(sorted(both)),
    )
