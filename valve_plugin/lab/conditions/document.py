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
from valve_plugin.extract.ask import ask
from valve_plugin.extract.digest import printable
from valve_plugin.extract.parse import Draft, load_strictly
from valve_plugin.extract.reflect import (
    ISSUE_LIMIT,
    Style,
    empty_proposal,
    feedback_message,
    fill,
    prompt,
    source_of,
    user_message,
)
from valve_plugin.extract.review import review
from valve_plugin.extract.screen import normal_name, safe_line, screen
from valve_plugin.hookspecs import hookimpl
from valve_plugin.lab.conditions import Condition
from valve_plugin.lab.conditions.ablations import whole_bank
from valve_plugin.records import Attempt, Bank, Context, Item, Kind, Proposal, Withheld

PROMPTS = "baseline_document"
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


class SectionEdits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole answer that fits sections.schema.json."""

    principles: tuple[Edit, ...]
    skills: tuple[Edit, ...]
    issue_summary: str = ""


class EditPlan(NamedTuple):
    """What edits do to the documents."""

    drafts: list[tuple[Kind, Draft]]
    """Sections to append."""
    removes: list[Key]
    """Stored sections to take out."""
    ignored: list[Withheld]
    replaced: dict[Key, Key]
    """New section -> the one it replaces."""


def plan_edits(bank: Bank, edits: Sequence[tuple[Kind, Edit]]) -> EditPlan:
    """Return what the edits do to these documents, one after the other. Pure."""
    stored = {item.key for item in bank.items}
    present = set(stored)
    plan = EditPlan([], [], [], {})
    for kind, edit in edits:
        target, name = (kind, normal_name(edit.target)), (kind, normal_name(edit.name or edit.target))
        removing = edit.operation in ("replace", "delete") and target in present
        if edit.operation == "delete" and not removing:
            plan.ignored.append(_ignored(target, "a deletion of a section that is not there"))
            continue
        if edit.operation != "delete" and name in present and not (removing and name == target):
            plan.ignored.append(_ignored(name, "an addition under a name that is taken"))
            continue
        if removing:
            present.discard(target)
            if target in stored and target not in plan.removes:
                plan.removes.append(target)
            else:  # this very answer added it
                plan.drafts[:] = [(k, d) for k, d in plan.drafts if (k, normal_name(d.name)) != target]
            origin = plan.replaced.pop(target, target)
            if edit.operation == "replace":
                plan.replaced[name] = origin
        if edit.operation != "delete":
            present.add(name)
            plan.drafts.append((kind, Draft(edit.name or edit.target, edit.text, edit.markdown, edit.scope_hint)))
    return plan


def _ignored(key: Key, why: str) -> Withheld:
    return Withheld(kind=key[0], name=key[1] or "unnamed", why=f"ignored: {why}")


def applicable(proposal: Proposal, bank: Bank) -> Proposal:
    """Return the part of the proposal that applies to the documents as they are now. Pure."""
    names = {item.key for item in bank.items}
    removes = tuple(key for key in proposal.removed if key in names)
    items = tuple(item for item in proposal.items if item.key not in names.difference(removes))
    if items == proposal.items and removes == proposal.removed:
        return proposal
    return replace(proposal, items=items, removes=removes or msgspec.UNSET, reason="the documents changed meanwhile")


class DocumentSteps(Steps):
    """Sections differ by name alone: no duplicates are merged or suppressed."""

    def refreshed(self, proposal: Proposal) -> Proposal:
        """Return what still applies."""
        return applicable(proposal, self.store.bank)


class WholeDocuments:
    """Retrieval that injects both documents in full."""

    @hookimpl
    def valve_retrieve(self, settings: Settings, bank: Bank, task_id: str, issue: str) -> Context:
        """Compose both documents, sections in the order they were appended."""
        return whole_bank(list(bank.items), bank)


class DocumentHooks(WholeDocuments):
    """Extraction of section edits in place of items."""

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
        empty = empty_proposal(settings, attempts, PROMPTS, feedback)
        values = {
            "PRINCIPLES": _document(bank.principles),
            "SKILLS": _document(bank.skills),
            "ATTEMPTED": user_message(Style(PROMPTS), bank, issue, attempts, trajectories),
        }
        user = fill(prompt("documents", PROMPTS), values) + feedback_message(feedback)
        messages = [{"role": "system", "content": prompt("system", PROMPTS).strip()}, {"role": "user", "content": user}]
        try:
            raw = load_strictly(ask(settings, empty.model, messages, SCHEMA), SCHEMA)
        except ModelOutputError as e:
            return replace(empty, reason=str(e))
        answer = convert(raw, SectionEdits, where="the answer")
        edits: list[tuple[Kind, Edit]] = [("principle", e) for e in answer.principles]
        edits += [("skill", e) for e in answer.skills]
        return fill_proposal(empty, plan_edits(bank, edits), attempts, answer.issue_summary, settings)


def _document(items: Sequence[Item]) -> str:
    return "\n\n".join(f"## {i.name}\n\n{printable(i.markdown, ISSUE_LIMIT)}" for i in items) or "(empty)"


def fill_proposal(
    empty: Proposal, plan: EditPlan, attempts: Sequence[Attempt], summary: str, settings: Settings
) -> Proposal:
    """Return the proposal with what the screen and the review leave of a plan."""
    screened = review(settings, screen(plan.drafts, source_of(attempts)))
    kept = {item.key for item in screened.items}
    # A replacement whose new version was withheld leaves the old one where it is.
    restored = {target for new, target in plan.replaced.items() if new not in kept}
    removes = tuple(key for key in plan.removes if key not in restored)
    return replace(
        empty,
        items=screened.items,
        removes=removes or msgspec.UNSET,
        withheld=(*screened.withheld, *plan.ignored),
        issue_summary=safe_line(summary),
        reason="" if screened.items or removes else "no edit was proposed that changes a document",
    )


DOCUMENT = Condition(  # single document per type: section edits, injected in full
    steps=DocumentSteps,
    hooks=f"{__name__}:DocumentHooks",
    settings={"pairing": "deployed"},
)
