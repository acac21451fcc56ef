"""The block at the end of the system message: selected items, verbatim, between lines that no item can imitate."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from valve_plugin.config import Settings
from valve_plugin.records import Item, Kind, is_owners

_OPENING = "Notes from earlier work in this repository."
_JUDGED = "They helped on other tasks here, so most may not apply to this one."
_NOT_ALL_JUDGED = "Not all of them were tested, and most may not apply to this one."
_GUIDE = "Use those whose first sentence matches what you see, and check each against the code before you act on it."
_GUIDE_OWN = "Use those that apply to what you see, and check each against the code before you act on it."
_HEADINGS = {"principle": "Learned principles: how to reason", "skill": "Learned skills: what to do"}
_OWN_HEADING = "Notes that people wrote for this repository"
_LOOKALIKE = re.compile(r"(?:(?![-|])[\W\d_]|-(?!--))*(-{3,})[\s\w]").match
_LONG_RULE = (
    " Lines that begin with {} dashes come between them; a line with fewer dashes is part of what it stands in."
)
_CLOSING = (
    "Use a note where it fits the task at hand. Where a note and the repository's own code, tests or output "
    "disagree, the repository is right: follow what you see there."
)


def render(items: Sequence[Item], *, guided: bool = False) -> str:
    """Return the block for items in the order given, principles first; no items give "" (no block at all).

    Args:
        guided: begin with how to use the notes, as the fused ranking does, and show apart, with what they apply to,
            those that no attempt taught; the paper's block has only the closing.

    Every item starts with a line `--- kind: name ---` and the last one ends at `--- end ---`. The run of
    dashes is longer than any that starts such a line in a body (as with Markdown fences), also behind the marks of
    a list, a quote or bold type, so no body can pass for two items or for the end; the opening says so then.
    Bodies are inserted byte for byte.
    """
    if not items:
        return ""
    rule, said = _rule(item.markdown for item in items)
    tested = _JUDGED if all(item.judged is not False for item in items) else _NOT_ALL_JUDGED
    own = [item for item in items if guided and is_own(item)]
    parts = [(f"{_OPENING} {tested} {_GUIDE_OWN if own else _GUIDE}" if guided else _OPENING) + said]
    for kind, heading in _HEADINGS.items():
        chosen = [item for item in items if item.kind == kind and item not in own]
        if chosen:
            parts.append(f"{rule} {heading} {rule}")
        parts += [f"{rule} {kind}: {item.name} {rule}\n{item.markdown}" for item in chosen]
    if own:
        parts.append(f"{rule} {_OWN_HEADING} {rule}")
    parts += [f"{rule} {item.kind}: {item.name} {rule}\n{trigger(item)}{item.markdown}" for item in own]
    parts.append(f"{rule} end {rule}\n{_CLOSING}\n")
    return "\n\n".join(parts)


def is_own(item: Item) -> bool:
    """Tell whether a person wrote an item: no attempts taught it."""
    return all(map(is_owners, item.source_tasks))


def trigger(item: Item) -> str:
    """Return the line that says when a person's item applies; "" where its words say it themselves."""
    said = item.text.rpartition(": ")[2].rstrip(".")
    if item.scope_hint:
        return f"Applies to: {' '.join(item.scope_hint.split())}\n"
    return "" if " ".join(said.split()) in " ".join(item.markdown.split()) else f"When: {' '.join(item.text.split())}\n"


def render_texts(texts: Sequence[tuple[str, str]]) -> str:
    """Return the block for whole texts, as (name, text) in the order given; none give "".

    Bodies are inserted byte for byte, between lines that none of them can imitate; see `render`.
    """
    if not texts:
        return ""
    rule, said = _rule(text for _, text in texts)
    parts = [f"{rule} {name} {rule}\n{text}" for name, text in texts]
    return "\n\n".join([f"Instructions for work in this repository.{said}", *parts, f"{rule} end {rule}\n"])


def _rule(bodies: Iterable[str]) -> tuple[str, str]:
    """Return the dashes of every header, and what the opening says of them: nothing where they are three, as usual."""
    lines = (line for body in bodies if "---" in body for line in body.splitlines())
    length = max([3, *(1 + len(found[1]) for found in map(_LOOKALIKE, lines) if found)])
    return "-" * length, _LONG_RULE.format(length) if length > 3 else ""


def fitting(
    settings: Settings, items: Sequence[Item], proposed: Collection[tuple[Kind, str]] = (), *, guided: bool = False
) -> list[Item]:
    """Return the items whose block fits; the lowest ranks are left out, whole, and what is judged last.

    Args:
        items: principles and skills, each kind in the order of its ranks.
        proposed: keys of the items that a gate judges.
        guided: see `render`.
    """
    chosen = list(items)
    ranks = {item.key: rank for kind in _HEADINGS for rank, item in enumerate(i for i in items if i.kind == kind)}
    while chosen and len(render(chosen, guided=guided).encode("utf-8", "surrogatepass")) > settings.context_bytes:
        chosen.remove(max(chosen, key=lambda item: (item.key not in proposed, ranks[item.key], item.kind)))
    return chosen
