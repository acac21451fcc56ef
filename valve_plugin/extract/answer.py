"""The one JSON object that a model's answer holds, whatever stands around it and however loosely it is written.

What has one reading is read as a person would; nothing is ever made up. Two readings, or an object that was cut off,
are nothing. Reading takes time linear in the length of the answer.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from valve_plugin.errors import ModelOutputError

MAX_BYTES = 200_000
"""Six items at their limits take half of it."""
TWICE = "\0twice"
"""Key under which an object names a key that it gives twice with two values; no answer can hold it."""
_MOST_DEPTH = 20
_MOST_WORK = 10
"""Characters looked at, as a multiple of the answer's length."""

_KEYS = {
    key.replace("_", ""): key
    for key in (
        *("issue_summary", "principles", "skills", "name", "text", "markdown", "scope_hint", "replaces"),
        *("verdicts", "verdict", "reason"),
    )
}
"""The keys we ask for, as they are recognised: whatever their case, with or without `_`."""
_STRING = r'"(?:[^"\\]|\\.)*"'
_COMMENT = r"//[^\n]*"
_TOKEN = re.compile(rf"{_STRING}|{_COMMENT}|([{{\[])|([}}\]])|(\")", re.DOTALL)
_LOOSE = re.compile(
    rf"(?P<kept>{_STRING})|{_COMMENT}|,(?=(?:\s|{_COMMENT})*[}}\]])|\u00a0|(?<!\w)(?P<key>[A-Za-z_]\w*)(?!\w)(?=\s*:)",
    re.DOTALL,
)
"""JSON as people write it: comments, commas before a closing bracket, odd spaces, keys without quotes."""
_ESCAPE = re.compile(r"\\(?:(?P<right>[\"\\/bfnrt]|u[0-9a-fA-F]{4})|(?P<quote>'))?")
r"""A backslash in a text. One that begins no escape of JSON is itself, as in `\d` of a regular expression."""
_JSON = re.compile(r'\{\s*"[\w -]*(?:"\s*:|\Z)')
"""How an object begins that is no prose."""
_DEBRIS = re.compile(rf'"(?:failures|{"|".join(_KEYS.values())})"\s*(?::|\Z)')
"""One of our keys where no object is: a part of an answer that an unmarked quotation tore in two."""
_THINKING = r"(?:think|thinking|thought|reasoning|analysis|reflection)[>\]]"
_BEGIN, _END = re.compile(rf"\A\s*[<\[]{_THINKING}", re.IGNORECASE), re.compile(rf"[<\[]/{_THINKING}", re.IGNORECASE)
_FENCE = re.compile(r"\A\s*```[A-Za-z]*[ \t]*\n|\n[ \t]*```\s*\Z")


