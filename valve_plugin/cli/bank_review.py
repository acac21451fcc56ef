"""`valve bank review` and `valve bank lint`: a person's look at what the screen withheld, and at a whole bank."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from valve_plugin.cli import output, simulations
from valve_plugin.cli.options import BankDir, Json, examples, open_bank
from valve_plugin.errors import ConfigError

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore
    from valve_plugin.records import Withheld

_SHORTEST = 8
"""Hex digits of an id in a list."""


def add(group: typer.Typer) -> None:
    """Add both commands to `valve bank`."""
    group.command(
        "review",
        epilog=examples(
            "valve bank review                            # what was withheld and waits for a person",
            "valve bank review 3fa1c09b                   # one of them, and what weighed most",
            "valve bank review 3fa1c09b --approve         # let the gate judge it",
            "valve bank review 3fa1c09b --drop            # never again",
        ),
    )(review)
    group.command(
        "lint",
        epilog=examples(
            "valve bank lint                              # before a bank is shared",
            "valve bank lint --bank ../theirs/.valve      # before somebody else's is used",
            "valve bank lint --json | jq -r '.findings[].name'",
        ),
    )(lint)


def review(
    item: Annotated[
        str, typer.Argument(metavar="ITEM", help="Id as listed, or name. Default: list them all.", show_default=False)
    ] = "",
    approve: Annotated[bool, typer.Option("--approve", help="Propose it again; the gate decides.")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Discard it, also when it is proposed again.")] = False,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Decide about items the screen withheld.

    They are kept on this machine only. An approved item is not accepted: it waits for the next `valve gate` as a
    proposal of its own, and counts as one gate query.
    """
    store = open_bank(bank)
    waiting = sorted(store.local.quarantine(), key=lambda w: (w.kind, w.name, w.content_hash))
    if approve and drop:
        raise ConfigError("--approve and --drop contradict each other; give one")
    if not item:
        if approve or drop:
            raise ConfigError("which item? name one that `valve bank review` lists")
        _list(waiting, json)
        return
    chosen = _find(waiting, item)
    if approve:
        _approve(store, chosen)
    if approve or drop:
        store.local.settle(chosen.content_hash)
    _show(chosen, "approved" if approve else "dropped" if drop else "waiting", json)


def lint(bank: BankDir = "", json: Json = False) -> None:
    """Look for items nobody should be given.

    Each item goes through the screen of proposals as it is today, and is checked for keys, control characters,
    size, and duplicates. Exits with 1 when something is found. The screen knows wording, not intent: no finding
    is no proof.
    """
    from valve_plugin.bank.redact import Redactor
    from valve_plugin.extract.lint import lint as examine

    store = open_bank(bank)
    simulation = simulations.told(store.dir, json=json)
    findings = examine(store.bank, Redactor.of(os.environ))
    if json:
        shown = [finding._asdict() for finding in findings]
        about = {"bank": str(store.dir), "simulation": simulation, "items": len(store.bank.items)}
        output.emit_json({**about, "findings": shown})
    else:
        for finding in findings:
            output.say(
                output.one_line(f"{finding.kind} {finding.name}: {finding.check}: {finding.message}"), style="red"
            )
        if not findings:
            output.say(f"{output.plural(len(store.bank.items), 'item')}: nothing found", style="green")
    if findings:
        raise typer.Exit(output.FINDING)


def _list(waiting: list[Withheld], json: bool) -> None:
    if json:
        output.emit_json([_facts(w, "waiting") for w in waiting])
    elif not waiting:
        output.note("nothing was withheld, or everything is decided")
    else:
        output.table(
            ["ID", "KIND", "NAME", "WHY"], [[w.content_hash[:_SHORTEST], w.kind, w.name, w.why] for w in waiting]
        )


def _find(waiting: list[Withheld], wanted: str) -> Withheld:
    """Return the item with that name, or whose id begins so.

    Raises:
        ConfigError: there is none, or more than one.
    """
    found = [w for w in waiting if w.name == wanted or w.content_hash.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} withheld items match" if found else "no withheld item matches"
    raise ConfigError(f"{problem} {wanted!r}; `valve bank review` lists their ids")


def _approve(store: BankStore, withheld: Withheld) -> None:
    """Propose the item on its own. Killed half-way and started again, it is still proposed once."""
    from valve_plugin.bank.entries import Proposed
    from valve_plugin.records import Proposal

    if withheld.item is None:
        raise ConfigError(f"{withheld.name}: its text was not kept, so there is nothing to propose")
    proposal = Proposal(task_id=f"review-{withheld.content_hash[:16]}", items=(withheld.item,))
    if not any(isinstance(e, Proposed) and e.proposal.task_id == proposal.task_id for e in store.entries()):
        store.append(Proposed(proposal=proposal))


def _show(withheld: Withheld, state: str, json: bool) -> None:
    if json:
        output.emit_json(_facts(withheld, state))
        return
    output.say(f"{withheld.kind} {withheld.name}  ({state})", style="bold")
    output.say(f"id      {withheld.content_hash}")
    output.say(f"why     {output.one_line(withheld.why)}")
    for phrase in _phrases(withheld):
        output.say(f"weighs  {output.one_line(phrase)}", style="yellow")
    if state == "approved":
        output.note("the next `valve gate` judges it")
    if withheld.item is not None and state == "waiting":
        output.say(f"search  {output.one_line(withheld.item.text)}")
        output.say()
        output.verbatim(output.clean(withheld.item.markdown))  # unrendered: nothing may hide in it


def _facts(withheld: Withheld, state: str) -> dict[str, object]:
    from valve_plugin.codec import plain

    return {**plain(withheld), "state": state, "weighs": _phrases(withheld)}


def _phrases(withheld: Withheld) -> list[str]:
    from valve_plugin.extract.screen import text_of
    from valve_plugin.extract.weigh import weigh

    if withheld.item is None:
        return []
    return list(weigh(text_of(withheld.item)).phrases)
