"""Notes in the files that coding agents read: Markdown instructions, and folders of the Agent Skills format.

What is written here reads back as the same items. Any other Markdown is cut into notes by its headings. Text that was
read is untrusted: the caller screens it like a model's proposal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from valve_plugin.errors import ConfigError
from valve_plugin.files import read_regular
from valve_plugin.records import EVERY_TASK, Item, Kind

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

LIMIT = 6_000
"""Characters of one note; a longer section is cut at its headings, then at its paragraphs."""
SKILL_FILE = "SKILL.md"
_MAX_BYTES = 1_000_000
_SENTENCE = 300
_DESCRIPTION = 1024  # this and the next: https://agentskills.io/specification
_SKILL_NAME = 64

_BEGIN = "<!-- valve:begin: from the bank of this repository; change the bank, not these lines -->"
_END = "<!-- valve:end -->"
_SIMULATED = "<!-- valve:simulation -->"
_PART = re.compile(r"^<!-- valve:begin\b[^\n]*-->\n.*?^<!-- valve:end -->$", re.MULTILINE | re.DOTALL)
_START = r"### (?P<name>\S+)\n(?P<about>(?:[^\n]+\n){0,3})<!-- valve:(?P<kind>principle|skill)\b"
_NOTE = re.compile(
    rf"^{_START}(?: (?P<quiet>[^\n]*))? -->\n(?P<body>.*?)"
    rf"(?=\n\n(?:{re.sub(r'[?]P<[a-z]+>', '?:', _START)}|<!-- valve:end -->))",
    re.MULTILINE | re.DOTALL,
)
_FIRST = "…"
"""In a search sentence that is no line of its own: what the body says first."""
_OLD_NOTE = re.compile(
    r"^<!-- valve:item (?P<kind>principle|skill) (?P<name>\S+) -->\n(?P<about>.*?)^<!-- valve:body -->\n"
    r"(?P<body>.*?)\n<!-- valve:end-item -->$",
    re.MULTILINE | re.DOTALL,
)
_OLD_QUIET = re.compile(r"^<!-- valve:text (.*) -->$", re.MULTILINE)
_MARK, _ESCAPED = re.compile(r"<!-- (\\*)valve:"), re.compile(r"<!-- \\(\\*)valve:")
_HEADING = (
    "## Notes for this repository\n\n"
    "Use a note where it applies to the task. Where a note and the repository disagree, the repository is right."
)
_APPLIES = "Applies to: "
_FRONT = re.compile(r"\A---\n(?P<head>.*?)^---[ \t]*(?:\n|\Z)", re.MULTILINE | re.DOTALL)
_EVERY_FILE = ("", "*", "**", "**/*")
_CURSOR_HEAD = "---\ndescription: Notes for this repository\nalwaysApply: true\n---\n\n"


class Note(NamedTuple):
    """One note as it was read: nothing in it is trusted yet."""

    kind: Kind
    name: str
    text: str
    """The search sentence."""
    markdown: str
    scope_hint: str = ""
    simulated: bool = False
    """Whether its file was written from a simulation's bank."""


# Reading


def read_path(path: Path, kind: Kind = "skill") -> list[Note]:
    """Read a file of instructions, a folder of skills, or a folder of rules.

    Raises:
        ConfigError: there is nothing to read; the message says what was expected.
    """
    if not path.is_dir():
        return read_file(path.name, _read(path), kind, folder=path.resolve().parent.name)
    skills = [path / SKILL_FILE] if (path / SKILL_FILE).is_file() else sorted(path.glob(f"*/{SKILL_FILE}"))
    found = skills or sorted((*path.glob("*.md"), *path.glob("*.mdc")))
    if not found:
        raise ConfigError(f"{path}: holds no {SKILL_FILE}, no folder with one, and no Markdown; name one of these")
    notes = [note for one in found for note in read_file(one.name, _read(one), kind, folder=one.resolve().parent.name)]
    return _unique(notes)