def find_object(answer: str, keys: Sequence[str]) -> dict[str, Any]:
    """Return the one object of an answer in which one of these keys has a list or an object.

    The keys we ask for are returned as we write them, whatever their case. Thinking, prose and fences around the
    object, an object around it, comments, trailing commas and raw line breaks in texts make no difference.

    Raises:
        ModelOutputError: there is none, it was cut off, or there are two that differ; in one line that quotes nothing.
    """
    size = len(answer.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        raise ModelOutputError(f"the answer has {size} bytes, expected at most {MAX_BYTES}")
    text = _without_thinking(answer)
    objects, around = _objects(text)
    found: list[dict[str, Any]] = []
    for candidate in [*objects, *(_python_literal(text) if around.strip() else ())]:
        found += [one for one in _inside(candidate, keys) if one not in found and not _is_example(one)]
        if len(found) > 1:
            raise ModelOutputError("the answer comes in two different versions, expected one")
    if found and objects and _DEBRIS.search(around):
        raise ModelOutputError("the answer is broken: a part of it stands outside of its JSON object")
    if not found:
        raise ModelOutputError(f"the answer holds no JSON object with {' or '.join(keys)}")
    if twice := found[0].get(TWICE):
        # Our keys may be quoted, the model's may not.
        raise ModelOutputError(f"the answer gives {twice if twice in keys else 'a key'} twice in one object")
    return found[0]


def _without_thinking(answer: str) -> str:
    text = answer.lstrip("\ufeff \t\r\n").rstrip("\0 \t\r\n")
    if text.startswith('"'):  # JSON in a JSON string
        try:
            inner = json.loads(text)
        except ValueError:
            inner = None
        text = inner if isinstance(inner, str) else text
    if opened := _BEGIN.match(text):
        closed = _END.search(text, opened.end())
        return text[closed.end() :] if closed else ""
    closed = _END.search(text)  # some servers leave the opening mark out
    return text[closed.end() :] if closed and "{" not in text[: closed.start()] else text


def _objects(text: str) -> tuple[list[dict[str, Any]], str]:
    """Return the objects in a text that can be read and do not lie in another one, and what stands around them.

    Where an object begins as JSON does and cannot be read, nothing is: what looks like an answer behind it may stand in
    one of its texts, whose quotes the model left as they were.

    Raises:
        ModelOutputError: that is so.
    """
    found, around, done = [], [], 0
    work, place = _MOST_WORK * (len(text) + 100), text.find("{")
    while place >= 0:
        end, seen = _balanced(text, place)
        work -= seen - place
        value = _load(text[place:end]) if end is not None else None
        if work < 0 or (value is None and _JSON.match(text, place)):
            raise ModelOutputError("the answer is cut off" if end is None else "the answer is not JSON")
        if isinstance(value, dict) and end is not None:
            found.append(value)
            around.append(text[done:place])
            done = end
        place = text.find("{", done if done > place else place + 1)
    return found, "".join([*around, text[done:]])


def _balanced(text: str, start: int) -> tuple[int | None, int]:
    """Return (where the object that begins at `start` ends, or None; up to where was looked)."""
    closers: list[str] = []
    for token in _TOKEN.finditer(text, start):
        if token[1]:
            closers.append("}" if token[1] == "{" else "]")
            if len(closers) > _MOST_DEPTH:
                return None, token.end()
        elif token[2]:
            if closers.pop() != token[2]:
                return None, token.end()
            if not closers:
                return token.end(), token.end()
        elif token[3]:  # a string that never ends
            break
    return None, len(text)


def _load(text: str) -> Any:
    """Return JSON as a value, or None."""
    for plain in (text, None):
        plain = _LOOSE.sub(_strict, text) if plain is None else plain
        try:
            return json.loads(plain, strict=False, object_pairs_hook=_plain_keys, parse_constant=_refuse)
        except (ValueError, RecursionError):
            continue
    return None


def _strict(part: re.Match[str]) -> str:
    """Return what stands loosely as JSON has it."""
    if part["kept"]:
        return _ESCAPE.sub(lambda m: m[0] if m["right"] else m["quote"] or "\\\\", part["kept"])
    return f'"{part["key"]}"' if part["key"] else ""


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _plain_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        name = _KEYS.get(re.sub(r"[\W_]+", "", key).lower(), key)
        if name in found and found[name] != value:
            found[TWICE] = name
        found.setdefault(name, value)
    return found


def _python_literal(text: str) -> Iterator[Any]:
    """Yield an answer that is nothing but a Python dictionary."""
    plain = _FENCE.sub("", text).strip()
    if not (plain.startswith("{") and plain.endswith("}")):
        return
    with suppress(ValueError, TypeError, SyntaxError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about escapes in its texts
        yield _python_value(ast.parse(plain, mode="eval").body)


def _python_value(node: ast.expr) -> Any:
    if isinstance(node, ast.Dict):
        names = [ast.literal_eval(key) if key else None for key in node.keys]
        if not all(isinstance(name, str) for name in names):
            raise ValueError("a key that is no text")
        return _plain_keys(list(zip(map(str, names), map(_python_value, node.values), strict=True)))
    if isinstance(node, ast.List | ast.Tuple):
        return [_python_value(entry) for entry in node.elts]
    return ast.literal_eval(node)


def _inside(value: Any, keys: Sequence[str], depth: int = 3) -> list[dict[str, Any]]:
    """Return the outermost objects in `value` that have one of the keys."""
    if isinstance(value, dict) and (
        "issue_summary" in value or any(isinstance(value.get(key), list | dict) for key in keys)
    ):
        return [value]
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [found for part in parts for found in _inside(part, keys, depth - 1)] if depth else []


def _is_example(value: Mapping[str, Any]) -> bool:
    """Whether an object repeats the form that was asked for, with dots in place of words."""
    rows = [row for part in value.values() if isinstance(part, list) for row in part if isinstance(row, dict)]
    return bool(rows) and all(row.get("name") in ("...", "\u2026") for row in rows)
