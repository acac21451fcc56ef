"""What a model wrote is untrusted: normalize names, strip control characters, refuse secrets, set attacks aside."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from valve_plugin.bank.redact import Redactor
from valve_plugin.codec import convert, digest
from valve_plugin.errors import RecordError
from valve_plugin.extract.parse import Draft
from valve_plugin.extract.rules import violations
from valve_plugin.extract.weigh import weigh
from valve_plugin.records import Item, Kind, Withheld

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_NAME_LENGTH = 120
WORDING = "worded like an attack"


class Source(NamedTuple):
    """Where items come from; every new item gets it."""

    tasks: tuple[str, ...]
    passes: int
    """Resolved source attempts."""
    attempts: int
    """Graded source attempts."""


class Screened(NamedTuple):
    """What is left of a model's items."""

    items: tuple[Item, ...]
    withheld: tuple[Withheld, ...]


def screen(drafts: Sequence[tuple[Kind, Draft]], source: Source, redactor: Redactor | None = None) -> Screened:
    """Turn drafts into items, or say why not.

    Args:
        drafts: kind and draft, in the order proposed.
        source: where they come from.
        redactor: what counts as a secret; by default the environment's values and the known formats.
    """
    redactor = redactor or Redactor.of(os.environ)
    provenance = {"source_tasks": source.tasks, "passes": source.passes, "attempts": source.attempts}
    items: list[Item] = []
    withheld: list[Withheld] = []
    for kind, draft in drafts:
        try:
            item = convert({**_clean(kind, draft), **provenance}, Item, where="item")
        except RecordError:
            withheld.append(
                Withheld(kind=kind, name=normal_name(draft.name) or "unnamed", why="nothing printable left")
            )
            continue
        whole = "\n".join((draft.name, text_of(item)))
        if redactor(whole) != whole:
            withheld.append(Withheld(kind=kind, name="withheld", why="holds a secret"))
        elif why := concerns(whole):
            content = digest(item)
            withheld.append(Withheld(kind=kind, name=item.name, why="; ".join(why), content_hash=content, item=item))
        else:
            items.append(item)
    return Screened(tuple(items), tuple(withheld))


def concerns(text: str) -> list[str]:
    """Return why an item's text is set aside: the rules it breaks, and whether its wording weighs like an attack's.

    The reasons go into the ledger, so they quote nothing; `weigh` says which lines weigh most.
    """
    weight = weigh(text)
    rules = violations(text, sure=weight.ordinary)
    return rules + ([WORDING] if weight.score > 0 else [])


def text_of(item: Item) -> str:
    """Return everything of an item that a model or a search reads."""
    return "\n".join((item.name, item.text, item.scope_hint, item.markdown))


def safe_line(text: str, limit: int = 2_000) -> str:
    """Return model text that may be kept as a remark: one line, or nothing when it holds a secret or an attack."""
    line = " ".join(strip_control(text).split())[:limit]
    return "" if Redactor.of(os.environ)(line) != line or violations(line) else line


def strip_control(text: str) -> str:
    """Return `text` without control characters and lone surrogates; line breaks and tabs stay."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def normal_name(name: str) -> str:
    """Return a name as the bank keeps it: lower case ASCII words joined by underscores; empty when none is left."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    words = re.sub(r"[^a-z0-9.\-]+", "_", ascii_name.lower().removesuffix(".md"))
    return re.sub(r"_{2,}", "_", words).strip("_.-")[:_NAME_LENGTH].rstrip("_.-")


def _clean(kind: Kind, draft: Draft) -> dict[str, object]:
    return {
        "kind": kind,
        "name": normal_name(draft.name),
        "text": " ".join(strip_control(draft.text).split()),
        "markdown": strip_control(draft.markdown).strip(),
        "scope_hint": " ".join(strip_control(draft.scope_hint).split()) if kind == "skill" else "",
    }
