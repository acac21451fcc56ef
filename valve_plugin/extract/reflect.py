"""Extract: one reflection call that contrasts the mixed attempts at one task, and the proposal that comes of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from valve_plugin.codec import digest
from valve_plugin.config import Settings
from valve_plugin.errors import ModelOutputError
from valve_plugin.extract.ask import ask, model_name
from valve_plugin.extract.digest import printable
from valve_plugin.extract.duplicates import fit
from valve_plugin.extract.parse import (
    MOST_ITEMS,
    PATCH_LIMIT,
    TEXT_LIMIT,
    WORD_LIMIT,
    Draft,
    Extraction,
    parse,
    parse_strictly,
)
from valve_plugin.extract.review import review, review_prompt
from valve_plugin.extract.screen import ScreenResult, Source, normal_name, safe_line, screen
from valve_plugin.records import Attempt, Bank, Kind, Proposal, Withheld

PROMPTS = "paper"
"""Prefix of the paper's prompt files, which also serve what a style leaves as it is; their hash goes into proposals.

`fresh` and `paper` are the values of the setting `protocol`; its default is `fresh`.
"""
FEEDBACK = "feedback"
PARTS = ("system", "user", "attempt")
ISSUE_LIMIT = 20_000
_SENTENCE_LIMIT = 300
NOTHING = "nothing was proposed"
"""Reason of a proposal whose usable answer has no item."""
_PLACE = re.compile(r"<<([A-Z]+)>>")


class Style(NamedTuple):
    """How the model is asked and read: by default as the paper does; its ablations change a part."""

    prompts: str = PROMPTS
    """Prefix of its prompt files; a part it does not bring is the paper's."""
    schema: str = "extraction"
    strict: bool = True
    """The answer is the JSON of the schema or nothing. Else it is read as a person would, and asked for once more."""
    shaped: Callable[[Extraction], Extraction] = lambda answer: answer
    """What its answers are turned into before they are screened."""
    held: Callable[[ScreenResult], ScreenResult] = lambda screened: screened
    """Withholds more than the screen does; what is withheld is nothing that another item could repeat."""
    user: Callable[[Style, Bank, str, Sequence[Attempt], Sequence[str]], str] | None = None
    """Writes the user's message; None: the paper's."""


PAPER = Style()
LIMITS = {"MOST": MOST_ITEMS, "TEXT": TEXT_LIMIT, "WORDS": WORD_LIMIT, "LINES": PATCH_LIMIT}
"""What the prompt says of the limits that `parse` enforces."""


def reflect(
    settings: Settings,
    bank: Bank,
    issue: str,
    attempts: Sequence[Attempt],
    trajectories: Sequence[str],
    style: Style | None = None,
    feedback: str = "",
) -> Proposal:
    """Ask the model what separates passing from failing attempts; return its proposal, duplicates sorted out.

    Args:
        attempts: graded attempts at one task under one context.
        trajectories: their digests, in the same order.
        style: how to ask; None: as the protocol says.
        feedback: what validation decided about earlier proposals; empty: nothing is told.

    Returns:
        At most three principles and three skills; no items, with the reason, when the answer is unusable.

    Raises:
        InfrastructureError: the provider failed; the task may be reflected on again later.
        ConfigError: no model is named.

    Source: app:impl-extract.
    """
    style = style or (FRESH if settings.protocol == "fresh" else PAPER)
    empty = empty_proposal(settings, attempts, style.prompts, feedback)
    limits = {k: str(v) for k, v in LIMITS.items()}
    user = (style.user or user_message)(style, bank, issue, attempts, trajectories) + feedback_message(feedback)
    user += "" if style.strict else "\n" + fill(prompt("end", style.prompts), limits)
    system = fill(prompt("system", style.prompts), limits).strip()
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    try:
        answer = style.shaped(_answer(settings, empty.model, messages, style, [a.patch for a in attempts]))
    except ModelOutputError as e:
        return replace(empty, reason=f"the model's answer was malformed: {str(e).replace('the answer', 'it', 1)}")
    return _fill_proposal(empty, answer, bank, source_of(attempts), settings, style)


def _answer(
    settings: Settings, model: str, messages: list[dict[str, str]], style: Style, patches: Sequence[str]
) -> Extraction:
    """Return what the model answers; where nothing of it can be used, it is told why and asked once more.

    Raises:
        ModelOutputError: nothing can be used.
        InfrastructureError: the provider failed.
    """
    text = ask(settings, model, messages, style.schema)
    if style.strict:
        return parse_strictly(text, style.schema)
    try:
        answer = parse(text, patches)
        problem = "" if answer.drafts else "; ".join(f"{x.kind} {x.name!r:.80} {x.why}" for x in answer.left_out)
    except ModelOutputError as e:
        problem = str(e)
    if not problem:
        return answer
    again = fill(prompt("retry", style.prompts), {"PROBLEM": problem}).strip()
    more = [{"role": "assistant", "content": text}, {"role": "user", "content": again}]
    return parse(ask(settings, model, [*messages, *more], style.schema), patches)


def empty_proposal(settings: Settings, attempts: Sequence[Attempt], prompts: str, feedback: str = "") -> Proposal:
    """Return the proposal that an answer will fill: its task, its model, and the hash of all that will be asked.

    Raises:
        ConfigError: no model is named.
    """
    more = [review_prompt()] if settings.review != "off" else []
    more += [_verdicts()] if feedback else []
    asked = digest([prompt_hash(prompts), *more]) if more else prompt_hash(prompts)
    return Proposal(task_id=attempts[-1].task_id, prompt_hash=asked, model=model_name(settings))


