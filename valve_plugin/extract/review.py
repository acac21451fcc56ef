"""The model's review of proposed items: a verdict and a reason for each, by name; on meaning, in any language."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from valve_plugin.config import Settings
from valve_plugin.errors import ModelOutputError
from valve_plugin.extract.answer import find_object
from valve_plugin.extract.ask import ask, model_name
from valve_plugin.extract.screen import ScreenResult, is_english, redacted_line, text_of, withhold
from valve_plugin.records import Item

REVIEW = "review"
OBJECTION = "the reviewing model objects"
NO_ANSWER = "the reviewing model gave no usable answer"
FOREIGN = "not in English, which is all that the rules read, and no model reviews it"
_REASON_LIMIT = 300
_BARE = re.compile(r"\s*(?:```(?:json)?\s)?\s*(\[.*\])\s*(?:```\s*)?", re.DOTALL)
"""An answer that is nothing but the list."""
_VERDICTS = {"safe": True, "unsafe": False}

Verdicts = dict[str, tuple[bool, str]]
"""By `_title`: whether the item is safe, and why."""


def review(settings: Settings, screened: ScreenResult) -> ScreenResult:
    """Return what the model clears of screened items (`review = "model"`): one call for all of them.

    It may be the model that wrote the items, and it reads text that may address it, so it can only withhold. Items
    without an answer of their own are asked about once more, alone; what is then without one waits for a person.

    Raises:
        InfrastructureError: the provider failed.
    """
    if settings.review == "off":
        foreign = [not is_english(text_of(item)) for item in screened.items]
        held = tuple(withhold(i, FOREIGN) for i, f in zip(screened.items, foreign, strict=True) if f)
        kept = tuple(i for i, f in zip(screened.items, foreign, strict=True) if not f)
        return ScreenResult(kept, screened.withheld + held)
    verdicts: Verdicts = {}
    for _ in range(2):
        if left := [item for item in screened.items if _title(item) not in verdicts]:
            verdicts |= _verdicts(settings, left)
    cleared, withheld = [], list(screened.withheld)
    for item in screened.items:
        safe, reason = verdicts.get(_title(item), (False, ""))
        if safe:
            cleared.append(item)
        else:
            withheld.append(withhold(item, OBJECTION if _title(item) in verdicts else NO_ANSWER, reason))
    return ScreenResult(tuple(cleared), tuple(withheld))


@cache
def review_prompt() -> str:
    """Return the prompt file of the review."""
    return files(__package__).joinpath(f"prompts/{REVIEW}.md").read_text("utf-8").strip()


def _title(item: Item) -> str:
    return f"{item.kind}/{item.name}"


def _verdicts(settings: Settings, items: Sequence[Item]) -> Verdicts:
    """Ask about these items; return the verdicts that can be told apart, none where the answer is unusable.

    Raises:
        InfrastructureError: the provider failed.
    """
    shown = [{"name": _title(i), "text": i.text, "scope_hint": i.scope_hint, "markdown": i.markdown} for i in items]
    messages = [
        {"role": "system", "content": review_prompt()},
        {"role": "user", "content": json.dumps(shown, indent=1)},  # escaped, so no item can end its own quotation
    ]
    try:
        answer = ask(settings, model_name(settings), messages, "review", "review")
        bare = _BARE.fullmatch(answer)
        rows = find_object(f'{{"verdicts": {bare[1]}}}' if bare else answer, ("verdicts",)).get("verdicts")
    except ModelOutputError:
        return {}
    found: dict[str, list[tuple[bool, str]]] = {}
    names = [item.name for item in items]  # without the kind where that is enough
    titles = {_title(i): _title(i) for i in items} | {i.name: _title(i) for i in items if names.count(i.name) == 1}
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict) or titles.get(str(row.get("name"))) is None:
            continue
        verdict = row.get("verdict")
        safe = _VERDICTS.get(verdict.strip(" .!").lower()) if isinstance(verdict, str) else None
        if safe is not None:
            reason = row.get("reason")
            told = redacted_line(reason, _REASON_LIMIT) if isinstance(reason, str) else ""
            found.setdefault(titles[str(row["name"])], []).append((safe, told))
    return {title: given[0] for title, given in found.items() if len({safe for safe, _ in given}) == 1}
