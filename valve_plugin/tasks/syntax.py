"""Reading Python source as a tree, from any thread."""

from __future__ import annotations

import ast
import threading

_ONE_AT_A_TIME = threading.Lock()


def parsed(source: str | bytes) -> ast.Module | None:
    """Return the syntax tree of a file; None: it is not Python, or too deeply nested to be read.

    CPython counts the nesting of trees it builds per interpreter, not per thread: two threads that parse at the
    same time now and then end in `SystemError: AST constructor recursion depth mismatch`. Hence the lock.
    """
    with _ONE_AT_A_TIME:
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
