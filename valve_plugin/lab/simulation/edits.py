"""From a bug patch to the edits a solver makes: the right ones, or plausible wrong ones. Pure; line numbers are exact.

A SWE-smith patch *introduces* the bug, so its new side is what the workspace holds and its old side is the fix.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import NamedTuple

_FILE = re.compile(r"^\+\+\+ (?:b/)?([^\t\n]+)")
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@ ?(.*)")
_NAME = re.compile(r"\b(?:def|class)\s+(\w+)")


class LineChange(NamedTuple):
    """One run of neighbouring lines to replace."""

    path: str
    line: int
    """Where `present` begins in the workspace's file, from 1; with nothing present, the line to insert before."""
    present: tuple[str, ...]
    """The buggy lines, without line ends."""
    wanted: tuple[str, ...]
    """The lines to put there."""


def changes(patch: str) -> list[LineChange]:
    """Return the changes that undo a bug patch, in the patch's order.

    A patch that only renames, creates or deletes whole files has none: the solver gives such a task up.
    """
    found: list[LineChange] = []
    path = ""
    lines = iter(patch.split("\n"))
    for text in lines:
        if header := _FILE.match(text):
            path = header[1]
        elif (hunk := _HUNK.match(text)) and path not in ("", "/dev/null"):
            start = int(hunk[3]) + (hunk[4] == "0")  # an empty side is numbered by the line before it
            found += _in_hunk(path, start, _body(lines, int(hunk[2] or 1), int(hunk[4] or 1)))
    return found


def _body(lines: Iterator[str], old: int, new: int) -> Iterator[str]:
    """Yield a hunk's lines by its counts, since a removed line may itself look like a header."""
    while old > 0 or new > 0:
        text = next(lines, None)
        if text is None:
            return
        old -= text[:1] in ("-", " ", "")
        new -= text[:1] in ("+", " ", "")
        yield text


def _in_hunk(path: str, line: int, body: Iterator[str]) -> Iterator[LineChange]:
    present: list[str] = []
    wanted: list[str] = []
    for text in itertools.chain(body, [" "]):  # a last context line closes the last change
        if text.startswith("+"):
            present.append(text[1:])
        elif text.startswith("-"):
            wanted.append(text[1:])
        elif not text.startswith("\\"):  # "\ No newline at end of file" moves nothing
            if present or wanted:
                yield LineChange(path, line, tuple(present), tuple(wanted))
            line += len(present) + 1
            present, wanted = [], []


def function_of(patch: str) -> str:
    """Return the function or class that stands above a patch's first change, else the first one below, else ""."""
    above, changed = "", False
    for text in patch.split("\n"):
        hunk = _HUNK.match(text)
        if name := _NAME.search(hunk[5] if hunk else text):
            above = name[1]
        changed |= text[:1] in ("+", "-") and not text.startswith(("+++ ", "--- "))
        if changed and above:
            return above
    return ""


_SLIPS: tuple[tuple[str, str], ...] = (
    (r"==", "!="), (r"!=", "=="), (r"<=", "<"), (r">=", ">"),
    (r"(?<![<\-=])>(?![=>])", ">="), (r"(?<![<=])<(?![=<])", "<="),
    (r"\bis not\b", "is"), (r"\bnot in\b", "in"), (r"\bnot\b ", ""), (r"\bis\b(?! not)", "is not"),
    (r"\band\b", "or"), (r"\bor\b", "and"), (r"\bTrue\b", "False"), (r"\bFalse\b", "True"),
    (r"(?<=[\w)\]]) \+ (?=[\w(\[])", " - "), (r"(?<=[\w)\]]) - (?=[\w(\[])", " + "), (r"(?<![\w.])1(?![\w.])", "0"),
    (r"(?<![\w.])0(?![\w.])", "1"), (r"\bNone\b", "False"),
)  # fmt: skip


def slips(all_changes: Sequence[LineChange]) -> list[list[LineChange]]:
    """Return every variant of the fix in which one operator or constant of one restored line is wrong."""
    return [
        [*all_changes[:i], change._replace(wanted=wrong), *all_changes[i + 1 :]]
        for i, change in enumerate(all_changes)
        for wrong in _one_slip(change.wanted)
        if wrong != change.present
    ]


def _one_slip(lines: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for i, line in enumerate(lines):
        if line.lstrip().startswith(("#", '"', "'", ">>>")):  # comments, texts and doctests change no behaviour
            continue
        for pattern, slip in _SLIPS:
            wrong = re.sub(pattern, slip, line, count=1)
            if wrong != line:
                yield (*lines[:i], wrong, *lines[i + 1 :])


def command(edits: Sequence[LineChange]) -> str:
    """Return one bash command that makes the edits: a Python program that assigns to slices of lines."""
    body = ["from pathlib import Path"]
    for path in dict.fromkeys(c.path for c in edits):
        body += [f"path = Path({path!r})", 'lines = path.read_bytes().decode().split("\\n")']
        mine = [c for c in edits if c.path == path]
        for c in sorted(mine, key=lambda c: -c.line):  # from below, so that line numbers above stay valid
            body.append(f"lines[{c.line - 1}:{c.line - 1 + len(c.present)}] = {_literal(c.wanted)}")
        body.append('path.write_bytes("\\n".join(lines).encode())')
    return "python3 - <<'PYTHON'\n" + "\n".join(body) + "\nPYTHON"


def _literal(lines: Sequence[str]) -> str:
    return "[\n" + "".join(f"    {line!r},\n" for line in lines) + "]" if lines else "[]"


def append(path: str, lines: Sequence[str]) -> str:
    """Return a bash command that adds lines to the end of a file."""
    body = "\n".join(lines)
    return f"cat >> {quote(path)} <<'EOF'\n{body}\nEOF"
