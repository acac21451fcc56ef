"""Issue text without a model: what a failing test does and what came of it, never where the cause is. Pure."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from pathlib import PurePosixPath

from valve_plugin.records import Record
from valve_plugin.tasks.syntax import parsed

_MAX_CODE_LINES = 45
_MAX_ERROR_LINES = 14
_FIRST_LINES = 3  # of a longer error: what is compared, and what it differs in, comes last
_MAX_LINE = 400
_CAPTURED = re.compile(r"^-+ Captured .* -+$", re.MULTILINE)
_CHAINED = re.compile(
    r"^(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):$",
    re.MULTILINE,
)
_NAMED = re.compile(r"[A-Za-z_][\w.]*: ")
_VARYING = (
    (re.compile(r"\bat 0x[0-9a-fA-F]{6,}|\b0x[0-9a-fA-F]{12,}"), lambda m: "at 0x…" if m[0][0] == "a" else "0x…"),
    (re.compile(r"/tmp/pytest-of-[^/\s]+/pytest-\d+"), lambda _: "/tmp/…"),  # noqa: S108
    (re.compile(r"\btmp[a-z0-9_]{8}(?![a-z0-9_])"), lambda _: "tmp…"),
    (re.compile(r"\b\d+\.\d{3,} ?(?=(?:s|sec|secs|seconds|ms|us|µs|ns)\b)"), lambda _: "… "),
    (re.compile(r"\b1\d{9}\.\d{3,}"), lambda _: "…"),  # seconds since 1970
)
"""What is another in each run, and what stands for it."""
_OWN = "the following worked; in this checkout it does not."
_SAME = "Probably the same cause: "


class Voice(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one failing test shows: enough to write about it without running it again."""

    test: str
    code: str
    title: str
    """The line of the last exception that names it."""
    error: tuple[str, ...]


