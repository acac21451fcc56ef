"""A tiny real repository and one bug in it, tested in an environment made without network."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from tests import images
from tests.lean import lean
from tests.tools import put
from valve_plugin.records import Task
from valve_plugin.tasks.repository import PreparedRepository, prepare
from valve_plugin.tasks.task_set import TaskSet, load

OPS = '''\
"""Arithmetic."""


def add(a, b):
    return a + b


def clamp(x, low, high):
    if x < low:
        return low
    if x > high:
        return high
    return x
'''
BUGGY = OPS.replace("if x > high:\n        return high", "if x > high:\n        return low")
WRONG_FIX = OPS.replace("if x > high:\n        return high", "if x > high:\n        return x")

TEST_OPS = """\
import unittest

import pytest

from calc.ops import add, clamp


@pytest.mark.parametrize("case", ["plain", "with a space", "a::b [c]"])
def test_add(case):
    assert add(1, 2) == 3


class TestClamp:
    def test_low(self):
        assert clamp(-1, 0, 9) == 0

    def test_high(self):
        assert clamp(10, 0, 9) == 9


class OldStyle(unittest.TestCase):
    def test_high(self):
        self.assertEqual(clamp(10, 0, 9), 9)

    @unittest.expectedFailure
    def test_hopeless(self):
        self.assertEqual(add(1, 1), 3)


@pytest.mark.xfail(strict=True)
def test_known_bug():
    assert add(1, 1) == 3


@pytest.mark.skip
def test_skipped():
    pass
"""
TEST_OTHER = """\
from calc.ops import clamp


def test_middle():
    assert clamp(5, 0, 9) == 5


def test_fixture(nine):
    assert clamp(nine, 0, 99) == 9
"""
CONFTEST = "import pytest\n\n\n@pytest.fixture\ndef nine():\n    return 9\n"
FILES = {
    "calc/__init__.py": "",
    "calc/ops.py": OPS,
    "tests/test_ops.py": TEST_OPS,
    "tests/test_other.py": TEST_OTHER,
    "conftest.py": CONFTEST,
    "pytest.ini": "[pytest]\naddopts = -v\n",
    "tests/data/python2.py": "print 'not this Python'\n",
    "README.md": "Calculations.\n",
}
F2P = ("tests/test_ops.py::OldStyle::test_high", "tests/test_ops.py::TestClamp::test_high")
P2P = (
    "tests/test_ops.py::OldStyle::test_hopeless",
    "tests/test_ops.py::TestClamp::test_low",
    "tests/test_ops.py::test_add[a::b [c]]",
    "tests/test_ops.py::test_add[plain]",
    "tests/test_ops.py::test_add[with a space]",
    "tests/test_ops.py::test_known_bug",
    "tests/test_other.py::test_fixture",
    "tests/test_other.py::test_middle",
)


def change(before: str, after: str, path: str = "calc/ops.py") -> str:
    """Return a unified diff."""
    lines = (text.splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(*lines, f"a/{path}", f"b/{path}"))


def row(**changes: object) -> dict[str, object]:
    """Return the row of the bug, as in tasks.jsonl."""
    return {
        "instance_id": "acme__calc.1.func_pm_x__1",
        "repo": "acme/calc",
        "patch": change(OPS, BUGGY),
        "FAIL_TO_PASS": list(F2P),
        "PASS_TO_PASS": list(P2P),
        "problem_statement": "clamp(10, 0, 9) is 0, expected 9",
        **changes,
    }


def write(
    folder: Path,
    rows: list[dict[str, object]] | None = None,
    extra: str = "",
    files: Mapping[str, str] = FILES,
    venv: str = "",
) -> Path:
    """Write source, repository.toml and rows; return the task directory."""
    put(folder / "source", files)
    lines = ['name = "acme/calc"', 'source = "path:source"', f"environment = {json.dumps(venv or str(lean()))}"]
    (folder / "repository.toml").write_text("\n".join([*lines, "cpu_seconds = 20", extra]) + "\n")
    (folder / "tasks.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows or [row()]))
    return folder


def taskset(folder: Path) -> tuple[TaskSet, PreparedRepository, Task]:
    """Write, load and prepare everything; return it with the one task."""
    found = load(write(folder))
    return found, prepare(found.repository), found.tasks[0]


def image(folder: Path) -> str:
    """Make the image that SWE-smith would have for this repository; return its name."""
    built = {"calc.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: calc\nVersion: 1\n", "build/lib/calc/ops.py": OPS}
    branch = [{"calc/ops.py": BUGGY}, {"tests/test_ops.py": None}]
    return images.build(folder, images.IMAGE, {"main": [FILES], str(row()["instance_id"]): branch}, built)


def with_image(made: tuple[PreparedRepository, Task]) -> tuple[PreparedRepository, Task]:
    """Return the task with the name of its image, as SWE-smith's rows have it."""
    return made[0], replace(made[1], image_name=images.IMAGE)
