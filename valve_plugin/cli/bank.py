"""`valve bank`: read a bank and its ledger, and check them. What changes a bank is in the modules beside this one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from difflib import unified_diff
from pathlib import Path
from typing import Annotated, Any

import typer

from valve_plugin import config, plugins
from valve_plugin.bank.directory import repair as mend
from valve_plugin.bank.entries import Entry, Judged, OwnerAct, Proposed, Taken, makes_version
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import bank_export, bank_owner, output, runs
from valve_plugin.cli.gate import retire
from valve_plugin.cli.options import BankDir, Commands, Json, argument, bank_dir, find_item, flag, open_bank, option
from valve_plugin.codec import plain
from valve_plugin.errors import ConfigError
from valve_plugin.evidence.history import facts, words
from valve_plugin.records import Bank, Item, Kind, Proposal

Uses = Mapping[tuple[Kind, str], int] | None
"""How often each note was injected; None: that is counted on another machine, or for another user."""

commands = Commands(
    "bank",
    "valve bank list",
    "valve bank show NAME",
    "valve bank log",
    "valve bank verify",
    help="Read, change and share the bank.",
    no_args_is_help=True,
)


@commands.add(
    "list",
    "valve bank list                              # what the agent may be given here",
    "valve bank list --json | jq -r '.items[].name'",
)
def list_(bank: BankDir = "", json: Json = False) -> None:
    """List the notes.

    Principles, then skills, each in the order they came. SUPPORT is the number of proposals that brought a note, PASSED
    how many passed of the attempts it was learned from, SINCE the version that brought it in, USED how often it was
    injected on this machine (-: not counted here). REMARK says what no gate judged.
    """
    from valve_plugin.bank.acts import standing

    store = open_bank(bank)
    content = store.bank
    simulation = runs.note_simulation(store.dir, json=json)
    uses = _counts(store)
    if json:
        items = [_facts(item, uses) for item in content.items]
        output.emit_json({**_about(content), "simulation": simulation, "items": items})
        return
    if not content.items:
        output.note(f"The bank of {content.repo} is empty at version {content.version}.")
        return
    about = standing(store.entries())
    header = ["KIND", "NAME", "SUPPORT", "PASSED", "SINCE", "USED"]
    header += ["REMARK"] * any(map(about, content.items))
    rows = (
        [i.kind, i.name, *_evidence(i), i.created_step, "-" if uses is None else uses.get(i.key, 0), about(i)]
        for i in content.items
    )
    output.table(header, (row[: len(header)] for row in rows), prose=("REMARK",))


@commands.add(
    "show",
    "valve bank show check-callers-first          # one note and where it came from",
    "valve bank show check-callers-first --raw    # every character of its body as it is injected",
    "valve bank show 1f0c9a7b                     # a proposal, and what the model wrote for it",
)
def show(
    name: Annotated[str, argument("NAME", "Name of the note, kind/name, or id of a proposal.")],
    raw: Annotated[bool, flag("--raw", "Print the body alone, exactly as it is injected.")] = False,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Show one note, or one proposal.

    Of a proposal, also the answers of the model it was read from, on the machine that extracted it.
    """
    from valve_plugin.bank.acts import standing

    store = open_bank(bank)
    if proposal := _find_proposal(store, name):
        _show_proposal(store, proposal, json=json)
        return
    item = find_item(store.bank, name)
    simulation = runs.note_simulation(store.dir, json=json, data=raw)
    uses = _counts(store)
    if json:
        output.emit_json({**_facts(item, uses), "simulation": simulation})
    elif raw:
        output.verbatim(item.markdown)
    else:
        output.say(f"{item.kind} {item.name}", style="bold")
        rows = {
            "retrieved by": item.text,
            "applies to": item.scope_hint,
            "learned from": ", ".join(item.source_tasks),
            "evidence": f"{item.passes} of {item.attempts} source attempts passed, support {item.support}"
            * any(_evidence(item)),
            "since": f"version {item.created_step}" if item.created_step else "",
            "note": standing(store.entries())(item),
            "look at": ", ".join(f"`valve attempts show {one}`, suspicious" for one in _suspicious(store, item)),
            "uses here": "not counted on this machine" if uses is None else str(uses.get(item.key, 0)),
        }
        for label, value in rows.items():
            if value:
                output.say(f"{label:12}  {output.one_line(value)}")
        output.say()
        output.verbatim(output.clean(item.markdown) + "\n")
        if output.clean(item.markdown) != item.markdown:
            output.warn("the body holds control or invisible characters, left out here")


