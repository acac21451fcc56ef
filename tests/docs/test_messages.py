"""Who installed valve has no docs folder, so no message names a file in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import valve_plugin

ROOT = Path(valve_plugin.__file__).parent


def texts(path: Path) -> Iterator[str]:
    """Yield the strings of a module that are not documentation of its code."""
    tree = ast.parse(path.read_text())
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.value


def test_no_message_names_a_file_of_the_documentation() -> None:
    found = {path.name: text for path in ROOT.rglob("*.py") for text in texts(path) if re.search(r"docs/\w+\.md", text)}
    assert found == {}
