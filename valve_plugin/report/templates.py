"""The page's templates and their filters, which turn numbers into text.

Every sentence is a macro in `assets/sentences.j2`. A `Statement` holds the name of a macro and its numbers, so that
the page, the JSON output and the captions of figures say the same. In HTML every value is escaped.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from valve_plugin.bank.entries import Entry
from valve_plugin.codec import plain
from valve_plugin.evidence.certify import guarantee, tasks_for_gain, too_few
from valve_plugin.records import short_task_id
from valve_plugin.report.run import StreamPoint
from valve_plugin.words import duration, format_time, outcome_word, plural, points, visible

if TYPE_CHECKING:
    from jinja2 import Environment
    from markdown_it import MarkdownIt
    from markupsafe import Markup


class Statement(NamedTuple):
    """One or more sentences of the report."""

    name: str
    """Name of the macro in `sentences.j2`."""
    values: dict[str, Any]


def statement(name: str, **values: Any) -> Statement:
    """Return the statement of the macro `name` with these values."""
    return Statement(name, values)


def text(statement: Statement) -> str:
    """Return a statement as plain text, for a terminal, JSON or a figure. The page escapes it itself."""
    return _render(environment(html=False), statement)


def _render(environment: Environment, statement: Statement) -> str:
    """Return the sentences of a statement. Line breaks of the template become spaces."""
    found = getattr(environment.get_template("sentences.j2").module, statement.name)(**statement.values)
    words: str = type(found)(re.sub(r"[ \n]+", " ", found).strip())  # markup stays markup
    return words


@functools.cache
def environment(*, html: bool = True) -> Environment:
    """Return the Jinja environment with all filters. With `html`, every value is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("valve_plugin.report", "assets"),
        autoescape=html,  # noqa: S701 (plain text goes to a terminal, or is escaped later)
        undefined=StrictUndefined,
    )
    filters = (
        points, signed_points, plural, duration, format_time, join_numbers, short_task_id, task_name, outcome_word,
        attempt_ids, tasks_for_gain, too_few, guarantee, render_markdown, format_entry, split_caption, allow_breaks,
        code_spans,
    )  # fmt: skip
    made.filters |= {function.__name__: function for function in filters}
    made.filters["say"] = functools.partial(_render, made)
    return made


def signed_points(rate: float) -> str:
    """Return a difference of rates in points, without the unit: `+4.2`, `0.0`."""
    number = f"{100 * rate:+.1f}"
    return number if number.strip("+-0.") else "0.0"


def join_numbers(numbers: Iterable[int]) -> str:
    """Return ascending numbers as part of a sentence: `2, 4 and 6 to 9`."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return " and ".join(", ".join(parts).rsplit(", ", 1))


def task_name(task_id: str, names: Mapping[str, str]) -> str:
    """Return a task's function and file, where they are known, else its short id."""
    return names.get(task_id) or short_task_id(task_id)


def attempt_ids(point: StreamPoint) -> str:
    """Return the ids of a task's attempts that this machine keeps, separated by spaces."""
    return " ".join(r.attempt for r in point.rollouts if r.attempt)


def allow_breaks(text: str) -> Markup:
    """Return text as HTML with possible line breaks after underscores, since names and task ids have no spaces."""
    from markupsafe import Markup, escape

    return Markup(re.sub("_+", r"\g<0><wbr>", str(escape(text))))  # noqa: S704 (escaped)


def code_spans(text: str) -> Markup:
    """Return our own text as HTML in which text between backticks is code."""
    from markupsafe import Markup, escape

    parts = [str(escape(part)) for part in text.split("`")]
    if len(parts) % 2 == 0:  # a backtick without its partner
        return escape(text)
    return Markup("".join(f"<code>{p}</code>" if n % 2 else p for n, p in enumerate(parts)))  # noqa: S704 (escaped)


def render_markdown(markdown: str) -> Markup:
    """Return Markdown as safe HTML: tags, links and images stay plain text, so nothing loads or runs."""
    from markupsafe import Markup

    return Markup(_markdown_parser().render(markdown))  # noqa: S704 (the parser escapes all text; tests attack it)


@functools.cache
def _markdown_parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    return parser.disable(["link", "image", "autolink", "reference", "html_block", "html_inline"])


def format_entry(entry: Entry) -> str:
    """Return a ledger entry as indented JSON text, without its type."""
    data = plain(entry)
    del data["type"]
    return format_json(data)


def format_json(data: Any, indent: str = "") -> str:
    """Return indented JSON text. A part that fits on one line stays on one line."""
    flat = json.dumps(data, ensure_ascii=False)
    if len(flat) + len(indent) <= 150 or not isinstance(data, dict | list) or not data:
        return flat
    deeper = indent + "  "
    if isinstance(data, dict):
        rows = [f"{deeper}{json.dumps(k)}: {format_json(v, deeper)}" for k, v in data.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + format_json(v, deeper) for v in data) + f"\n{indent}]"


def json_for_script(data: Any) -> Markup:
    """Return JSON for a script element. `<`, `>` and `&` are escaped, so it cannot end the element."""
    from markupsafe import Markup

    shown = json.loads(visible(json.dumps(data, ensure_ascii=False)))
    text = json.dumps(shown, separators=(",", ":"))  # ASCII only
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 (escaped above)


def split_caption(text: str) -> tuple[str, str]:
    """Return a caption's first sentence and the rest. The word SIMULATION at its start is no sentence of its own."""
    parts: Sequence[str] = re.split(r"(?<=[.]) (?=[A-Z])", text)
    first = 1 + text.startswith("SIMULATION")
    return " ".join(parts[:first]), " ".join(parts[first:])
