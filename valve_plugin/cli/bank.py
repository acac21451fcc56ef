"""`valve bank`: read a bank and its ledger; `bank_review` adds the checks of its items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from valve_plugin.cli import bank_review, output, simulations
from valve_plugin.cli.options import BankDir, Json, bank_dir, examples, open_bank
from valve_plugin.cli.retire import retire
from valve_plugin.errors import BankCorruptError, ConfigError, ValveError

if TYPE_CHECKING:
    from pathlib import Path

    from valve_plugin.bank.store import BankStore
    from valve_plugin.records import Bank, Item, Kind

    Uses = Mapping[tuple[Kind, str], int] | None
    """How often each item was injected; None: that is counted on another machine, or for another user."""

At = Annotated[
    int | None, typer.Option("--at", metavar="VERSION", min=0, help="The bank as of this version. Default: now.")
]


def register(app: typer.Typer) -> None:
    """Add `valve bank` and its commands."""
    group = typer.Typer(
        help="Read the bank and its history.",
        epilog=examples("valve bank list", "valve bank show NAME", "valve bank log", "valve bank verify"),
        no_args_is_help=True,
    )
    group.command(
        "list",
        epilog=examples(
            "valve bank list                              # what the agent may be given here",
            "valve bank list --at 2                       # the bank after its second accept",
            "valve bank list --json | jq -r '.items[].name'",
        ),
    )(list_)
    group.command(
        "show",
        epilog=examples(
            "valve bank show check-callers-first          # one item, rendered on a terminal",
            "valve bank show check-callers-first --raw    # every character of its body as it is injected",
        ),
    )(show)
    group.command(
        "log",
        epilog=examples(
            "valve bank log                               # what was proposed, judged and accepted",
            "valve bank log --last 5",
        ),
    )(log)
    group.command(
        "verify",
        epilog=examples(
            "valve bank verify                            # before trusting a bank someone sent",
            "valve bank verify --bank ../other/.valve --json",
            "valve bank verify --deep --tasks tasks/      # contexts, duplicates and certificates too",
            "valve bank verify --repair                   # bank.json and panel.json anew from the ledger",
        ),
    )(verify)
    bank_review.add(group)
    group.command(
        "retire",
        epilog=examples(
            "valve bank retire check-callers-first        # the gate decides, and it counts as a query",
            "valve bank retire skill/check --tasks tasks/",
        ),
    )(retire)
    app.add_typer(group, name="bank")


def list_(at: At = None, bank: BankDir = "", json: Json = False) -> None:
    """List the items.

    Principles, then skills, each in the order they were accepted. STEP is the accept that brought an item in,
    PASSES the resolved among the attempts it was learned from, USES how often it was injected on this machine.
    """
    store = open_bank(bank)
    content = store.bank if at is None else store.at(at)
    simulation = simulations.told(store.dir, json=json)
    uses = _counts(store)
    if json:
        items = [_facts(item, uses) for item in content.items]
        facts = {"repo": content.repo, "version": content.version, "hash": content.hash, "simulation": simulation}
        output.emit_json({**facts, "items": items})
        return
    if not content.items:
        output.note(f"The bank of {content.repo} is empty at version {content.version}.")
        return
    rows = (
        [i.kind, i.name, i.support, f"{i.passes}/{i.attempts}", i.created_step, _shown_uses(i, uses)]
        for i in content.items
    )
    output.table(["KIND", "NAME", "SUPPORT", "PASSES", "STEP", "USES"], rows, can_wait=("STEP", "SUPPORT", "USES"))


def show(
    name: Annotated[
        str,
        typer.Argument(
            help="Name of the item; kind/name where a principle and a skill share it.",
            metavar="NAME",
            autocompletion=lambda: _names(),
        ),
    ],
    at: At = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print the body alone, exactly as it is injected.")] = False,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Show one item and where it came from."""
    store = open_bank(bank)
    item = find(store.bank if at is None else store.at(at), name)
    simulation = simulations.told(store.dir, json=json, data=raw)
    if json:
        output.emit_json({**_facts(item, _counts(store)), "simulation": simulation})
    elif raw:
        output.verbatim(item.markdown)
    else:
        _describe(item, _shown_uses(item, _counts(store)))