def source_of(attempts: Sequence[Attempt]) -> Source:
    """Return what an item learned from these attempts says about them."""
    graded = [a.outcome for a in attempts if a.outcome in ("resolved", "unresolved")]
    return Source(tuple(dict.fromkeys(a.task_id for a in attempts)), graded.count("resolved"), len(graded))


@cache
def prompt(part: str, prompts: str = PROMPTS) -> str:
    """Return one prompt file: "system", "user" or "attempt"."""
    own = files(__package__).joinpath(f"prompts/{prompts}.{part}.md")
    return own.read_text("utf-8") if own.is_file() else prompt(part)


@cache
def prompt_hash(prompts: str = PROMPTS) -> str:
    """Return the hash of all prompt files in use."""
    folder = files(__package__).joinpath("prompts")
    own = sorted(f.name.split(".")[1] for f in folder.iterdir() if f.name.startswith(f"{prompts}."))
    return digest([prompts, *(prompt(part, prompts) for part in (*PARTS, *(p for p in own if p not in PARTS)))])


def fill(template: str, values: Mapping[str, str]) -> str:
    """Put values where `<<NAME>>` stands in one of our templates; what is in a value is never looked at again."""
    return _PLACE.sub(lambda place: values[place[1]], template)


def feedback_message(feedback: str) -> str:
    """Return the end of the user's message that tells of earlier verdicts: its own place, whatever else is cut."""
    return "\n" + fill(_verdicts(), {"VERDICTS": feedback}) if feedback else ""


@cache
def _verdicts() -> str:
    return files(__package__).joinpath(f"prompts/{FEEDBACK}.md").read_text("utf-8")


def user_message(style: Style, bank: Bank, issue: str, attempts: Sequence[Attempt], trajectories: Sequence[str]) -> str:
    """Return the message: the issue, the labelled attempts at it, and what is known."""
    labels = ["SUCCESS" if a.outcome == "resolved" else "FAILED" for a in attempts]
    blocks = [
        fill(prompt("attempt", style.prompts), {"NUMBER": str(number), "LABEL": label, "DIGEST": text.strip()})
        for number, (label, text) in enumerate(zip(labels, trajectories, strict=True), 1)
    ]
    values = {
        "ISSUE": printable(issue, ISSUE_LIMIT),
        "TOTAL": str(len(labels)),
        "PASSED": str(labels.count("SUCCESS")),
        "FAILED": str(labels.count("FAILED")),
        "ATTEMPTS": "".join(blocks),
        "KNOWN": known_names(bank) if style.strict else known_notes(bank, attempts),
        "MOST": str(MOST_ITEMS),
    }
    return fill(prompt("user", style.prompts), values)


def known_names(bank: Bank) -> str:
    """Return the names of what the bank has, one a line."""
    return "\n".join(f"- {item.kind}: {item.name}" for item in bank.items) or "(nothing yet)"


def known_notes(bank: Bank, attempts: Sequence[Attempt]) -> str:
    """Return what the bank has, a line each with its sentence, and which of it the attempts were given."""
    given = {key for attempt in attempts for key in attempt.context_items}
    lines = [
        f"- {item.kind}: {item.name}{' (given)' if item.key in given else ''}: {printable(item.text, _SENTENCE_LIMIT)}"
        for item in bank.items
    ]
    gone = sorted(given - {item.key for item in bank.items})
    lines += [f"- {kind}: {name} (given, no longer known)" for kind, name in gone]
    return "\n".join(lines) or "(nothing yet)"


FRESH = Style("fresh", "reflection", strict=False)


def _fill_proposal(
    empty: Proposal, answer: Extraction, bank: Bank, source: Source, settings: Settings, style: Style
) -> Proposal:
    known = {item.key for item in bank.items}
    drafts = [(kind, _version(kind, draft, known)) for kind, draft in answer.drafts]
    screened = style.held(review(settings, screen(drafts, source)))
    removes = tuple((k, d.name) for k, d in drafts if d.replaces)
    unusable = tuple(
        Withheld(kind=x.kind, name=normal_name(x.name) or "unnamed", why=f"unusable: {x.why}") for x in answer.left_out
    )
    kept = {item.key for item in screened.items}
    found = fit(
        replace(
            empty,
            items=screened.items,
            removes=tuple(key for key in dict.fromkeys(removes) if key in kept) or UNSET,
            withheld=(*unusable, *screened.withheld),
            issue_summary=safe_line(answer.issue_summary),
        ),
        bank,
    )
    if found.items:
        return found
    reason = f"no note could be used: {answer.left_out[0].why}" if answer.left_out else NOTHING
    return replace(found, reason="every note was a duplicate or was withheld" if answer.drafts else reason)


def _version(kind: Kind, draft: Draft, known: Collection[tuple[Kind, str]]) -> Draft:
    """Return a draft under the name of the known item that it replaces; one that replaces nothing known is an item."""
    name = normal_name(draft.replaces.removeprefix(f"{kind}/").removeprefix(f"{kind}: "))
    return replace(draft, name=name, replaces=name) if (kind, name) in known else replace(draft, replaces="")
