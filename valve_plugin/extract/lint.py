"""Static checks of a bank's items, one's own or somebody else's: what the screen would say of them today, and more."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from valve_plugin.bank.redact import Redactor
from valve_plugin.extract.duplicates import nearest
from valve_plugin.extract.screen import concerns, strip_control, text_of
from valve_plugin.records import Bank, Item, Kind

LARGE = 6_000
"""Characters of a body from which it is worth a word: ten items are injected before every task."""


class Finding(NamedTuple):
    """One thing a person should look at."""

    kind: Kind
    name: str
    check: str
    """screen, secret, hidden, size or duplicate."""
    message: str


def lint(bank: Bank, redactor: Redactor) -> list[Finding]:
    """Return what is wrong with the items of a bank, in the bank's order."""
    earlier: list[Item] = []
    found = []
    for item in bank.items:
        found += [Finding(item.kind, item.name, check, message) for check, message in _checks(item, earlier, redactor)]
        earlier.append(item)
    return found


def _checks(item: Item, earlier: list[Item], redactor: Redactor) -> Iterator[tuple[str, str]]:
    text = text_of(item)
    yield from (("screen", concern) for concern in concerns(text))
    if redactor(text) != text:
        yield "secret", "holds what looks like a key; retire the item and revoke the key"
    if strip_control(text) != text:
        yield "hidden", "holds control characters, which a terminal obeys and a reader does not see"
    if len(item.markdown) > LARGE:
        yield "size", f"body of {len(item.markdown)} characters; above {LARGE} it crowds out what the task needs"
    if near := nearest(item, earlier):
        yield "duplicate", f"says the same as {near.duplicate_of} (similarity {near.similarity:.2f}; limit 0.45)"
