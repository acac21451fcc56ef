"""Texts as the page shows them. What is marked as markup here is made here, from parts that are escaped themselves."""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Any

from valve_plugin.report.run import Proposed

if TYPE_CHECKING:
    from markupsafe import Markup


def breaks(text: str) -> Markup:
    """Return text as HTML that may break after underscores: item names and task ids have no blanks."""
    from markupsafe import Markup, escape

    return Markup(re.sub("_+", r"\g<0><wbr>", str(escape(text))))  # noqa: S704 (escaped)


def ticked(text: str) -> Markup:
    """Return our own words as HTML, `commands` in code."""
    from markupsafe import Markup, escape

    parts = [str(escape(part)) for part in text.split("`")]
    if len(parts) % 2 == 0:  # a tick that closes nothing
        return escape(text)
    return Markup("".join(f"<code>{p}</code>" if n % 2 else p for n, p in enumerate(parts)))  # noqa: S704 (escaped)


def inert(markdown: str) -> Markup:
    """Return Markdown as HTML in which nothing loads, leads anywhere or runs: tags, links and images stay text."""
    from markdown_it import MarkdownIt
    from markupsafe import Markup

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.disable(["link", "image", "autolink", "reference", "html_block", "html_inline"])
    return Markup(parser.render(markdown))  # noqa: S704 (the parser escapes all text; tests attack it)


def difference(item: Proposed, twin: Proposed) -> str:
    """Return a unified diff from one item's text to another's."""
    before, after = (f"{i.text}\n\n{i.markdown}".splitlines() for i in (twin, item))
    return "\n".join(difflib.unified_diff(before, after, twin.name, item.name, lineterm=""))


def pretty(data: Any) -> str:
    """Return JSON to read: nested, with each small part on one line."""
    return _pretty(data, "")


def _pretty(data: Any, indent: str) -> str:
    flat = json.dumps(data, ensure_ascii=False)
    if len(flat) + len(indent) <= 150 or not isinstance(data, dict | list) or not data:
        return flat
    deeper = indent + "  "
    if isinstance(data, dict):
        rows = [f"{deeper}{json.dumps(k)}: {_pretty(v, deeper)}" for k, v in data.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + _pretty(v, deeper) for v in data) + f"\n{indent}]"


def embedded(data: Any) -> Markup:
    """Return JSON for a script element: nothing in it can end the element or start another."""
    from markupsafe import Markup

    text = json.dumps(data, separators=(",", ":"))  # ASCII only
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 (escaped above)


def sentences(text: str) -> tuple[str, str]:
    """Return the first sentence and the others; that it is a SIMULATION counts as none."""
    parts = re.split(r"(?<=[.]) (?=[A-Z])", text)
    first = 1 + text.startswith("SIMULATION")
    return " ".join(parts[:first]), " ".join(parts[first:])
