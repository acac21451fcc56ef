"""What the owner does to a bank: `valve bank add`, `import`, `merge`, `remove`, `rename`, `edit`, `undo`, `review`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from valve_plugin.bank import ledger
from valve_plugin.bank.entries import Proposed, undecided
from valve_plugin.bank.scripted_bank import is_scripted, names_scripted_model
from valve_plugin.cli import output
from valve_plugin.cli.options import (
    BankDir,
    Commands,
    Count,
    Json,
    argument,
    find_item,
    flag,
    open_bank,
    option,
    read_input,
)
from valve_plugin.codec import plain
from valve_plugin.errors import ConfigError
from valve_plugin.evidence.history import facts, words
from valve_plugin.files import hold_lock
from valve_plugin.records import EVERY_TASK, Attempt, Item, Kind, Proposal, Withheld, owner_task
from valve_plugin.tasks.syntax import patch_changes

if TYPE_CHECKING:
    from valve_plugin.bank.exchange import Note
    from valve_plugin.bank.store import BankStore

_MAX_BYTES = 1_000_000
_NO_REASON = "no reason given"

commands = Commands()

Reason = Annotated[str, option("--reason", "TEXT", "Why; kept in the ledger.")]
KindOf = Annotated[Kind, option("--kind", "KIND", "Of notes that do not say it: skill or principle.")]
Names = Annotated[list[str], argument("NAME", "Notes, as name or kind/name.")]
_QUEUED = "waits for `valve gate`"
_MOST_SOURCES = 3
"""Attempts that are shown beside a withheld item."""


class How(NamedTuple):
    """The options of the commands that bring items in."""

    unjudged: Annotated[bool, flag("--unjudged", "Take them at once. The ledger, certificates and exports say so.")] = (
        False
    )
    each: Annotated[bool, flag("--each", "Judge every note on its own: one gate query each.")] = False
    reason: Reason = ""
    dry_run: Annotated[bool, flag("--dry-run", "Show what would be done, and change nothing.")] = False


HOW = How()


@commands.add(
    "add",
    "valve bank add notes.md                      # cut at its headings; the next `valve gate` judges them",
    "echo 'Run make dev first.' | valve bank add - --name setup --when 'Set up the project'",
    "valve bank add notes.md --unjudged --reason 'we know these'",
)
def add(
    file: Annotated[str, argument("FILE", "Text or Markdown; - reads stdin.")],
    name: Annotated[str, option("--name", "NAME", "Take the whole text as one note of this name.")] = "",
    when: Annotated[str, option("--when", "SENTENCE", "With --name: which tasks get it. Default: every task.")] = "",
    kind: KindOf = "skill",
    how: How = HOW,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Add notes of your own.

    They wait in the queue, and `valve gate` judges them like any proposal: one query for all of them together. What
    looks like an attack or holds a secret is withheld, with the reason.
    """
    from valve_plugin.bank.exchange import Note, is_simulated, read_file

    data = read_input(file, _MAX_BYTES)
    label = "stdin" if file == "-" else Path(file).name
    if when and not name:
        raise ConfigError("--when is about one note; give its --name, too")
    if name:
        scope = "" if when else EVERY_TASK
        text = data.decode("utf-8", "replace")
        notes = [Note(kind, name, when or name, text, scope, is_simulated(text))]
    else:
        notes = read_file(label, data, kind, folder=Path(file).resolve().parent.name)
    store = open_bank(bank)
    _enter(store, _screened(store, label, notes), how, json=json)


