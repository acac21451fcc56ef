"""A second look at extracted items by the run's model (`review = "model"`): meaning, where the screen sees wording.

The model that judges may be the one that wrote the items, and reads text that may address it: its word can only
withhold. Whatever it does not clear in so many words, by failing too, waits for a person.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from valve_plugin.codec import digest, plain
from valve_plugin.config import Settings
from valve_plugin.errors import InfrastructureError, ModelOutputError
from valve_plugin.extract.ask import ask, model_name
from valve_plugin.extract.parse import answered_json
from valve_plugin.extract.screen import Screened
from valve_plugin.records import Item, Withheld

PROMPT = "second-look-1"
OBJECTION = "the reviewing model objects"
NO_ANSWER = "the reviewing model gave no usable answer"


def second_look(settings: Settings, screened: Screened) -> Screened:
    """Withhold what the model does not clear, where the settings ask for it: one call for all items."""
    if settings.review == "off" or not screened.items:
        return screened
    try:
        doubts = _doubts(settings, screened.items)
    except (ModelOutputError, InfrastructureError):
        doubts = dict.fromkeys(range(len(screened.items)), NO_ANSWER)
    kept = tuple(item for n, item in enumerate(screened.items) if n not in doubts)
    return Screened(kept, screened.withheld + tuple(_set_aside(screened.items[n], why) for n, why in doubts.items()))


@cache
def instructions() -> str:
    """Return the prompt file."""
    return files(__package__).joinpath(f"prompts/{PROMPT}.md").read_text("utf-8").strip()


def _doubts(settings: Settings, items: tuple[Item, ...]) -> dict[int, str]:
    """Return why each item that was not cleared is withheld, by position.

    Raises:
        ModelOutputError: the answer is not what was asked for.
        InfrastructureError: the provider failed.
    """
    shown = [{k: plain(i)[k] for k in ("kind", "name", "text", "scope_hint", "markdown")} for i in items]
    messages = [
        {"role": "system", "content": instructions()},
        {"role": "user", "content": json.dumps(shown, indent=1)},  # escaped, so no item can end its own quotation
    ]
    answer = answered_json(ask(settings, model_name(settings), messages, "review"), "review")
    safe = answer["safe"]
    if len(safe) != len(items):
        raise ModelOutputError(f"the answer judges {len(safe)} items, expected {len(items)}")
    return {n: OBJECTION for n, cleared in enumerate(safe) if not cleared}


def _set_aside(item: Item, why: str) -> Withheld:
    return Withheld(kind=item.kind, name=item.name, why=why, content_hash=digest(item), item=item)