def _suspicious(store: BankStore, item: Item) -> list[str]:
    """Return the ids of suspicious attempts on this machine that count as passed for a note."""
    sources = [one for task in item.source_tasks for one in store.local.attempts(task)]
    return [
        one.id for one in sources if one.source in ("evolve", "live") and one.outcome == "resolved" and one.suspicious
    ]


@commands.add("log", "valve bank log                               # what was proposed, judged and accepted")
def log(bank: BankDir = "", json: Json = False) -> None:
    """Show the history in the ledger.

    Panels, baselines, proposals, verdicts with their numbers, and what the owner did, oldest first; `now version
    N` marks what changed the bank. `valve bank show ID` has the whole of a proposal, and what the model wrote; so has
    --json.
    """
    from valve_plugin.evidence.summary import fallen_by_accept, gate_savings
    from valve_plugin.evolve.open import LAST_TASKS
    from valve_plugin.tasks.names import put_names, task_names

    store = open_bank(bank)
    simulation = runs.note_simulation(store.dir, json=json)
    gates = gate_savings(store.entries(), store.local.read_telemetry("gates"))
    fallen = fallen_by_accept(store.entries())
    names = {} if json else task_names(store.local.recall(LAST_TASKS), store.local.attempts(), ids=True)
    version, rows = 0, []
    for number, entry in enumerate(store.entries(), start=1):
        version += makes_version(entry)
        if json:
            row = {**facts(number, entry, gates, fallen), "version_after": version, "simulation": simulation}
            written = store.local.answers(entry.proposal.id) if isinstance(entry, Proposed) else []
            rows.append({**row, **({"answers": written} if written else {})})
            continue
        # what changed the bank or needs a person is coloured
        style = "yellow" if isinstance(entry, Taken | OwnerAct) else ""
        if isinstance(entry, Judged):
            style = {"accept": "green", "reject": "", "indecisive": "yellow"}[entry.verdict.decision]
        now = f"; now version {version}" if makes_version(entry) else ""
        output.say(f"{number:>5}  {output.one_line(put_names(words(entry, gates, fallen), names))}{now}", style=style)
    if json:
        output.emit_json(rows)