@commands.add(
    "import",
    "valve bank import AGENTS.md                  # or CLAUDE.md, .cursorrules, .github/copilot-instructions.md",
    "valve bank import .claude/skills             # a folder of skills (SKILL.md), or one of them",
)
def import_(
    path: Annotated[str, argument("PATH", "A file of instructions, a folder of skills or rules, or a bank.")],
    kind: KindOf = "skill",
    how: How = HOW,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Take over notes that exist already.

    A file is cut at its headings; a section that is too long is cut at its paragraphs. A note with the name of one
    in the bank is a new version of it. Everything waits for `valve gate`, which needs a model and
    a task set, and no agent gets it before; with --unjudged it is taken as it is.
    """
    from valve_plugin.bank import acts
    from valve_plugin.bank.exchange import read_path

    place = Path(path)
    place = place.parent if place.name in (ledger.FILE_NAME, ledger.BANK_FILE) else place
    store = open_bank(bank)
    if (place / ledger.FILE_NAME).is_file():
        _merge(store, path, acts.read_ledger(str(place), store.dir), how, json=json, whole=True)
        return
    if not place.exists():
        raise ConfigError(f"{path}: there is no such file or folder")
    _enter(store, _screened(store, path, read_path(place, kind)), how, json=json)


@commands.add(
    "merge",
    "valve bank merge ../other-checkout/.valve    # what the other side learned since",
    "valve bank merge feature-branch              # the same bank in another branch of git",
    "valve bank merge MERGE_HEAD                  # in the middle of a git merge, after keeping our side's files",
)
def merge(
    other: Annotated[str, argument("OTHER", "Directory of the other bank, or a branch or commit of git.")],
    how: How = HOW,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Bring two branches of a bank together.

    What both have stays. What the other side added, changed or removed since is proposed here again, because it was
    judged beside other notes. Where both sides changed a note, this side's stays.
    """
    from valve_plugin.bank import acts

    store = open_bank(bank)
    _merge(store, other, acts.read_ledger(other, store.dir), how, json=json)


@commands.add("remove", "valve bank remove check-callers-first --reason 'no longer true'", "valve bank remove a b c")
def remove(names: Names, reason: Reason = "", bank: BankDir = "", json: Json = False) -> None:
    """Take notes out, without a gate.

    `valve bank retire` asks the gate instead, and keeps what was certified.
    """
    from valve_plugin.bank import acts

    store = open_bank(bank)
    keys = list(dict.fromkeys(find_item(store.bank, name).key for name in names))
    acts.act(store, "remove", reason or _NO_REASON, removes=keys)
    _done(store, json=json)


@commands.add("rename", "valve bank rename dates compare-dates-in-utc")
def rename(
    old: Annotated[str, argument("OLD", "The note, as name or kind/name.")],
    new: Annotated[str, argument("NEW", "Its new name.")],
    reason: Reason = "",
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Give a note another name.

    The name is part of what the agent reads, so a renamed note counts as not judged.
    """
    from valve_plugin.bank import acts
    from valve_plugin.extract.screen import normal_name

    store = open_bank(bank)
    item = find_item(store.bank, old)
    name = normal_name(new)
    if not name or name == item.name:
        raise ConfigError(f"{new!r} is no other name; expected letters, digits, - and _")
    acts.act(store, "rename", reason or _NO_REASON, removes=[item.key], items=[replace(item, name=name)])
    _done(store, json=json)


@commands.add("edit", "valve bank edit dates                        # in $EDITOR; what is saved counts as not judged")
def edit(
    name: Annotated[str, argument("NAME", "The note, as name or kind/name.")],
    reason: Reason = "",
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Change a note in $EDITOR, without a gate."""
    from valve_plugin.bank import acts
    from valve_plugin.extract.screen import edited, written

    store = open_bank(bank)
    item = find_item(store.bank, name)
    saved = output.edit(written(item))
    changed = edited(item, saved) if saved is not None else item
    if changed == item:
        output.note("nothing was saved, so nothing changed")
    else:
        acts.act(store, "edit", reason or "edited", removes=[item.key], items=[changed])
    _done(store, json=json)


@commands.add(
    "undo",
    "valve bank undo                              # takes back the last accept, or the last thing you did",
    "valve bank undo --to 3                       # the notes of version 3 again",
)
def undo(
    to: Annotated[Count, option("--to", "VERSION", "Go back to this version.", min=0)] = None,
    reason: Reason = "",
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Go back to an earlier version.

    Its notes become a new version, so nothing is lost. A second undo goes back further; --to takes an undo back.
    """
    from valve_plugin.bank import acts

    store = open_bank(bank)
    acts.undo(store, to, reason or "taken back")
    _done(store, json=json)


class Coming(NamedTuple):
    """What comes into a bank: from notes, or from another bank."""

    source: str
    items: list[Item]
    withheld: list[Withheld]
    removes: Sequence[tuple[Kind, str]] = ()
    act: Literal["add", "merge"] = "add"


def _screened(store: BankStore, source: str, notes: Sequence[Note]) -> Coming:
    """Return the notes as items, and what is withheld: by the rules for a model's proposal, and for hidden text."""
    from valve_plugin.extract.parse import Draft
    from valve_plugin.extract.screen import Source, screen

    _refuse_simulation(store, source, any(note.simulated for note in notes))
    drafts = [(n.kind, Draft(n.name, n.text, n.markdown, n.scope_hint)) for n in notes]
    found = screen(drafts, Source((), 0, 0))
    items, hiding = _withhold(found.items)
    return Coming(source, items, [*found.withheld, *hiding])


def _refuse_simulation(store: BankStore, source: str, simulated: bool) -> None:
    if simulated and not is_scripted(store.dir):
        raise ConfigError(
            f"{source} was taught or judged by the scripted model of a SIMULATION; a real bank takes nothing of it"
        )


def _withhold(items: Sequence[Item]) -> tuple[list[Item], list[Withheld]]:
    from valve_plugin.extract.screen import text_of, violations, withhold
    from valve_plugin.redact import Redactor

    redactor = Redactor.of(os.environ)
    kept, withheld = [], []
    for item in items:
        text = text_of(item)
        if redactor(text) != text:
            withheld.append(Withheld(kind=item.kind, name=item.name, why="holds a secret"))
        elif why := [*violations(text), *[f"hides what it says ({', '.join(item.hidden[:5])})"] * bool(item.hidden)]:
            withheld.append(withhold(item, "; ".join(why)))
        else:
            kept.append(item)
    return kept, withheld


def _merge(store: BankStore, source: str, theirs: bytes, how: How, *, json: bool, whole: bool = False) -> None:
    """Bring in what another bank has beyond the common part; of a whole one, nothing is removed here."""
    from valve_plugin.bank import acts

    ours = (store.dir / ledger.FILE_NAME).read_bytes()
    _refuse_simulation(store, source, names_scripted_model(theirs))
    found = acts.branch(ours, theirs, source)
    coming, removes = (found.bank.items, ()) if whole else (found.items, found.removes)
    if not whole:
        output.note(f"{output.plural(found.shared, 'ledger line')} in common with {source}")
        for kind, name in found.both:
            output.warn(f"{kind} {name} changed on both sides; this side's stays")
    kept, withheld = _withhold([replace(item, created_step=0, judged=UNSET) for item in coming])
    _enter(store, Coming(source, kept, withheld, removes, "merge"), how, json=json)


def _enter(store: BankStore, coming: Coming, how: How, *, json: bool) -> None:
    """Show what comes in, and put it into the queue or into the bank."""
    from valve_plugin.bank.acts import NOT_JUDGED

    proposals = _proposals(store, coming, each=how.each and not how.unjudged)
    changes = [p for p in proposals if not p.empty]
    if not how.unjudged:  # what waits already, in any words of its source, is not queued again
        queued = [(p.items, p.removed) for p in undecided(store.entries())]
        changes = [p for p in changes if (p.items, p.removed) not in queued]
    if not json:
        rows: list[list[object]] = []
        for p in proposals:
            for i in p.items:
                rows.append([i.kind, i.name, "new version" if i.key in p.removed else "new", len(i.markdown), i.text])
            own = {item.key for item in p.items}
            rows += [[kind, name, "removed", "", ""] for kind, name in p.removed if (kind, name) not in own]
            rows += [[m.kind, m.name, "there already", "", ""] for m in p.merges]
            rows += [[s.kind, s.name, f"repeats {s.duplicate_of}", "", ""] for s in p.suppressed]
        rows += [[w.kind, w.name, f"withheld: {w.why}", "", ""] for w in coming.withheld]
        if rows:
            output.table(["KIND", "NAME", "STATE", "SIZE", "SENTENCE"], rows, prose=("SENTENCE",))
        if any(w.item is not None for w in coming.withheld):
            output.note("`valve bank review` shows what was withheld, and lets you decide")
    if not how.dry_run:
        _keep(store, changes, coming, how)
    state = "shown" if how.dry_run else "taken" if how.unjudged else "queued"
    if json:
        about = {"bank": str(store.dir), "version": store.bank.version, "state": state}
        shown = [{"id": p.id, **plain(p)} for p in proposals]
        refused = [{"kind": w.kind, "name": w.name, "why": w.why} for w in coming.withheld]
        output.emit_json({**about, "proposals": shown, "withheld": refused})
    elif not changes:
        output.note("nothing new: the bank has all of this, or it waits already, or it was withheld")
    elif state == "taken":
        output.say(f"version {store.bank.version}: {NOT_JUDGED}", style="yellow")
        _note_epoch(store)
    elif state == "queued":
        queries = output.plural(len(changes), "query", "queries")
        output.say(output.advice(f"queued; `valve gate` judges it with {queries}"), style="green")
        output.note(
            "no agent gets it before that gate, which needs a model and a task set; --unjudged takes it as it is"
        )
        output.note("`valve bank review` lists what waits, and withdraws it")


def _keep(store: BankStore, changes: Sequence[Proposal], coming: Coming, how: How) -> None:
    """Take the changes into the bank, or queue them."""
    from valve_plugin.bank import acts

    for one in coming.withheld:
        if one.item is not None:
            store.local.add_withheld(one)
    for p in changes:
        if how.unjudged:
            acts.act(store, coming.act, how.reason or f"from {coming.source}", removes=p.removed, items=p.items)
        else:
            store.append(Proposed(proposal=p))
    for waiting in undecided(store.entries()) if how.unjudged else ():
        if (waiting.items, waiting.removed) in [(p.items, p.removed) for p in changes]:
            acts.withdraw(store, waiting, "its owner took it without a gate")


def _proposals(store: BankStore, coming: Coming, *, each: bool) -> list[Proposal]:
    """Return what is proposed: one proposal, or one for each item and each removal; what is there already is left out.

    An item with the name of one in the bank is a new version of it.
    """
    from valve_plugin.extract.duplicates import fit

    source, items, withheld, removes, _ = coming
    here, new = {item.key for item in store.bank.items}, {item.key for item in items}
    groups: dict[str, tuple[Sequence[Item], Sequence[tuple[Kind, str]]]] = {source: (items, removes)}
    if each:
        groups = {f"{source} {i.kind}/{i.name}": ((i,), ()) for i in items}
        groups |= {
            f"{source} {kind}/{name}": ((), ((kind, name),)) for kind, name in removes if (kind, name) not in new
        }
    hidden = tuple(replace(w, item=None, reason=UNSET) for w in withheld)
    found: list[Proposal] = []
    for what, (group, leaving) in groups.items():
        gone = tuple(dict.fromkeys([*(item.key for item in group if item.key in here), *leaving]))
        task, held = owner_task(what), () if found else hidden
        proposal = Proposal(task_id=task, items=tuple(group), removes=gone or UNSET, withheld=held)
        found.append(fit(proposal, store.bank))
    return found


def _done(store: BankStore, *, json: bool) -> None:
    """Print what the last entry did."""
    *_, (number, last) = enumerate(store.entries(), 1)
    if json:
        output.emit_json({"bank": str(store.dir), "version": store.bank.version, "entry": facts(number, last)})
        return
    output.say(f"version {store.bank.version}: {output.one_line(words(last))}")
    _note_epoch(store)


def _note_epoch(store: BankStore) -> None:
    if store.panel() is not None and store.epoch() is None:
        output.note("the next `valve gate` opens a new epoch and measures the bank again")


@commands.add(
    "review",
    "valve bank review                            # what was withheld and waits for a person, and why",
    "valve bank review 3fa1c09b                   # one of them, beside the attempts it was learned from",
    "valve bank review 3fa1c09b --edit            # in $EDITOR; it then waits as it was saved",
    "valve bank review 3fa1c09b --approve         # let the gate judge it",
    "valve bank review 3fa1c09b --drop            # never again; a proposal that waits is withdrawn",
)
def review(
    item: Annotated[str, argument("NOTE", "Id as listed, or name. Default: list them all.", show_default=False)] = "",
    approve: Annotated[bool, flag("--approve", "Propose it again; the gate decides.")] = False,
    drop: Annotated[bool, flag("--drop", "Discard it, also when it is proposed again.")] = False,
    edit: Annotated[bool, flag("--edit", "Change it in $EDITOR first.")] = False,
    bank: BankDir = "",
    json: Json = False,
) -> None:
    """Decide about withheld notes, and withdraw waiting proposals.

    Withheld notes are kept on this machine only. Approving a note does not accept it: the next `valve gate` judges
    it as a proposal of its own, which counts as one gate query. A proposal that waits for the gate is withdrawn with
    --drop, unless its gate has begun; `valve bank show ID` shows it.
    """
    from valve_plugin.bank.acts import withdraw

    store = open_bank(bank)
    if drop and (approve or edit):
        raise ConfigError(f"--{'approve' if approve else 'edit'} and --drop contradict each other; give one")
    if (approve or drop or edit) and not item:
        raise ConfigError("which note? name one that `valve bank review` lists")
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
    problem = f"{len(found)} withheld notes match" if found else "no withheld note matches"
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
    signs = [change.text[0] for change in patch_changes(attempt.patch)]
    size = f"+{signs.count('+')} -{signs.count('-')} lines"
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
