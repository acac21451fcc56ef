"""From a model's answer to items: strict JSON for the schema, or nothing."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec

from valve_plugin import schemas
from valve_plugin.codec import convert, decode, repeated
from valve_plugin.errors import ModelOutputError, RecordError

if TYPE_CHECKING:
    from jsonschema import ValidationError

MAX_BYTES = 200_000
"""Six items at their limits take half of it."""

_FENCE = re.compile(r"\A\s*```[A-Za-z]*[ \t]*\r?\n(.*)\n[ \t]*```\s*\Z", re.DOTALL)


class Draft(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One item as the model wrote it: nothing in it is trusted yet."""

    name: str
    text: str
    markdown: str = ""
    scope_hint: str = ""


class Extraction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole answer that fits extraction.schema.json (sentences.schema.json: without bodies)."""

    principles: tuple[Draft, ...]
    skills: tuple[Draft, ...]
    issue_summary: str = ""


def parse(answer: str, schema: str = "extraction") -> Extraction:
    """Read a model's extraction.

    Raises:
        ModelOutputError: see `answered_json`.

    Source: app:impl-extract ("malformed outputs produce an empty proposal").
    """
    return convert(answered_json(answer, schema), Extraction, where="the answer")


def answered_json(answer: str, schema: str) -> Any:
    """Read a model's answer that should fit a schema. One surrounding code fence is stripped; nothing else is repaired.

    Raises:
        ModelOutputError: it is not the JSON that was asked for, in one line that quotes none of it.
    """
    from jsonschema import Draft202012Validator  # 60 ms, so not at import

    size = len(answer.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise ModelOutputError(f"the answer has {size} bytes, expected at most {MAX_BYTES}")
    fenced = _FENCE.match(answer)
    text, wanted = fenced[1] if fenced else answer, schemas.load(schema)
    try:
        data = decode(text, object, where="the answer")
        twice = repeated(text)
        problem = next(Draft202012Validator(wanted).iter_errors(data), None)
    except (RecordError, UnicodeError, RecursionError) as e:
        # msgspec says what and at which byte, and quotes nothing.
        raise ModelOutputError(f"the answer is not JSON: {e.__cause__ or type(e).__name__}"[:160]) from e
    if twice is not None:
        key = twice if f'"{twice}": ' in json.dumps(wanted) else "a key"  # ours may be quoted, the model's is not
        raise ModelOutputError(f"the answer gives {key} twice in one object")
    if problem is not None:
        place = "/".join(map(str, problem.absolute_path)) or "top level"
        raise ModelOutputError(f"the answer does not fit the schema at {place}: {_rule(problem)}")
    return data


def _rule(problem: ValidationError) -> str:
    """Return which rule is broken. The rule is ours and may be quoted; what broke it is the model's and is not."""
    if problem.validator == "additionalProperties":
        return "other keys than asked for"
    return f"{problem.validator} {problem.validator_value}"
