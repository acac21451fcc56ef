"""What messages may not hold: a file of the documentation, which who installed valve has not, and words unquoted."""

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
    page = re.compile(r"docs/\w+\.md")
    named = [path for path in ROOT.rglob("*.py") if page.search(path.read_text())]  # maybe in a comment
    assert {path.name: text for path in named for text in texts(path) if page.search(text)} == {}


def test_commands_that_are_printed_are_quoted_in_one_place() -> None:
    """`shlex.quote` leaves control characters and line breaks as they are; what is run and not shown may."""
    of_shlex = re.compile(r"^\s*(import shlex|from shlex)", re.MULTILINE)
    found = {path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.py") if of_shlex.search(path.read_text())}
    runs_or_splits = {
        "agents/codex.py",
        "agents/command.py",
        "cli/doctor.py",
        "lab/simulation/edits.py",
        "lab/simulation/solver.py",
        "live/check.py",
    }
    assert found == {"shell_words.py", *runs_or_splits}
