"""From a model's answer to items: each is checked on its own, what is no use is left out by name, the rest is kept."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from valve_plugin import schemas
from valve_plugin.codec import convert, decode, repeated_key
from valve_plugin.errors import ModelOutputError, RecordError
from valve_plugin.extract.answer import MAX_BYTES, TWICE, find_object
from valve_plugin.records import KINDS, Kind
from valve_plugin.tasks.syntax import patch_changes

MOST_ITEMS = 3
"""Of each kind. This and the next three are stated in the prompt."""
TEXT_LIMIT = 300
"""Characters of the search sentence, and of the scope hint."""
WORD_LIMIT = 150
"""Words of the body."""
PATCH_LIMIT = 2
"""Changed lines of the task's patches in the body."""
_TELLING = 12
"""Characters from which a changed line is recognised."""

_FENCED = re.compile(r"\A\s*```[A-Za-z]*[ \t]*\r?\n(.*)\n[ \t]*```\s*\Z", re.DOTALL)


class Draft(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One item as the model wrote it: nothing in it is trusted yet."""

    name: str
    text: str
    markdown: str = ""
    scope_hint: str = ""
    replaces: str = ""
    """Name of the known item of its kind that this one is a new version of."""


class LeftOut(NamedTuple):
    """An item of the answer that is no use."""

    kind: Kind
    name: str
    """As the model wrote it; untrusted."""
    why: str
    """In our words: it quotes nothing of the answer."""


class Extraction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole answer."""

    principles: tuple[Draft, ...]
    skills: tuple[Draft, ...]
    issue_summary: str = ""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def drafts(self) -> list[tuple[Kind, Draft]]:
        """Every item with its kind, in the order proposed."""
        return [("principle", d) for d in self.principles] + [("skill", d) for d in self.skills]


def parse(answer: str, patches: Sequence[str] = ()) -> Extraction:
    """Read an extraction as a person would.

    Args:
        patches: of the attempts; an item that repeats one is left out.

    Raises:
        ModelOutputError: there is no answer, or it has more than one reading.
    """
    data = find_object(answer, ("principles", "skills"))
    changed = _changed_lines(patches)
    kept: dict[Kind, list[Draft]] = {kind: [] for kind in KINDS}
    left_out: list[LeftOut] = []
    for kind in KINDS:
        for row in _rows(data.get(f"{kind}s")):
            given = row if isinstance(row, dict) else {}
            draft = Draft(  # what is not given is empty
                name=_text(given.get("name")),
                text=_text(given.get("text"), " "),
                markdown=_text(given.get("markdown"), "\n"),
                scope_hint=_text(given.get("scope_hint"), ", ") if kind == "skill" else "",
                replaces=_text(given.get("replaces")),
            )
            why = _objection(row, draft, kind, changed)
            if not why and len(kept[kind]) == MOST_ITEMS:
                why = f"is one more than the {MOST_ITEMS} asked for"
            if why:
                left_out.append(LeftOut(kind, draft.name, why))
            else:
                kept[kind].append(draft)
    summary = _text(data.get("issue_summary"), " ")
    return Extraction(tuple(kept["principle"]), tuple(kept["skill"]), summary, tuple(left_out))


def _rows(value: Any) -> list[Any]:
    """Return the items of a list, which may be one object, or an object with their names as keys."""
    if not isinstance(value, dict):
        return value if isinstance(value, list) else []
    if "name" in value or "text" in value:
        return [value]
    return [{"name": name, **row} if isinstance(row, dict) else row for name, row in value.items()]


def _text(value: Any, joint: str = "") -> str:
    """Return a text, or the lines of a list joined. What is neither is none; lone surrogates go."""
    if isinstance(value, list) and joint and all(isinstance(part, str) for part in value):
        value = joint.join(value)
    return value.encode("utf-8", "ignore").decode() if isinstance(value, str) else ""


def _objection(row: Any, draft: Draft, kind: Kind, changed: frozenset[str]) -> str:
    """Return why an item is no use, or "" if it is."""
    if not isinstance(row, dict):
        return "is not an object"
    if twice := row.get(TWICE):
        return f"gives {twice if twice in ('name', 'text', 'markdown') else 'a key'} twice"
    for key in ("name", "text", "markdown"):
        if not getattr(draft, key).strip():
            return f"has no {key}"
    for key, limit in (("name", 200), ("text", TEXT_LIMIT), ("scope_hint", TEXT_LIMIT), ("markdown", 12_000)):
        if len(getattr(draft, key)) > limit:
            return f"{key} has {len(getattr(draft, key))} characters, expected at most {limit}"
    if (words := len(draft.markdown.split())) > WORD_LIMIT:
        return f"markdown has {words} words, expected at most {WORD_LIMIT}"
    lines = {line.strip().lstrip("+-").strip() for line in draft.markdown.splitlines()}
    if len(lines & changed) > PATCH_LIMIT or re.search(r"^(?:diff --git |@@ -\d)", draft.markdown, re.MULTILINE):
        return "pastes the patch of this task"
    return ""


def _changed_lines(patches: Sequence[str]) -> frozenset[str]:
    """Return the changed lines of patches that say enough to be recognised."""
    changed = (change.text[1:].strip() for patch in patches for change in patch_changes(patch))
    return frozenset(line for line in changed if len(line) >= _TELLING)


# The paper's contract


def parse_strictly(answer: str, schema: str = "extraction") -> Extraction:
    """Read an extraction that fits its schema, with nothing around it.

    Raises:
        ModelOutputError: see `load_strictly`.

    Source: app:impl-extract ("malformed outputs produce an empty proposal").
    """
    return convert(load_strictly(answer, schema), Extraction, where="the answer")


def load_strictly(answer: str, schema: str) -> Any:
    """Read an answer that should fit a schema. One surrounding code fence is stripped; nothing else is repaired.

    Raises:
        ModelOutputError: it is not the JSON that was asked for, in one line that quotes none of it.
    """
    from jsonschema import Draft202012Validator  # 60 ms, so not at import

    size = len(answer.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise ModelOutputError(f"the answer has {size} bytes, expected at most {MAX_BYTES}")
    fenced = _FENCED.match(answer)
    text, wanted = fenced[1] if fenced else answer, schemas.load(schema)
    try:
        data = decode(text, object, where="the answer")
        twice = repeated_key(text)
        problem = next(Draft202012Validator(wanted).iter_errors(data), None)
    except (RecordError, UnicodeError, RecursionError) as e:
        # msgspec says what and at which byte, and quotes nothing.
        raise ModelOutputError(f"the answer is not JSON: {e.__cause__ or type(e).__name__}"[:160]) from e
    if twice is not None:
        key = twice if f'"{twice}": ' in json.dumps(wanted) else "a key"  # ours may be quoted, the model's is not
        raise ModelOutputError(f"the answer gives {key} twice in one object")
    if problem is not None:
        place = "/".join(map(str, problem.absolute_path)) or "top level"
        # The rule is ours and may be quoted; what broke it is the model's and is not.
        rule = f"{problem.validator} {problem.validator_value}"
        rule = "other keys than asked for" if problem.validator == "additionalProperties" else rule
        raise ModelOutputError(f"the answer does not fit the schema at {place}: {rule}")
    return data