@commands.add(
    "diff",
    "valve bank diff                              # what the last change did",
    "valve bank diff ../fork/.valve               # from another bank, or a branch of git, to this one",
)
def diff(
    a: Annotated[str, argument("A", "Version, bank directory or git branch. Default: the version before.")] = "",
    b: Annotated[str, argument("B", "The same. Default: this bank as it is now.")] = "",
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Compare two versions, or two banks.

    Shows which notes came, went, or have other words.
    """
    from valve_plugin.bank.acts import difference
    from valve_plugin.extract.screen import written

    store = open_bank(bank)
    before = _side(store, a) if a else store.at(max(0, store.bank.version - 1))
    after = _side(store, b) if b else store.bank
    found = difference(before.items, after.items)
    if json:
        sides = {"before": _about(before), "after": _about(after)}
        changed = [{"kind": old.kind, "name": old.name, "before": old, "after": new} for old, new in found.changed]
        output.emit_json({**sides, "added": found.added, "removed": found.removed, "changed": changed})
        return
    for item in found.removed:
        output.say(f"- {item.kind} {item.name}: {output.one_line(item.text)}", style="red")
    for item in found.added:
        output.say(f"+ {item.kind} {item.name}: {output.one_line(item.text)}", style="green")
    for old, new in found.changed:
        output.say(f"~ {old.kind} {old.name}", style="yellow")
        lines = list(unified_diff(written(old).splitlines(), written(new).splitlines(), lineterm="", n=1))
        for line in lines[2:]:
            output.say(f"    {line}", style={"+": "green", "-": "red"}.get(line[:1], ""))
    if not any(found):
        output.note("no difference")


def _side(store: BankStore, named: str) -> Bank:
    """Return the bank of a version, a directory or a branch."""
    from valve_plugin.bank.acts import bank_of

    return store.at(int(named)) if named.isdecimal() else bank_of(named, store.dir)


def _about(bank: Bank) -> dict[str, Any]:
    return {"repo": bank.repo, "version": bank.version, "hash": bank.hash}


@commands.add(
    "verify",
    "valve bank verify                            # before trusting a bank someone sent",
    "valve bank verify --deep --tasks tasks/      # contexts, duplicates and certificates too",
    "valve bank verify --repair                   # bank.json and panel.json anew from the ledger",
)
def verify(
    deep: Annotated[bool, flag("--deep", "Also derive contexts, rollout numbers and certificates again.")] = False,
    tasks: Annotated[str, option("--tasks", "TASKS", "With --deep: the task set. Default: the last used.")] = "",
    repair: Annotated[bool, flag("--repair", "First make bank.json and panel.json again; keep the old ones.")] = False,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Check all that a bank claims.

    Recomputes the ledger's hash chain, replays the bank from the ledger, and decides every verdict again from its
    stored outcomes. This finds damage and mistakes. It is not a signature: whoever can write the directory can also
    write a ledger that verifies. Exit code 1 when something is wrong.

    --deep also derives contexts, rollout numbers, the order of panel tasks, duplicates, the passes that notes claim and
    certificates again, and compares panel and holdout with the task set. It needs no key and no network, and works on
    another machine. What needs missing data (a task set, an embedding model) is listed.
    """
    from valve_plugin.bank.verify import verify as examine
    from valve_plugin.evidence.receipts import examine as recompute

    directory = bank_dir(bank)
    simulation = runs.note_simulation(directory, json=json)
    if repair:
        for line in mend(directory):
            output.warn(line)
    receipt = recompute(directory, tasks, **_condition(directory)) if deep else None
    findings = receipt.findings if receipt else tuple(examine(directory))
    damaged = any(finding.level == "error" for finding in findings)
    if json:
        facts = {"bank": str(directory), "intact": not damaged, "simulation": simulation, "findings": findings}
        more = {"recomputed": receipt.recomputed, "missing": receipt.missing} if receipt else {}
        output.emit_json({**facts, **more})
    else:
        for one in findings:
            place = " ".join(filter(None, [one.file, one.place]))
            output.say(f"{one.level}: {place}: {one.message}", style="red" if one.level == "error" else "")
        if not damaged:
            output.say(f"{directory}: intact; every verdict follows from its stored outcomes", style="green")
        if receipt:
            counts = [output.plural(n, what.removesuffix("s")) for what, n in receipt.recomputed.items()]
            output.say(f"recomputed: {', '.join(counts) or 'nothing'}")
            for what in receipt.missing:
                output.say(f"not recomputed: {output.one_line(what)}", style="yellow")
        output.note("Verification detects damage; it is not a signature.")
    if damaged:
        raise typer.Exit(output.FINDING)


def _condition(directory: Path) -> dict[str, Any]:
    """Return what retrieved and learned in a bank that is of an experiment's run; nothing for VALVE itself."""
    from valve_plugin.lab.conditions import find, with_hooks

    with suppress(ConfigError):  # which `verify` reports
        settings = config.load(directory)
        if settings.condition:
            hook = plugins.load(with_hooks(settings).plugins).hook
            return {"retrieve": hook.valve_retrieve, "taught": find(settings.condition).train is not None}
    return {}


def _find_proposal(store: BankStore, wanted: str) -> Proposal | None:
    """Return the proposal whose id begins so, unless an item has that name; None if there is none.

    Raises:
        ConfigError: there is more than one.
    """
    if len(wanted) < 4 or any(item.name == wanted for item in store.bank.items):
        return None
    every = {e.proposal.id: e.proposal for e in store.entries() if isinstance(e, Proposed)}
    found = [proposal for id_, proposal in every.items() if id_.startswith(wanted)]
    if len(found) > 1:
        raise ConfigError(f"{len(found)} proposals have ids that begin with {wanted!r}; give more of the id")
    return found[0] if found else None


def _show_proposal(store: BankStore, proposal: Proposal, *, json: bool) -> None:
    from valve_plugin.evidence.summary import fallen_by_accept

    def about(entry: Entry) -> bool:
        id_ = entry.proposal.id if isinstance(entry, Proposed) else ""
        id_ = entry.verdict.proposal_id if isinstance(entry, Judged) else id_
        return (entry.proposal_id if isinstance(entry, Taken) else id_) == proposal.id

    fallen = fallen_by_accept(store.entries())
    answers = store.local.answers(proposal.id)
    history = [words(e, fallen=fallen) for e in store.entries() if about(e)]
    simulation = runs.note_simulation(store.dir, json=json)
    if json:
        facts = {"id": proposal.id, **plain(proposal), "history": history, "answers": answers}
        output.emit_json({**facts, "simulation": simulation})
        return
    for line in filter(None, [*history, proposal.issue_summary]):
        output.say(output.one_line(line))
    for item in proposal.items:
        replaced = "; replaces the version before it" if item.key in proposal.removed else ""
        output.say(f"\n{item.kind} {item.name}{replaced}", style="bold")
        output.say(output.one_line(item.text))
        output.verbatim(output.clean(item.markdown) + "\n")
    for one in answers:
        output.say(f"\nwhat {one['model']} wrote ({one['for']})", style="bold")
        output.verbatim(output.clean(one["answer"]) + "\n")  # unrendered: nothing may hide in it
    if not answers:
        output.note("what the model wrote is not on this machine")


def _facts(item: Item, uses: Uses) -> dict[str, Any]:
    return {**plain(item), "uses": None if uses is None else uses.get(item.key, 0)}


def _counts(store: BankStore) -> Uses:
    return store.local.usage() if store.local.exists else None


def _evidence(item: Item) -> tuple[str, str]:
    """Return support and passes; nothing of what a person wrote and nothing since has confirmed."""
    learned = item.attempts or item.support > 1
    return (str(item.support), f"{item.passes}/{item.attempts}") if learned else ("", "")


@commands.add(
    "lint",
    "valve bank lint                              # before a bank is shared",
    "valve bank lint --json | jq -r '.findings[].name'",
)
def lint(bank: BankDir = "", json: Json = False) -> None:
    """Look for notes nobody should be given.

    Runs today's rules for proposals on each note, and checks for keys, control characters, size and duplicates.
    Exit code 1 when something is found. Rules see wording, not intent: "nothing found" is no proof.
    """
    from valve_plugin.extract.screen import lint as examine
    from valve_plugin.redact import Redactor

    store = open_bank(bank)
    simulation = runs.note_simulation(store.dir, json=json)
    findings, items = examine(store.bank, Redactor.of(os.environ)), len(store.bank.items)
    if json:
        facts = {"bank": str(store.dir), "simulation": simulation, "items": items}
        output.emit_json({**facts, "findings": [finding._asdict() for finding in findings]})
    else:
        for one in findings:
            output.say(output.one_line(f"{one.kind} {one.name}: {one.check}: {one.message}"), style="red")
        if not findings:
            output.say(f"{output.plural(items, 'note')}: nothing found", style="green")
    if findings:
        raise typer.Exit(output.FINDING)


for part in (bank_owner, bank_export):
    commands.registered_commands += part.commands.registered_commands
commands.add(
    "retire",
    "valve bank retire check-callers-first        # the gate decides, and it counts as a query",
    "valve bank retire skill/check --tasks tasks/",
)(retire)
