"""Extract: one reflection call that contrasts the mixed attempts at one task."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from msgspec.structs import replace

from valve_plugin.codec import digest
from valve_plugin.config import Settings
from valve_plugin.errors import ModelOutputError
from valve_plugin.extract.ask import ask, model_name
from valve_plugin.extract.digest import readable
from valve_plugin.extract.duplicates import split
from valve_plugin.extract.parse import Draft, Extraction, parse
from valve_plugin.extract.screen import Screened, Source, safe_line, screen
from valve_plugin.extract.second_look import instructions, second_look
from valve_plugin.records import Attempt, Bank, Kind, Proposal

PROMPTS = "contrast-1"
"""Version of the prompt files in use, and of those that a style leaves as they are; their hash goes into proposals."""
FEEDBACK = "feedback-1"
PARTS = ("system", "user", "attempt")
ISSUE_LIMIT = 20_000
NOTHING = "nothing was proposed"
"""Reason of a proposal whose usable answer has no item."""
_PLACE = re.compile(r"<<([A-Z]+)>>")


class Style(NamedTuple):
    """How the model is asked and read: the reference protocol, or an ablation of it."""

    prompts: str = PROMPTS
    """Prefix of its prompt files; a part it does not bring is the reference's."""
    schema: str = "extraction"
    shaped: Callable[[Extraction], Extraction] = lambda answer: answer
    """What its answers are turned into before they are screened."""
    held: Callable[[Screened], Screened] = lambda screened: screened
    """Withholds more than the screen does; what is withheld is nothing that another item could repeat."""
    user: Callable[[Style, Bank, str, Sequence[Attempt], Sequence[str]], str] | None = None
    """Writes the user's message; None: the reference's."""


def reflect(
    settings: Settings,
    bank: Bank,
    issue: str,
    attempts: Sequence[Attempt],
    trajectories: Sequence[str],
    style: Style = Style(),  # noqa: B008 (frozen)
    feedback: str = "",
) -> Proposal:
    """Ask the model what separates passing from failing attempts; return its proposal, duplicates sorted out.

    Args:
        settings: the model and its arguments.
        bank: what is known already.
        issue: the task's text.
        attempts: graded attempts at one task under one context.
        trajectories: their digests, in the same order.
        style: how to ask.
        feedback: what validation decided about earlier proposals; empty: nothing is told.

    Returns:
        At most three principles and three skills; no items, with the reason, when the answer is unusable.

    Raises:
        InfrastructureError: the provider failed; the task may be reflected on again later.
        ConfigError: no model is named.

    Source: app:impl-extract.
    """
    empty = nothing_yet(settings, attempts, style.prompts, feedback)
    try:
        user = (style.user or user_message)(style, bank, issue, attempts, trajectories) + after(feedback)
        system = prompt("system", style.prompts).strip()
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        answer = style.shaped(parse(ask(settings, empty.model, messages, style.schema), style.schema))
    except ModelOutputError as e:
        return replace(empty, reason=str(e))
    return _filled(empty, answer, bank, source_of(attempts), settings, style)


def nothing_yet(settings: Settings, attempts: Sequence[Attempt], prompts: str, feedback: str = "") -> Proposal:
    """Return the proposal that an answer will fill: its task, its model, and the hash of all that will be asked.

    Raises:
        ConfigError: no model is named.
    """
    more = [instructions()] if settings.review != "off" else []
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


def after(feedback: str) -> str:
    """Return the end of the user's message that tells of earlier verdicts: its own place, whatever else is cut."""
    return "\n" + fill(_verdicts(), {"VERDICTS": feedback}) if feedback else ""


@cache
def _verdicts() -> str:
    return files(__package__).joinpath(f"prompts/{FEEDBACK}.md").read_text("utf-8")


def user_message(style: Style, bank: Bank, issue: str, attempts: Sequence[Attempt], trajectories: Sequence[str]) -> str:
    """Return the reference's message: the issue, the labelled attempts at it, and the names of what is known."""
    labels = ["SUCCESS" if a.outcome == "resolved" else "FAILED" for a in attempts]
    blocks = [
        fill(prompt("attempt", style.prompts), {"NUMBER": str(number), "LABEL": label, "DIGEST": text.strip()})
        for number, (label, text) in enumerate(zip(labels, trajectories, strict=True), 1)
    ]
    values = {
        "ISSUE": readable(issue, ISSUE_LIMIT),
        "TOTAL": str(len(labels)),
        "PASSED": str(labels.count("SUCCESS")),
        "FAILED": str(labels.count("FAILED")),
        "ATTEMPTS": "".join(blocks),
        "KNOWN": known(bank),
    }
    return fill(prompt("user", style.prompts), values)


def known(bank: Bank) -> str:
    """Return the names of what the bank has, one a line."""
    return "\n".join(f"- {item.kind}: {item.name}" for item in bank.items) or "(nothing yet)"


def _filled(
    empty: Proposal, answer: Extraction, bank: Bank, source: Source, settings: Settings, style: Style
) -> Proposal:
    drafts: list[tuple[Kind, Draft]] = [("principle", d) for d in answer.principles]
    drafts += [("skill", d) for d in answer.skills]
    screened = style.held(second_look(settings, screen(drafts, source)))
    new, merges, suppressed = split(screened.items, bank)
    reason = ""
    if not new:
        reason = NOTHING if not drafts else "every item was a duplicate or was withheld"
    return replace(
        empty,
        items=new,
        merges=merges,
        suppressed=suppressed,
        withheld=screened.withheld,
        issue_summary=safe_line(answer.issue_summary),
        reason=reason,
    )