def read_file(name: str, data: bytes, kind: Kind = "skill", folder: str = "") -> list[Note]:
    """Read the notes of one file.

    Raises:
        ConfigError: it is no UTF-8, or its front matter is no YAML.
    """
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as e:
        raise ConfigError(f"{name}: is no UTF-8 text ({e.reason} at byte {e.start})") from e
    head, body = _front_matter(text, name)
    simulated = is_simulated(text)
    if name == SKILL_FILE or (isinstance(head.get("name"), str) and isinstance(head.get("description"), str)):
        return [n._replace(simulated=simulated) for n in _skill(head, body, kind, folder or Path(name).stem)]
    own = [note for part in _PART.finditer(body) for note in _marked(part[0])]
    title = Path(name).stem.lstrip(".") or "notes"
    scope = _words(next((head[key] for key in ("globs", "applyTo", "paths") if head.get(key)), ""))
    described = _words(head.get("description"))
    if scope in _EVERY_FILE and (not described or scope or head.get("alwaysApply") is True):
        scope = EVERY_TASK
    notes = [n._replace(scope_hint=scope) for n in sections(_PART.sub("", body), title, kind)]
    if described and len(notes) == 1:
        notes = [notes[0]._replace(text=described[:_SENTENCE])]
    return _unique([n._replace(simulated=simulated) for n in (*own, *notes)])


def sections(text: str, title: str, kind: Kind = "skill", limit: int = LIMIT) -> list[Note]:
    """Cut Markdown into notes: at headings of the first two levels, and a longer part at its paragraphs.

    `title` names what comes before the first heading.
    """
    lines, tokens = text.splitlines(keepends=True), _parse(text)
    heads = [(t.map, int(t.tag[1]), _plain(tokens[i + 1])) for i, t in enumerate(tokens) if t.type == "heading_open"]
    cuts = [(place[0], place[1], level, name) for place, level, name in heads if place and level <= 2]
    ends = [*(cut[0] for cut in cuts), len(lines)]
    found: list[tuple[tuple[str, ...], str]] = [((title,), "".join(lines[: ends[0]]))]
    above: tuple[str, ...] = ()
    for (_, start, level, name), end in zip(cuts, ends[1:], strict=True):
        above = (name,) if level == 1 else above
        found.append((above if level == 1 else (*above, name), "".join(lines[start:end])))
    bodies = [(titles, body.strip("\n").rstrip()) for titles, body in found if body.strip()]
    return _unique([note for titles, body in bodies for note in _pieces(titles, body, kind, limit)])


def _pieces(titles: tuple[str, ...], body: str, kind: Kind, limit: int) -> Iterator[Note]:
    parts = _cut(body, limit)
    name = re.sub(r"[^\w.]+", "-", titles[-1].lower()).strip("-")[:80] or "note"
    for number, part in enumerate(parts, 1):
        label, ending = ": ".join(filter(None, titles[-2:])), ""
        if len(parts) > 1:
            label, ending = f"{label} (part {number} of {len(parts)})", f"-part-{number}"
        sentence = f"{label}: {_first_sentence(part)}".removesuffix(": ")
        yield Note(kind, name + ending, sentence[:_SENTENCE], part)


def _cut(body: str, limit: int) -> list[str]:
    """Return a text in pieces of at most `limit` characters: cut between blocks, else lines, else anywhere."""
    if len(body) <= limit:
        return [body]
    lines = body.splitlines(keepends=True)
    starts = sorted({0, *(t.map[0] for t in _parse(body) if t.map)})
    blocks = ["".join(lines[a:b]) for a, b in zip(starts, [*starts[1:], len(lines)], strict=True)]
    small = [one for block in blocks for one in ([block] if len(block) <= limit else block.splitlines(keepends=True))]
    small = [one[i : i + limit] for one in small for i in range(0, len(one), limit)]
    pieces = [""]
    for one in small:
        pieces = [*pieces[:-1], pieces[-1] + one] if len(pieces[-1]) + len(one) <= limit else [*pieces, one]
    return [piece.strip("\n").rstrip() for piece in pieces if piece.strip()]


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark")


def _parse(text: str) -> list[Token]:
    """Return the top-level blocks, headings with the token of their text."""
    tokens = _parser().parse(text)
    return [t for i, t in enumerate(tokens) if t.level == 0 or (i and tokens[i - 1].level == 0)]


def _plain(token: Token) -> str:
    shown = [t.content for t in token.children or () if t.type in ("text", "code_inline", "softbreak")]
    return " ".join("".join(part or " " for part in shown).split())


def _first_sentence(text: str) -> str:
    line = next((_plain(t) for t in _parse(text) if t.type == "inline" and _plain(t)), " ".join(text.split()[:30]))
    return re.split(r"(?<=[.!?])\s", line, maxsplit=1)[0][:200]