class Issue(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an issue can be written from, whichever of the tests turn out to vary later."""

    version: str
    """The release the tests passed with, like `deepdiff 8.2.0`."""
    voices: tuple[Voice, ...]
    """The best first."""

    def text(self, failing: Sequence[str], patch: str) -> str:
        """Return an issue that rests on these tests alone and does not give the fix away; empty: there is none."""
        for voice in self.voices:
            if voice.test in failing:
                text = compose(voice, [test for test in failing if test != voice.test], self.version)
                if not leaks(text, patch):
                    return text
        return ""


def heard(test: str, source: str, output: str) -> Voice | None:
    """Return what a failing test shows; None: what it printed names no error.

    Args:
        test: its id.
        source: text of the file that holds it.
        output: what pytest printed for it with `--tb=short`.
    """
    if not (error := error_lines(output)):
        return None
    title = headline(output).removeprefix("AssertionError: ")[:110]
    return Voice(test=test, code=test_code(source, test), title=title, error=tuple(error))


def compose(voice: Voice, others: Sequence[str], version: str) -> str:
    """Return an issue about one failing test.

    Args:
        others: ids of the other failing tests.
        version: the release the tests passed with.
    """
    name = voice.test.split("::")[-1]
    parts = [
        f"{_headline(name)}: {voice.title}",
        f"With {version} {_OWN}",
        f"```python\n{voice.code}\n```",
        "It ends with\n\n```\n" + "\n".join(voice.error) + "\n```",
    ]
    if others:
        parts.append(_others(name, others))
    parts.append("Please find the cause in the source and fix it. All other behaviour must stay as it is.")
    return "\n\n".join(parts) + "\n"


def error_lines(output: str) -> list[str]:
    """Return the exceptions that pytest printed, without the frames they came through; of many lines the last."""
    groups = _errors(output)
    lines = [line for group in groups for line in group]
    if len(lines) > _MAX_ERROR_LINES:
        lines = [line for line in groups[-1] if line.strip(" ^~")]
    if len(lines) > _MAX_ERROR_LINES:
        last = _MAX_ERROR_LINES - _FIRST_LINES - 1
        lines = [*lines[:_FIRST_LINES], "…", *lines[-last:]]
    return lines


def headline(output: str) -> str:
    """Return the line of the last exception that names it, "Type: message" or what was asserted; empty: none."""
    lines = [line for group in _errors(output)[-1:] for line in group if line.strip()]
    if not lines or not lines[0].startswith(" "):  # as most are; a SyntaxError is shown below the line it is in
        return lines[0] if lines else ""
    named = [line for line in lines if _NAMED.match(line)]
    return [lines[0].strip(), *named][-1]


def masked(text: str) -> str:
    """Return a text without what differs from run to run: addresses, temporary paths, clock times, durations."""
    for pattern, instead in _VARYING:
        text = pattern.sub(instead, text)
    return text


def strangers(text: str, failing: Sequence[str], passing: Sequence[str]) -> list[str]:
    """Return the tests that an issue text is about, or names, and that are none of the failing ones.

    In the form of `compose` any name counts; in other words, those of other known tests alone, as code.
    """
    _, own, after = text.partition(_OWN)
    if own:
        named = re.findall(r"\A\s*```python\n\s*(?:(?:async )?def|#) (\w+)", after)
        named += re.findall(r"`(\w+)`", "".join(re.findall(f"^{_SAME}.*$", after, re.MULTILINE)))
    else:
        named = ["".join(pair) for pair in re.findall(r"`(\w+)(?:\(\))?`|\bdef (\w+)\(", text)]
    fails, known = set(map(_base, failing)), set(map(_base, passing))
    return [n for n in dict.fromkeys(named) if n not in fails and (own or n in known)]


def test_code(source: str, test: str) -> str:
    """Return the code of a test function, dedented, without its class; a note when there is none to show."""
    name = _base(test)
    tree = parsed(source)
    if tree is None:
        return f"# {name}: a test that is made from data"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            lines = source.splitlines()[node.lineno - 1 : node.end_lineno]
            shown = textwrap.dedent("\n".join(lines)).splitlines()
            more = ["    ..."] if len(shown) > _MAX_CODE_LINES else []
            return "\n".join(shown[:_MAX_CODE_LINES] + more)
    return f"# {name}: a test that is made from data"


test_code.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it where it is imported


def leaks(text: str, patch: str) -> list[str]:
    """Return what in an issue text gives the fix away: the changed files' names and the changed lines."""
    found = []
    for line in patch.splitlines():
        if line.startswith(("--- ", "+++ ")):
            path = PurePosixPath(line[4:].split("\t")[0].removeprefix("a/").removeprefix("b/"))
            module = ".".join(path.with_suffix("").parts)
            found += [word for word in (str(path), module) if word in text]
        elif line[:1] in "+-" and len(line[1:].strip()) >= 20 and line[1:].strip() in text:
            found.append(line[1:].strip())
    return sorted(set(found))


def _errors(output: str) -> list[list[str]]:
    """Return the lines of each exception of a chain, the last at the end."""
    groups = []
    for part in _CHAINED.split(_CAPTURED.split(output)[0]):
        lines = [line[1:].strip("\n") for line in part.splitlines() if re.match(r"E(\s|$)", line)]
        cut = [textwrap.shorten(line, _MAX_LINE, placeholder=" …") if len(line) > _MAX_LINE else line for line in lines]
        group = textwrap.dedent(masked("\n".join(cut))).splitlines()
        groups += [group] if any(map(str.strip, group)) else []
    return groups


def _base(test: str) -> str:
    """Return the name of a test's function."""
    return test.split("::")[-1].split("[")[0]


def _headline(name: str) -> str:
    base, _, case = name.partition("[")
    words = " ".join(base.removeprefix("test_").replace("_", " ").split()) or base
    return f"{words} ({case.rstrip(']')})" if case else words


def _others(name: str, others: Sequence[str]) -> str:
    base = _base(name)
    names = list(dict.fromkeys(map(_base, others)))
    names = [n for n in names if n != base]
    if not names:
        return f"The same check fails for {len(others)} more inputs."
    shown = ", ".join(f"`{n}`" for n in names[:6])
    return f"{_SAME}{shown}" + (f" and {len(names) - 6} more checks." if len(names) > 6 else ".")
