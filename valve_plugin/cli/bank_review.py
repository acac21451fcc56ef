"""`valve bank review`: decide about items that were withheld, and take back proposals that wait for the gate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from valve_plugin.cli import output
from valve_plugin.cli.options import BankDir, Commands, Json, argument, flag, open_bank
from valve_plugin.codec import plain
from valve_plugin.errors import ConfigError
from valve_plugin.files import hold_lock
from valve_plugin.records import Attempt, Proposal, Withheld

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore

_QUEUED = "waits for `valve gate`"
_MOST_SOURCES = 3
"""Attempts that are shown beside a withheld item."""

commands = Commands()


@commands.add(
    "review",
    "valve bank review                            # what was withheld and waits for a person, and why",
    "valve bank review 3fa1c09b                   # one of them, beside the attempts it was learned from",
    "valve bank review 3fa1c09b --edit            # in $EDITOR; it then waits as it was saved",
    "valve bank review 3fa1c09b --approve         # let the gate judge it",
    "valve bank review 3fa1c09b --drop            # never again; a proposal that waits is withdrawn",
)
def review(
    item: Annotated[str, argument("ITEM", "Id as listed, or name. Default: list them all.", show_default=False)] = "",
    approve: Annotated[bool, flag("--approve", "Propose it again; the gate decides.")] = False,
    drop: Annotated[bool, flag("--drop", "Discard it, also when it is proposed again.")] = False,
    edit: Annotated[bool, flag("--edit", "Change it in $EDITOR first.")] = False,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Decide about withheld items, and withdraw waiting proposals.

    Withheld items are kept on this machine only. Approving an item does not accept it: the next `valve gate` judges
    it as a proposal of its own, which counts as one gate query. A proposal that waits for the gate is withdrawn with
    --drop, unless its gate has begun; `valve bank show ID` shows it.
    """
    from valve_plugin.bank.acts import withdraw
    from valve_plugin.bank.entries import Proposed, undecided

    store = open_bank(bank)
    if drop and (approve or edit):
        raise ConfigError(f"--{'approve' if approve else 'edit'} and --drop contradict each other; give one")
    if (approve or drop or edit) and not item:
        raise ConfigError("which item? name one that `valve bank review` lists")
    waiting = sorted(store.local.withheld(), key=lambda w: (w.kind, w.name, w.content_hash))
    queued = undecided(store.entries())
    if not item:
        _list(store, waiting, queued, json=json)
    elif proposal := next((p for p in queued if len(item) >= 4 and p.id.startswith(item)), None):
        if not drop:
            raise ConfigError(f"{item} waits for `valve gate`; --drop withdraws it, `valve bank show {item}` shows it")
        withdraw(store, proposal, "withdrawn by the owner")
        if json:
            output.emit_json({**_about(proposal), "state": "withdrawn"})
        else:
            output.say(f"proposal {proposal.id} is withdrawn")
    else:
        found = _find_withheld(waiting, item)
        found = _edit(store, found) if edit else found
        state = "approved" if approve else "dropped" if drop else "waiting"
        if state == "approved":
            # it is proposed only once, also after a kill and by several processes at once
            if found.item is None:
                raise ConfigError(f"{found.name}: its text was not kept, so there is nothing to propose")
            proposal = Proposal(task_id=f"review-{found.content_hash[:16]}", items=(found.item,))
            with hold_lock(
                store.local.dir / "review.lock", 30.0, f"{store.dir}: another `valve bank review` is at work"
            ):
                if not any(isinstance(e, Proposed) and e.proposal.task_id == proposal.task_id for e in store.entries()):
                    store.append(Proposed(proposal=proposal))
        if state != "waiting":
            store.local.settle_withheld(found.content_hash)
        if json:
            output.emit_json(_facts(store, found, state))
        else:
            _show_withheld(store, found, state)


def _list(store: BankStore, waiting: list[Withheld], queued: list[Proposal], *, json: bool) -> None:
    if json:
        output.emit_json([_facts(store, w, "waiting") for w in waiting] + [_about(proposal) for proposal in queued])
        return
    rows = [[w.content_hash[:8], w.kind, w.name, w.why, w.reason or ""] for w in waiting]
    rows += [[p.id[:8], "proposal", p.task_id, _QUEUED, ""] for p in queued]
    if rows:
        output.table(["ID", "KIND", "NAME", "WHY", "REASON"], rows, prose=("WHY", "REASON"))
    else:
        output.note("nothing waits: nothing was withheld, or everything is decided")


