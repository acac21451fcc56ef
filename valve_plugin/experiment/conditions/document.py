"""One document of principles and one of skills, changed by section edits and injected in full.

A replacement removes the target and appends the new version; a missing target makes it an addition. An addition that
reuses a name is ignored; a deletion of a missing section is a no-op. Both are recorded.

Source: app:impl-ablations, "Single-document extraction".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from valve_plugin.codec import convert
from valve_plugin.config import Settings
from valve_plugin.errors import ModelOutputError
from valve_plugin.evolve.steps import Steps
from valve_plugin.experiment.conditions import Condition
from valve_plugin.experiment.conditions.inject_all import whole
from valve_plugin.extract.ask import ask
from valve_plugin.extract.digest import readable
from valve_plugin.extract.parse import Draft, answered_json
from valve_plugin.extract.reflect import (
    ISSUE_LIMIT,
    Style,
    after,
    fill,
    nothing_yet,
    prompt,
    source_of,
    user_message,
)
from valve_plugin.extract.screen import normal_name, safe_line, screen
from valve_plugin.extract.second_look import second_look
from valve_plugin.hookspecs import hookimpl
from valve_plugin.records import Attempt, Bank, Context, Item, Kind, Proposal, Withheld

PROMPTS = "sections-1"
SCHEMA = "sections"
Key = tuple[Kind, str]


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One edit as the model wrote it."""

    operation: Literal["add", "replace", "delete"]
    target: str = ""
    name: str = ""
    text: str = ""
    markdown: str = ""
    scope_hint: str = ""


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole answer that fits sections.schema.json."""

    principles: tuple[Edit, ...]
    skills: tuple[Edit, ...]
    issue_summary: str = ""


class Move(NamedTuple):
    """What edits do to a document."""

    drafts: list[tuple[Kind, Draft]]
    removes: list[Key]
    noops: list[Withheld]
    replaced: dict[Key, Key]
    """New section -> the one it replaces."""


def edited(bank: Bank, edits: Sequence[tuple[Kind, Edit]]) -> Move:
    """Return what the edits come to on these documents, one after the other. Pure."""
    names = {item.key for item in bank.items}
    move = Move([], [], [], {})
    for kind, edit in edits:
        target, name = (kind, normal_name(edit.target)), (kind, normal_name(edit.name or edit.target))
        removing = edit.operation in ("replace", "delete") and target in names
        if edit.operation == "delete" and not removing:
            move.noops.append(_noop(target, "a deletion of a section that is not there"))
            continue
        if edit.operation != "delete" and name in names and not (removing and name == target):
            move.noops.append(_noop(name, "an addition under a name that is taken"))
            continue
        if removing:
            names.discard(target)
            _remove(move, target, bank)
            origin = move.replaced.pop(target, target)  # this answer may have replaced it itself
            if edit.operation == "replace":
                move.replaced[name] = origin
        if edit.operation != "delete":
            names.add(name)
            move.drafts.append((kind, Draft(edit.name or edit.target, edit.text, edit.markdown, edit.scope_hint)))
    return move


def _remove(move: Move, target: Key, bank: Bank) -> None:
    """Take a section out: of the bank, or of what this very answer adds."""
    if any(item.key == target for item in bank.items) and target not in move.removes:
        move.removes.append(target)
        return
    move.drafts[:] = [(kind, d) for kind, d in move.drafts if (kind, normal_name(d.name)) != target]


def _noop(key: Key, why: str) -> Withheld:
    return Withheld(kind=key[0], name=key[1] or "unnamed", why=f"ignored: {why}")


def settled(proposal: Proposal, bank: Bank) -> Proposal:
    """Return the proposal as it applies to the documents as they are now; sections are never merged. Pure."""
    names = {item.key for item in bank.items}
    removes = tuple(key for key in proposal.removed if key in names)
    free = names.difference(removes)
    items = tuple(item for item in proposal.items if item.key not in free)
    if items == proposal.items and removes == proposal.removed:
        return proposal
    return replace(proposal, items=items, removes=removes or msgspec.UNSET, reason="the documents changed meanwhile")


class Documents(Steps):
    """Sections are told apart by name alone: no duplicates are merged or suppressed."""

    def refreshed(self, proposal: Proposal) -> Proposal:
        """Return what still applies."""
        return settled(proposal, self.store.bank)


def _user(style: Style, bank: Bank, issue: str, attempts: Sequence[Attempt], trajectories: Sequence[str]) -> str:
    shown = user_message(replace_known(style), bank, issue, attempts, trajectories)
    documents = {
        "PRINCIPLES": _document(bank.principles), "SKILLS": _document(bank.skills), "ATTEMPTED": shown,
    }  # fmt: skip
    return fill(prompt("documents", PROMPTS), documents)


def replace_known(style: Style) -> Style:
    """Return the style without its own user message."""
    return style._replace(user=None)


def _document(items: Sequence[Item]) -> str:
    return "\n\n".join(f"## {i.name}\n\n{readable(i.markdown, ISSUE_LIMIT)}" for i in items) or "(empty)"


STYLE = Style(PROMPTS, SCHEMA, user=_user)


class Whole:
    """Both documents in full in place of retrieval."""

    @hookimpl
    def valve_retrieve(self, settings: Settings, bank: Bank, task_id: str, issue: str) -> Context:
        """Compose both documents, sections in the order they were appended."""
        return whole(list(bank.items), bank)


class Hooks(Whole):
    """Section edits in place of items."""

    @hookimpl
    def valve_extract(
        self,
        settings: Settings,
        bank: Bank,
        issue: str,
        attempts: Sequence[Attempt],
        trajectories: Sequence[str],
        feedback: str,
    ) -> Proposal:
        """Ask for edits."""
        empty = nothing_yet(settings, attempts, PROMPTS, feedback)
        user = _user(STYLE, bank, issue, attempts, trajectories) + after(feedback)
        messages = [{"role": "system", "content": prompt("system", PROMPTS).strip()}, {"role": "user", "content": user}]
        try:
            said = answered_json(ask(settings, empty.model, messages, SCHEMA), SCHEMA)
        except ModelOutputError as e:
            return replace(empty, reason=str(e))
        answer = convert(said, Answer, where="the answer")
        edits: list[tuple[Kind, Edit]] = [("principle", e) for e in answer.principles]
        edits += [("skill", e) for e in answer.skills]
        return _proposal(empty, edited(bank, edits), attempts, answer.issue_summary, settings)


def _proposal(
    empty: Proposal,
    move: Move,
    attempts: Sequence[Attempt],
    summary: str,
    settings: Settings = Settings(),  # noqa: B008
) -> Proposal:
    screened = second_look(settings, screen(move.drafts, source_of(attempts)))
    # A replacement whose new version was withheld leaves the old one where it is.
    kept = {item.key for item in screened.items}
    lost = {target for new, target in move.replaced.items() if new not in kept}
    removes = tuple(key for key in move.removes if key not in lost)
    nothing = "" if screened.items or removes else "no edit was proposed that changes a document"
    return replace(
        empty,
        items=screened.items,
        removes=removes or msgspec.UNSET,
        withheld=(*screened.withheld, *move.noops),
        issue_summary=safe_line(summary),
        reason=nothing,
    )


CONDITION = Condition(
    "single document per type: section edits, injected in full",
    steps=Documents,
    hooks=f"{__name__}:Hooks",
    settings={"pairing": "deployed"},
    ranked=False,
)