def _marked(part: str) -> Iterator[Note]:
    """Yield the notes of our part of a file, also as earlier versions wrote it."""
    for found in _NOTE.finditer(part):
        body, quiet = _unescape(found["body"]), _unescape(found["quiet"] or "")
        if quiet.endswith(_FIRST):
            quiet = _with_first(quiet.removesuffix(_FIRST), body)
        yield _note(found, "\n".join(filter(None, [_escape(quiet), found["about"]])), body)
    for found in _OLD_NOTE.finditer(part):
        about = _OLD_QUIET.sub(r"\1", found["about"], count=1)  # a text that looks so is escaped
        yield _note(found, about, _unescape(found["body"]))


def _note(found: re.Match[str], about: str, body: str) -> Note:
    kind: Kind = "principle" if found["kind"] == "principle" else "skill"
    text, *more = [*map(_unescape, about.split("\n")), ""]
    scope = next((line.removeprefix(_APPLIES) for line in more if line.startswith(_APPLIES)), "")
    return Note(kind, found["name"], text, body, scope)


def _with_first(before: str, body: str) -> str:
    """Return a search sentence that ends with a body's first sentence, as `sections` makes it."""
    return f"{before}{_first_sentence(body)}"[:_SENTENCE]


def _skill(head: Mapping[str, Any], body: str, kind: Kind, folder: str) -> list[Note]:
    own = head.get("metadata")
    own = own if isinstance(own, dict) else {}
    said, _, name = _words(own.get("valve-item")).partition("/")
    if said in ("principle", "skill") and name:
        text, scope = _words(own.get("valve-text")), _words(own.get("valve-scope"))
        return [Note("principle" if said == "principle" else "skill", name, text, body.strip("\n"), scope)]
    name, sentence = _words(head.get("name")) or folder, _words(head.get("description"))
    parts = _cut(body.strip("\n").rstrip(), LIMIT)
    names = [f"{name}-part-{n}" if len(parts) > 1 else name for n in range(1, len(parts) + 1)]
    return [
        Note(kind, one, (sentence or _first_sentence(part) or one)[:600], part)
        for one, part in zip(names, parts, strict=True)
        if part.strip()
    ]


def _front_matter(text: str, name: str) -> tuple[dict[str, Any], str]:
    """Return a file's front matter, if it has any, and the rest."""
    found = _FRONT.match(text)
    if not found:
        return {}, text
    import yaml

    try:
        head = yaml.safe_load(found["head"])
    except (yaml.YAMLError, RecursionError, ValueError):
        # Rules of Cursor have globs such as **/*.py, which YAML reads as an alias.
        pairs = (line.partition(":") for line in found["head"].splitlines() if ":" in line)
        head = {key.strip(): value.strip() for key, _, value in pairs}
    if head is not None and not isinstance(head, dict):
        if name == SKILL_FILE:
            raise ConfigError(f"{name}: its front matter is a {type(head).__name__}, expected name and description")
        return {}, text  # a thematic break, not front matter
    return head or {}, text[found.end() :]


def _words(value: object) -> str:
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return " ".join(str(value).split()) if isinstance(value, str | int | float) else ""


def _unique(notes: Sequence[Note]) -> list[Note]:
    """Give a later note of the same kind and name a number."""
    seen: dict[tuple[str, str], int] = {}
    found = []
    for note in notes:
        key = (note.kind, note.name)
        seen[key] = seen.get(key, 0) + 1
        found.append(note if seen[key] == 1 else note._replace(name=f"{note.name}-{seen[key]}"))
    return found


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, _MAX_BYTES)
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror or e}") from e


# Writing

Standing = Callable[[Item], str]
"""Returns what a reader has to know about how an item came in; empty where a gate judged it."""


def section(items: Sequence[Item], standing: Standing, simulation: str = "") -> str:
    """Return the items between markers, without a line end; `simulation` is said first, and kept when it is read."""
    parts = [_BEGIN] + [f"{_SIMULATED}\n{simulation}"] * bool(simulation) + [_HEADING] * bool(items)
    for item in items:
        quiet = _quiet(item)
        about = [_line(item.text)] * (not quiet) + [_APPLIES + _line(item.scope_hint)] * bool(item.scope_hint)
        about += [f"({standing(item)})"] * bool(standing(item))
        mark = f"<!-- valve:{item.kind}{f' {quiet}' if quiet else ''} -->"
        parts.append("\n".join([f"### {item.name}", *about, mark, _escape(item.markdown)]))
    return "\n\n".join(parts) + "\n" * (1 + bool(items)) + _END


