"""The reference protocol, its baselines, and the ablations that change one step.

Source: tab:main, tab:impl-ablations; app:impl-ablations, "Batch extraction".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar

from msgspec.structs import replace

from valve_plugin.codec import digest
from valve_plugin.config import Settings
from valve_plugin.evolve.steps import Steps, Ungated, mixed
from valve_plugin.extract.digest import printable
from valve_plugin.extract.parse import Draft, Extraction
from valve_plugin.extract.reflect import ISSUE_LIMIT, Style, fill, known_names, prompt, reflect
from valve_plugin.extract.screen import ScreenResult
from valve_plugin.hookspecs import hookimpl
from valve_plugin.lab.conditions import Condition
from valve_plugin.records import Attempt, Bank, Context, Item, Proposal, Withheld
from valve_plugin.retrieval import block

BATCH_SIZE = 4
BATCH_PROMPTS = "ablation_batch"
LONG_SENTENCE = "more than one sentence"

VALVE = Condition()  # the reference protocol: mixed tasks, a bank, retrieval, a gate
BASE = Condition(steps=None, gated=False)  # no memory: the model as it is
UNGATED = Condition(steps=Ungated, gated=False)  # without validation: every proposal enters the bank


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
    """Return the context that holds these items, in this order."""
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


_STRUCTURE = re.compile(r"\n\s*\n|^\s*(?:[-*+\u2022>|]\s|#+\s|\d+[.)]\s|```)", re.MULTILINE)
"""The end of a paragraph, or a line that begins a list, quotation, table, heading or block of code."""
_CODE = re.compile(r"`[^`]+`")
_NEXT = re.compile(r"(?<!\be\.g)(?<!\bi\.e)[.!?\u2026][\"'\u2019\u201d)\]*_]*\s+[\"'(*_]*[A-Z]")
"""The end of a sentence and the capital letter of the next."""


def is_single_sentence(text: str) -> bool:
    """Whether a text is at most one sentence: it has no structure, and no sentence begins after another."""
    whole = "\n".join(text.strip().splitlines())
    return not _STRUCTURE.search(whole) and not _NEXT.search(_CODE.sub("code", whole))
