"""Extract: one reflection call that contrasts the mixed attempts at one task."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files

from msgspec.structs import replace

from valve_plugin.codec import digest
from valve_plugin.config import Settings
from valve_plugin.errors import ModelOutputError
from valve_plugin.extract.ask import ask, model_name
from valve_plugin.extract.digest import readable
from valve_plugin.extract.duplicates import split
from valve_plugin.extract.parse import Draft, Extraction, parse
from valve_plugin.extract.screen import Source, safe_line, screen
from valve_plugin.extract.second_look import instructions, second_look
from valve_plugin.records import Attempt, Bank, Kind, Proposal

PROMPTS = "contrast-1"
"""Version of the prompt files in use; their hash goes into every proposal."""
_ISSUE_LIMIT = 20_000
_PLACE = re.compile(r"<<([A-Z]+)>>")


def reflect(
    settings: Settings, bank: Bank, issue: str, attempts: Sequence[Attempt], trajectories: Sequence[str]
) -> Proposal:
    """Ask the model what separates passing from failing attempts; return its proposal, duplicates sorted out.

    Args:
        settings: the model and its arguments.
        bank: what is known already.
        issue: the task's text.
        attempts: graded attempts at one task under one context.
        trajectories: their digests, in the same order.

    Returns:
        At most three principles and three skills; no items, with the reason, when the answer is unusable.

    Raises:
        InfrastructureError: the provider failed; the task may be reflected on again later.
        ConfigError: no model is named.

    Source: app:impl-extract.
    """
    task_id = attempts[0].task_id
    model = model_name(settings)
    asked = prompt_hash() if settings.review == "off" else digest([prompt_hash(), instructions()])
    empty = Proposal(task_id=task_id, prompt_hash=asked, model=model)
    try:
        answer = parse(ask(settings, model, _messages(bank, issue, attempts, trajectories), "extraction"))
    except ModelOutputError as e:
        return replace(empty, reason=str(e))
    graded = [a.outcome for a in attempts if a.outcome in ("resolved", "unresolved")]
    return _filled(empty, answer, bank, Source((task_id,), graded.count("resolved"), len(graded)), settings)


@cache
def prompt(part: str) -> str:
    """Return one prompt file: "system", "user" or "attempt"."""
    return files(__package__).joinpath(f"prompts/{PROMPTS}.{part}.md").read_text("utf-8")


@cache
def prompt_hash() -> str:
    """Return the hash of all prompt files in use."""
    return digest([PROMPTS, *(prompt(part) for part in ("system", "user", "attempt"))])


def fill(template: str, values: Mapping[str, str]) -> str:
    """Put values where `<<NAME>>` stands in one of our templates; what is in a value is never looked at again."""
    return _PLACE.sub(lambda place: values[place[1]], template)


def _messages(bank: Bank, issue: str, attempts: Sequence[Attempt], trajectories: Sequence[str]) -> list[dict[str, str]]:
    labels = ["SUCCESS" if a.outcome == "resolved" else "FAILED" for a in attempts]
    blocks = [
        fill(prompt("attempt"), {"NUMBER": str(number), "LABEL": label, "DIGEST": text.strip()})
        for number, (label, text) in enumerate(zip(labels, trajectories, strict=True), 1)
    ]
    user = fill(
        prompt("user"),
        {
            "ISSUE": readable(issue, _ISSUE_LIMIT),
            "TOTAL": str(len(labels)),
            "PASSED": str(labels.count("SUCCESS")),
            "FAILED": str(labels.count("FAILED")),
            "ATTEMPTS": "".join(blocks),
            "KNOWN": "\n".join(f"- {item.kind}: {item.name}" for item in bank.items) or "(nothing yet)",
        },
    )
    return [{"role": "system", "content": prompt("system").strip()}, {"role": "user", "content": user}]


def _filled(empty: Proposal, answer: Extraction, bank: Bank, source: Source, settings: Settings) -> Proposal:
    drafts: list[tuple[Kind, Draft]] = [("principle", d) for d in answer.principles]
    drafts += [("skill", d) for d in answer.skills]
    screened = second_look(settings, screen(drafts, source))
    new, merges, suppressed = split(screened.items, bank)
    reason = ""
    if not new:
        reason = "nothing was proposed" if not drafts else "every item was a duplicate or was withheld"
    return replace(
        empty,
        items=new,
        merges=merges,
        suppressed=suppressed,
        withheld=screened.withheld,
        issue_summary=safe_line(answer.issue_summary),
        reason=reason,
    )
