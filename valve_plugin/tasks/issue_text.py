"""Issue text without a model: what a failing test does and what came of it, never where the cause is. Pure."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from pathlib import PurePosixPath

from valve_plugin.tasks.syntax import parsed

_MAX_CODE_LINES = 45
_MAX_ERROR_LINES = 14
_MAX_LINE = 400
_FRAME = re.compile(r"^(?P<file>[^\s:]+\.py):\d+: ", re.MULTILINE)


def compose(test: str, source: str, output: str, others: Sequence[str], version: str) -> str:
    """Return an issue about one failing test.

    Args:
        test: its id.
        source: text of the file that holds it.
        output: what pytest printed for it with `--tb=short`.
        others: ids of the other failing tests.
        version: the release the tests passed with, like `deepdiff 8.2.0`.
    """
    error = error_lines(output) or ["it fails"]
    name = test.split("::")[-1]
    parts = [
        f"{_headline(name)}: {error[0].removeprefix('AssertionError: ')[:110]}",
        f"With {version} the following worked; in this checkout it does not.",
        f"```python\n{test_code(source, test)}\n```",
        "It ends with\n\n```\n" + "\n".join(error) + "\n```",
    ]
    if others:
        parts.append(_others(name, others))
    parts.append("Please find the cause in the source and fix it. All other behaviour must stay as it is.")
    return "\n\n".join(parts) + "\n"


def error_lines(output: str) -> list[str]:
    """Return the exception that pytest printed, without the frames it came through."""
    lines = [line[1:].strip("\n") for line in output.splitlines() if re.match(r"E(\s|$)", line)]
    cut = [textwrap.shorten(line, _MAX_LINE, placeholder=" …") if len(line) > _MAX_LINE else line for line in lines]
    return textwrap.dedent("\n".join(cut)).splitlines()[:_MAX_ERROR_LINES]


def test_code(source: str, test: str) -> str:
    """Return the code of a test function, dedented, without its class; a note when there is none to show."""
    name = test.split("::")[-1].split("[")[0]
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


def _headline(name: str) -> str:
    base, _, case = name.partition("[")
    words = " ".join(base.removeprefix("test_").replace("_", " ").split()) or base
    return f"{words} ({case.rstrip(']')})" if case else words


def _others(name: str, others: Sequence[str]) -> str:
    base = name.split("[")[0]
    names = list(dict.fromkeys(test.split("::")[-1].split("[")[0] for test in others))
    names = [n for n in names if n != base]
    if not names:
        return f"The same check fails for {len(others)} more inputs."
    shown = ", ".join(f"`{n}`" for n in names[:6])
    return f"Probably the same cause: {shown}" + (f" and {len(names) - 6} more checks." if len(names) > 6 else ".")