def place(existing: str, part: str, *, head: str = "") -> str:
    """Return a file's text with our part replaced, or added at its end; all other text stays as it is.

    Raises:
        ConfigError: the markers are not one pair.
    """
    found = list(_PART.finditer(existing))
    begins = len(re.findall(r"^<!-- valve:begin\b", existing, re.MULTILINE))
    ends = len(re.findall(rf"^{_END}", existing, re.MULTILINE))
    if len(found) > 1 or begins != ends or begins != len(found):
        raise ConfigError(
            f"{begins} begin and {ends} end marks of valve, expected one pair; remove what is left of them"
        )
    if found:
        return existing[: found[0].start()] + part + existing[found[0].end() :]
    if not existing:
        return f"{head}{part}\n"
    return existing + "\n" * (1 + (not existing.endswith("\n"))) + f"{part}\n"


def take_out(existing: str, *, head: str = "") -> str:
    """Return a file's text without our part, as it was before `place`, except that it ends with a line end."""
    found = _PART.search(existing)
    if not found:
        return existing
    before, after = existing[: found.start()], existing[found.end() + 1 :]
    return "" if before in ("", head) and not after else before.removesuffix("\n") + after


def cursor_head(path: Path) -> str:
    """Return how a new file of Cursor's begins."""
    return _CURSOR_HEAD if path.suffix == ".mdc" else ""


def skill_files(items: Sequence[Item], standing: Standing, simulation: str = "") -> dict[str, str]:
    """Return, by name of its folder, the `SKILL.md` of each item; see https://agentskills.io/specification.

    An agent reads name and description always, and the rest when it takes the skill up. Both say `simulation`.
    """
    import yaml

    found: dict[str, str] = {}
    for item in items:
        plain = re.sub(r"[^a-z0-9]+", "-", item.name.lower()).strip("-")[:_SKILL_NAME].strip("-") or "note"
        name, number = plain, 1
        while name in found:
            number += 1
            ending = f"-{number}"
            name = plain[: _SKILL_NAME - len(ending)].rstrip("-") + ending
        scope = f" {_APPLIES}{_line(item.scope_hint)}" if item.scope_hint else ""
        about = {"valve-item": f"{item.kind}/{item.name}", "valve-text": item.text, "valve-scope": item.scope_hint}
        about |= {"valve-note": standing(item), "valve-simulation": simulation}
        said = f"{simulation}. " if simulation else ""
        head = {
            "name": name,
            "description": f"{said}{_line(item.text)}{scope}"[:_DESCRIPTION],
            "metadata": {key: value for key, value in about.items() if value},
        }
        written = yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=10_000)
        found[name] = f"---\n{written}---\n\n{item.markdown}\n"
    return found


def is_ours(text: str) -> bool:
    """Tell whether a `SKILL.md` was written by `skill_files`."""
    return bool(_metadata(text).get("valve-item"))


def is_simulated(text: str) -> bool:
    """Tell whether a file has a part, or is a skill, that was written from a simulation's bank."""
    marked = any(f"\n{_SIMULATED}\n" in part[0] for part in _PART.finditer(text))
    return marked or bool(_metadata(text).get("valve-simulation"))


def _metadata(text: str) -> Mapping[str, Any]:
    try:
        own = _front_matter(text, "")[0].get("metadata")
    except ConfigError:
        return {}
    return own if isinstance(own, dict) else {}


def _quiet(item: Item) -> str:
    """Return an item's search sentence for its mark, where the body says the same; "" where readers need it."""
    line, body = _line(item.text), _line(item.markdown)
    before = line[: line.find(_first_sentence(item.markdown)[:20])]
    if _with_first(before, item.markdown) == line:
        found = f"{before}{_FIRST}"
    else:
        said = line.rpartition(": ")[2].rstrip(".") in body
        found = line if said and not line.endswith(_FIRST) else ""
    return "" if "--" in found or "valve:" in found else found


def _line(text: str) -> str:
    return _escape(" ".join(text.split()))


def _escape(text: str) -> str:
    """Return text that cannot pass for a mark of ours."""
    return _MARK.sub(r"<!-- \\\1valve:", text)


def _unescape(text: str) -> str:
    return _ESCAPED.sub(r"<!-- \1valve:", text)
