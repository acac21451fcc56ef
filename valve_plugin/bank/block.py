"""The text that ends the system message: selected items, verbatim, between lines that no item can imitate."""

from __future__ import annotations

import re
from collections.abc import Sequence

from valve_plugin.records import Item

_OPENING = "Notes from earlier work in this repository."
_HEADINGS = {"principle": "Learned principles: how to reason", "skill": "Learned skills: what to do"}
_LOOKALIKE = re.compile(r"\s*(-{3,}) ").match
_CLOSING = (
    "Use a note where it fits the task at hand. Where a note and the repository's own code, tests or output "
    "disagree, the repository is right: follow what you see there."
)


def render(items: Sequence[Item]) -> str:
    """Return the block for items in the order given, principles first; no items give "" (no block at all).

    Every item starts with a line `--- kind: name ---` and the last one ends at `--- end ---`. The run of
    dashes is longer than any that starts such a line in a body (as with Markdown fences), so no body can pass
    for two items or for the end. Bodies are inserted byte for byte.
    """
    if not items:
        return ""
    rule = "-" * _rule_length(items)
    parts = [_OPENING]
    for kind, heading in _HEADINGS.items():
        chosen = [item for item in items if item.kind == kind]
        if chosen:
            parts.append(f"{rule} {heading} {rule}")
        parts += [f"{rule} {kind}: {item.name} {rule}\n{item.markdown}" for item in chosen]
    parts.append(f"{rule} end {rule}\n{_CLOSING}\n")
    return "\n\n".join(parts)


def _rule_length(items: Sequence[Item]) -> int:
    lines = (line for item in items for line in item.markdown.splitlines())
    return max([3, *(1 + len(found[1]) for found in map(_LOOKALIKE, lines) if found)])
