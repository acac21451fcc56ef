"""The reference protocol, its baselines, and the ablations that change one step or keep one document.

In a document, a replacement removes the target and appends the new version; a missing target makes it an addition. An
addition that reuses a name is ignored; a deletion of a missing section is a no-op. Both are recorded.

Source: tab:main, tab:impl-ablations; app:impl-ablations, "Batch extraction" and "Single-document extraction".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from valve_plugin.codec import convert, digest
from valve_plugin.config import Settings
from valve_plugin.errors import ModelOutputError
from valve_plugin.evolve.steps import Steps, Ungated, mixed
from valve_plugin.extract.ask import ask
from valve_plugin.extract.digest import printable
from valve_plugin.extract.parse import Draft, Extraction, load_strictly
from valve_plugin.extract.reflect import (
    ISSUE_LIMIT,
    Style,
    empty_proposal,
    feedback_message,
    fill,
    known_names,
    prompt,
    reflect,
    source_of,
    user_message,
)
from valve_plugin.extract.review import review
from valve_plugin.extract.screen import ScreenResult, normal_name, safe_line, screen
from valve_plugin.hookspecs import hookimpl
from valve_plugin.lab.conditions import Condition
from valve_plugin.records import Attempt, Bank, Context, Item, Kind, Proposal, Withheld
from valve_plugin.retrieval import block

BATCH_SIZE = 4
BATCH_PROMPTS = "ablation_batch"
LONG_SENTENCE = "more than one sentence"

VALVE = Condition()  # the reference protocol: mixed tasks, a bank, retrieval, a gate
BASE = Condition(steps=None, gated=False)  # no memory: the model as it is
UNGATED = Condition(steps=Ungated, gated=False)  # without validation: every proposal enters the bank
_STRUCTURE = re.compile(r"\n\s*\n|^\s*(?:[-*+\u2022>|]\s|#+\s|\d+[.)]\s|```)", re.MULTILINE)
"""The end of a paragraph, or a line that begins a list, quotation, table, heading or block of code."""
_CODE = re.compile(r"`[^`]+`")
_NEXT = re.compile(r"(?<!\be\.g)(?<!\bi\.e)[.!?\u2026][\"'\u2019\u201d)\]*_]*\s+[\"'(*_]*[A-Z]")
"""The end of a sentence and the capital letter of the next."""
DOCUMENT_PROMPTS = "baseline_document"
SECTIONS_SCHEMA = "sections"
Key = tuple[Kind, str]


class StyledExtraction:
    """Extraction with prompts and rules of its own."""

    style: ClassVar[Style]

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
        """Ask in this style."""
        return reflect(settings, bank, issue, attempts, trajectories, self.style, feedback)


# ---- all tasks


class EveryTask(Steps):
    """Extract and Validate after every task, also where all attempts passed or all failed."""

    def material(self, attempts: Sequence[Attempt]) -> Sequence[Attempt]:
        """Return all attempts, whatever their outcomes."""
        return attempts


class AllTasksHooks(StyledExtraction):
    """Extraction whose prompt does not assume that some attempts passed and some failed."""

    style = Style("ablation_outcomes")


ALL_TASKS = Condition(  # all tasks: extract after every task; the horizon counts raw tasks
    steps=EveryTask,
    hooks=f"{__name__}:AllTasksHooks",
)


# ---- no principles


def _without_principles(answer: Extraction) -> Extraction:
    return replace(answer, principles=())


class NoPrinciplesHooks(StyledExtraction):
    """Extraction that proposes skills only; a principle that the model returns all the same is dropped."""

    style = Style("ablation_skills", shaped=_without_principles)


NO_PRINCIPLES = Condition(  # no principles: extraction returns none, skills only are retrieved
    hooks=f"{__name__}:NoPrinciplesHooks",
    settings={"top_principles": 0},
)


# ---- inject all


class InjectAllHooks:
    """Retrieval that ranks nothing: every stored item is injected, newest first.

    The gate's candidate is then the whole enlarged bank. Pairing "deployed" asks this hook for it; the paper's pairing
    would rank.
    """

    @hookimpl
    def valve_retrieve(self, settings: Settings, bank: Bank, task_id: str, issue: str) -> Context:
        """Compose all items; principles, then skills, each in reverse creation order."""
        return whole_bank([*reversed(bank.principles), *reversed(bank.skills)], bank)


def whole_bank(items: list[Item], bank: Bank) -> Context:
    """Return the context that holds these items, in this order, but for those that hide what they say."""
    items = [item for item in items if not item.hidden]
    return Context(text=block.render(items), items=tuple(item.key for item in items), bank_hash=bank.hash)


INJECT_ALL = Condition(  # inject all: every item, in reverse creation order
    hooks=f"{__name__}:InjectAllHooks",
    settings={"pairing": "deployed"},
)


# ---- batch of four


class Batches(Steps):
    """Collects four finished tasks. A proposal is recorded with all four, so a resumed run starts behind them.

    All four stay visible to the reflection, and the next four start afresh. Fewer than four at the end of the stream
    teach nothing.
    """

    _buffer: tuple[Attempt, ...] = ()

    def material(self, attempts: Sequence[Attempt]) -> Sequence[Attempt]:
        """Return all attempts of four tasks, if one of the four is mixed."""
        self._buffer = (*self._buffer, *attempts)
        tasks = [list(group) for _, group in groupby(self._buffer, key=lambda a: a.task_id)]
        if len(tasks) < BATCH_SIZE:
            return ()
        batch, self._buffer = self._buffer, ()
        return batch if any(map(mixed, tasks)) else ()


def _batch_message(
    style: Style, bank: Bank, issue: str, attempts: Sequence[Attempt], trajectories: Sequence[str]
) -> str:
    """Return the user's message: a block per task, each with its issue and its labelled attempts."""
    blocks = []
    pairs = zip(attempts, trajectories, strict=True)
    for number, (_, group) in enumerate(groupby(pairs, key=lambda pair: pair[0].task_id), 1):
        rows = list(group)
        labels = ["SUCCESS" if a.outcome == "resolved" else "FAILED" for a, _ in rows]
        shown = [
            fill(prompt("attempt"), {"NUMBER": str(n), "LABEL": label, "DIGEST": text.strip()})
            for n, (label, (_, text)) in enumerate(zip(labels, rows, strict=True), 1)
        ]
        values = {
            "NUMBER": str(number),
            "ISSUE": printable(rows[0][0].task_text or issue, ISSUE_LIMIT // BATCH_SIZE),
            "PASSED": str(labels.count("SUCCESS")),
            "TOTAL": str(len(rows)),
            "ATTEMPTS": "".join(shown),
        }
        blocks.append(fill(prompt("task", BATCH_PROMPTS), values))
    values = {"TASKS": "".join(blocks), "COUNT": str(len(blocks)), "KNOWN": known_names(bank)}
    return fill(prompt("user", BATCH_PROMPTS), values)


class BatchHooks(StyledExtraction):
    """Extraction that looks for what recurs across tasks."""

    style = Style(BATCH_PROMPTS, user=_batch_message)


BATCH = Condition(  # batch of four: one cross-task reflection; one validation rollout per task
    steps=Batches,
    hooks=f"{__name__}:BatchHooks",
    settings={"rollouts": 1},
)


# ---- sentence skills


def _as_sentences(answer: Extraction) -> Extraction:
    """Make the search sentence the body, which is stored and injected; a skill's begins with its scope."""

    def sentence(draft: Draft) -> Draft:
        scope = " ".join(draft.scope_hint.split()).rstrip(".")
        return replace(draft, markdown=f"({scope}) {draft.text}" if scope else draft.text)

    return replace(
        answer,
        principles=tuple(map(sentence, answer.principles)),
        skills=tuple(map(sentence, answer.skills)),
    )


def _withhold_long(screened: ScreenResult) -> ScreenResult:
    """Return the items, each on one line; what is more than a sentence is withheld."""
    kept, withheld = [], []
    for item in screened.items:
        if is_single_sentence(item.markdown):
            kept.append(replace(item, markdown=" ".join(item.markdown.split())))
        else:
            withheld.append(
                Withheld(kind=item.kind, name=item.name, why=LONG_SENTENCE, content_hash=digest(item), item=item)
            )
    return ScreenResult(tuple(kept), (*screened.withheld, *withheld))


class SentenceHooks(StyledExtraction):
    """Extraction of one sentence per item, without bodies."""

    style = Style("ablation_sentences", "sentences", shaped=_as_sentences, held=_withhold_long)


SENTENCE = Condition(hooks=f"{__name__}:SentenceHooks")  # sentence skills: one sentence per item, no rich body


def is_single_sentence(text: str) -> bool:
    """Whether a text is at most one sentence: it has no structure, and no sentence begins after another."""
    whole = "\n".join(text.strip().splitlines())
    return not _STRUCTURE.search(whole) and not _NEXT.search(_CODE.sub("code", whole))


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
        empty = empty_proposal(settings, attempts, DOCUMENT_PROMPTS, feedback)
        values = {
            "PRINCIPLES": _document(bank.principles),
            "SKILLS": _document(bank.skills),
            "ATTEMPTED": user_message(Style(DOCUMENT_PROMPTS), bank, issue, attempts, trajectories),
        }
        user = fill(prompt("documents", DOCUMENT_PROMPTS), values) + feedback_message(feedback)
        messages = [
            {"role": "system", "content": prompt("system", DOCUMENT_PROMPTS).strip()},
            {"role": "user", "content": user},
        ]
        try:
            raw = load_strictly(ask(settings, empty.model, messages, SECTIONS_SCHEMA), SECTIONS_SCHEMA)
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