def _facts(store: BankStore, item: Withheld, state: str) -> dict[str, Any]:
    sources = [_source(attempt) for attempt in _sources(store, item)]
    return {**plain(item), "state": state, "weighs": _suspicious(item), "sources": sources}


def _about(proposal: Proposal) -> dict[str, Any]:
    facts = {"kind": "proposal", "name": proposal.task_id, "content_hash": proposal.id, "why": _QUEUED}
    return {**facts, "state": "queued"}


def _find_withheld(waiting: list[Withheld], wanted: str) -> Withheld:
    """Return the item with that name, or whose id begins so.

    Raises:
        ConfigError: there is none, or more than one.
    """
    found = [w for w in waiting if w.name == wanted or w.content_hash.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} withheld items match" if found else "no withheld item matches"
    raise ConfigError(f"{problem} {wanted!r}; `valve bank review` lists their ids")


def _edit(store: BankStore, withheld: Withheld) -> Withheld:
    """Let the person change an item in their editor; return it as it waits from then on.

    Raises:
        ConfigError: its text was not kept, or what was saved is no item or holds a secret.
    """
    from valve_plugin.extract.screen import edited, withhold, written

    if withheld.item is None:
        raise ConfigError(f"{withheld.name}: its text was not kept, so there is nothing to edit")
    saved = output.edit(written(withheld.item))
    if saved is None:
        output.note("nothing was saved, so nothing changed")
        return withheld
    item = edited(withheld.item, saved)
    changed = withhold(item, withheld.why, withheld.reason or "")
    if changed.content_hash != withheld.content_hash:
        store.local.add_withheld(changed)
        store.local.settle_withheld(withheld.content_hash)
    return changed


def _sources(store: BankStore, withheld: Withheld) -> list[Attempt]:
    """Return the latest graded attempts at the tasks that an item was learned from, as far as they are here."""
    tasks = withheld.item.source_tasks if withheld.item else ()
    graded = [a for task in tasks for a in store.local.attempts(task) if a.outcome in ("resolved", "unresolved")]
    return [a for a in graded if a.source in ("evolve", "live")][-_MOST_SOURCES:]


def _source(attempt: Attempt) -> dict[str, Any]:
    fails = [f"{test.test}: {test.reason}" for test in attempt.failed_tests]
    patch = [line for line in attempt.patch.splitlines() if not line.startswith(("+++", "---"))]
    size = f"+{sum(x.startswith('+') for x in patch)} -{sum(x.startswith('-') for x in patch)} lines"
    facts = {"task": attempt.task_id, "attempt": attempt.id, "outcome": attempt.outcome, "reason": attempt.reason}
    return {**facts, "steps": attempt.steps, "patch": size, "fails": fails}


def _show_withheld(store: BankStore, withheld: Withheld, state: str) -> None:
    output.say(f"{withheld.kind} {withheld.name}  ({state})", style="bold")
    output.say(f"id      {withheld.content_hash}")
    output.say(f"why     {output.one_line(withheld.why)}")
    if withheld.reason:
        output.say(f"reason  {output.one_line(withheld.reason)}", style="yellow")
    for phrase in _suspicious(withheld):
        output.say(f"weighs  {output.one_line(phrase)}", style="yellow")
    if state == "approved":
        output.note("the next `valve gate` judges it")
    if withheld.item is not None and state == "waiting":
        output.say(f"search  {output.one_line(withheld.item.text)}")
        output.say()
        output.verbatim(output.clean(withheld.item.markdown))  # unrendered: nothing may hide in it
        if sources := [_source(attempt) for attempt in _sources(store, withheld)]:
            output.say()
            output.say("learned from", style="bold")
            keys = ["task", "attempt", "outcome", "steps", "patch", "reason"]
            most = max(len(source["fails"]) for source in sources)
            rows = [[key, *(source[key] for source in sources)] for key in keys]
            rows += [["fails", *("".join(s["fails"][n : n + 1]) for s in sources)] for n in range(most)]
            numbers = [f"ATTEMPT {n}" for n in range(1, len(sources) + 1)]
            output.table(["", *numbers], rows, prose=numbers)


def _suspicious(withheld: Withheld) -> list[str]:
    """Return the sentences that a rule found suspicious."""
    from valve_plugin.extract.screen import suspicious_sentences, text_of

    return suspicious_sentences(text_of(withheld.item)) if withheld.item else []
