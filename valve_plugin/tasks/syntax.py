"""Python source and patches of it: which lines change, and in which function they are."""

from __future__ import annotations

import ast
import codecs
import re
import threading
import tokenize
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_ONE_AT_A_TIME = threading.Lock()
_ENCODINGS = re.compile(r"utf-8|utf-8-sig|ascii|(?:iso8859|koi8|cp125|mac)\S*|euc_\w+|gb\w+|big5|shift_jis|cp9\d+")
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def parse(source: str | bytes) -> ast.Module | None:
    """Return the syntax tree of a file, or None if it is not Python or is nested too deeply.

    Nor is it read in an encoding in which other bytes than those of ASCII may end a line.

    The lock is needed because CPython counts the nesting depth per interpreter, not per thread: two threads that parse
    at the same time sometimes fail with `SystemError: AST constructor recursion depth mismatch`.
    """
    with _ONE_AT_A_TIME:
        try:
            if isinstance(source, bytes):
                name = codecs.lookup(tokenize.detect_encoding(iter(source.splitlines(keepends=True)).__next__)[0]).name
                if not _ENCODINGS.fullmatch(name):
                    return None
            return ast.parse(source)
        except (SyntaxError, LookupError, ValueError, RecursionError, MemoryError):
            return None


def imported(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names that an import gives, with what they stand for. Pure."""
    if isinstance(node, ast.Import):
        yield from ((one.asname, one.name) if one.asname else (one.name.split(".")[0],) * 2 for one in node.names)
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield from ((one.asname or one.name, f"{node.module}.{one.name}") for one in node.names)


def full_name(node: ast.AST, bound: Mapping[str, str]) -> str:
    """Return the whole name of something from a module, "" of anything else. Pure.

    Args:
        bound: what each imported name stands for.
    """
    if isinstance(node, ast.Name):
        return bound.get(node.id, "")
    base = full_name(node.value, bound) if isinstance(node, ast.Attribute) else ""
    return f"{base}.{node.attr}" if base and isinstance(node, ast.Attribute) else ""


class Change(NamedTuple):
    """One changed line of a patch."""

    path: str
    line: int
    """Line of the old file that is removed, or after which the new one comes."""
    text: str
    """With its sign, + or -."""


def patch_changes(patch: str) -> Iterator[Change]:
    """Yield the changed lines of a patch, without context and headers. Pure."""
    path, line, old, new = "", 0, 0, 0
    for text in patch.split("\n"):
        sign = text[:1]
        if old > 0 or new > 0:
            if sign != "\\":
                if sign in ("-", "+"):
                    yield Change(path, line - (sign == "+"), text)
                old, new, line = old - (sign != "+"), new - (sign != "-"), line + (sign != "+")
        elif found := _HUNK.match(text):
            line, old, new = int(found[1]), int(found[2] or 1), int(found[3] or 1)
            line += old == 0  # an empty side names the line before
        elif text.startswith(("--- ", "+++ ")) and text[4:].rstrip() != "/dev/null":
            name = text[4:].split("\t")[0].rstrip()
            path = name.partition("/")[2] or name


def outer_statements(source: bytes, lines: set[int]) -> set[int]:
    """Return the first lines of the functions that these lines are in, and of the statements outside of functions."""
    tree = parse(source)
    left: list[ast.AST] = list(tree.body) if tree else []
    found = set[int]()
    while left:
        node = left.pop()
        if not lines.isdisjoint(range(_start(node), (getattr(node, "end_lineno", 0) or 0) + 1)):
            inner = [n for n in ast.iter_child_nodes(node) if isinstance(n, (ast.stmt, ast.excepthandler))]
            inside = {line for n in inner for line in range(_start(n), (getattr(n, "end_lineno", 0) or 0) + 1)}
            whole = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or lines.isdisjoint(inside)
            found |= {_start(node)} if whole else set()
            left += [] if whole else inner
    return found


def _start(node: ast.AST) -> int:
    line: int = getattr(node, "lineno", 0)
    first: int = min([line, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
    return first