def log(
    last: Annotated[int | None, typer.Option("--last", metavar="N", min=1, help="Only the last N entries.")] = None,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Tell the history from the ledger.

    Panels, baselines, proposals, and verdicts with their numbers, oldest first.
    """
    from valve_plugin.cli.history import facts, style, words
    from valve_plugin.evolve.savings import saved

    store = open_bank(bank)
    simulation = simulations.told(store.dir, json=json)
    gates = saved(store.entries(), store.local.told("gates"))
    numbered = list(enumerate(store.entries(), start=1))[-(last or 0) :]
    if json:
        output.emit_json([{**facts(number, entry, gates), "simulation": simulation} for number, entry in numbered])
        return
    for number, entry in numbered:
        told = output.hanging(f"{number:>5}  ", output.one_line(words(entry, gates)))
        output.say(told, style=style(entry))


def _repair(directory: Path, json: bool) -> None:
    from valve_plugin.bank.repair import repair

    try:
        for line in repair(directory):
            output.note(f"valve: {line}", style="yellow")
    except BankCorruptError as e:
        if not json:
            raise
        output.note(f"valve: {e}", style="red")  # the findings say it too, and end with 1


def verify(
    deep: Annotated[
        bool, typer.Option("--deep", help="Recompute contexts, rollout numbers, duplicates and certificates too.")
    ] = False,
    tasks: Annotated[
        str,
        typer.Option("--tasks", metavar="TASKS", help="With --deep: task set of the panel. Default: the last used."),
    ] = "",
    repair: Annotated[
        bool, typer.Option("--repair", help="First make bank.json and panel.json again, keeping what was there.")
    ] = False,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Check all that a bank claims.

    Recomputes the ledger's hash chain, replays the bank from it, and decides every verdict anew from its stored
    outcomes. This finds damage and mistakes. It is not a signature: who can write the directory can also write a
    ledger that verifies. Exits with 1 when something does not hold.

    With --deep every context, rollout number, duplicate decision and certificate is derived again too, without a key
    or network, also on another machine; what takes data that is not here (a task set, an embedding model) is listed.
    """
    from valve_plugin.bank.verify import verify as examine

    directory = bank_dir(bank)
    simulation = simulations.told(directory, json=json)
    if repair:
        _repair(directory, json)
    receipt = None
    if deep:
        from valve_plugin.report.receipts import examine as recompute

        receipt = recompute(directory, tasks)
    findings = receipt.findings if receipt else tuple(examine(directory))
    damaged = any(finding.level == "error" for finding in findings)
    if json:
        more = {"recomputed": receipt.recomputed, "missing": receipt.missing} if receipt else {}
        output.emit_json(
            {"bank": str(directory), "intact": not damaged, "simulation": simulation, "findings": findings, **more}
        )
    else:
        for finding in findings:
            place = " ".join(filter(None, [finding.file, finding.place]))
            output.say(f"{finding.level}: {place}: {finding.message}", style="red" if finding.level == "error" else "")
        if not damaged:
            output.say(f"{directory}: intact; every verdict follows from its stored outcomes", style="green")
        if receipt:
            done = ", ".join(
                output.plural(number, what.removesuffix("s")) for what, number in receipt.recomputed.items()
            )
            output.say(f"recomputed: {done or 'nothing'}")
            for what in receipt.missing:
                output.say(f"not recomputed: {output.one_line(what)}", style="yellow")
        output.note("Verification detects damage; it is not a signature.")
    if damaged:
        raise typer.Exit(output.FINDING)


def find(bank: Bank, name: str) -> Item:
    """Return the item called `name`, or kind/name.

    Raises:
        ConfigError: there is none (with the nearest names), or two.
    """
    from difflib import get_close_matches

    found = [item for item in bank.items if name in (item.name, f"{item.kind}/{item.name}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigError(f"a principle and a skill are called {name!r}; say principle/{name} or skill/{name}")
    near = get_close_matches(name, [item.name for item in bank.items], n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else "`valve bank list` shows what there is"
    raise ConfigError(f"no item {name!r} in version {bank.version} of the bank of {bank.repo}; {hint}")


def _names() -> list[str]:
    """Return what a shell may complete: nothing where there is no readable bank."""
    try:
        return [item.name for item in open_bank("").bank.items]
    except ValveError:
        return []


def _describe(item: Item, uses: str) -> None:
    output.say(f"{item.kind} {item.name}", style="bold")
    rows = {
        "retrieved by": item.text,
        "applies to": item.scope_hint,
        "learned from": ", ".join(item.source_tasks),
        "evidence": f"{item.passes} of {item.attempts} source attempts resolved, support {item.support}",
        "accepted": f"at version {item.created_step}" if item.created_step else "",
        "uses here": uses,
    }
    for label, value in rows.items():
        if value:
            output.say(f"{label:12}  {output.one_line(value)}")
    output.say()
    output.markdown(item.markdown)
    if output.clean(item.markdown) != item.markdown:
        output.note("valve: the body holds control or invisible characters, left out here", style="yellow")


def _facts(item: Item, uses: Uses) -> dict[str, Any]:
    from valve_plugin.codec import plain

    return {**plain(item), "uses": _uses(item, uses)}


def _counts(store: BankStore) -> Uses:
    return store.local.usage() if store.local.here else None


def _uses(item: Item, uses: Uses) -> int | None:
    return None if uses is None else uses.get((item.kind, item.name), 0)


def _shown_uses(item: Item, uses: Uses) -> str:
    return "not on this machine" if uses is None else str(_uses(item, uses))
