"""Test files whose tests are made false: they fail where the code is right, and pass only where any code would."""

from __future__ import annotations

import ast
import re
import textwrap
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.tasks.grading.controls import false_data, false_tests
from valve_plugin.tasks.syntax import parse

HEAD = """
import unittest
from contextlib import contextmanager

@contextmanager
def raises(expected_exception):
    try:
        yield
    except expected_exception:
        return
    raise AssertionError("nothing was raised")

def approx(wanted, abs):
    class Near:
        def __eq__(self, other): return wanted - abs < other < wanted + abs
    return Near()

class Call:
    def assert_called_with(self, *given):
        assert given == (1, 'a')

call = Call()
"""
TRUE = {
    "an equality": "assert 1 + 1 == 2",
    "a text": "assert 'a'.upper() == 'A'",
    "a name": "x = 'a'\nassert 'A'.lower() == x",
    "a name for a number": "x = [2]\nassert 1 + 1 == x[0]",
    "a name for more": "x = (1, 2)\nassert x == tuple([1, 2])",
    "in a name": "x = (1, 2)\nassert int('1') in x",
    "two in one": "x = 1\nassert x == 1 and x + 1 == 2",
    "a nested value": "assert dict(a=[1, (2.5, None)]) == {'a': [1, (2.5, None)]}",
    "the left side": "assert b'x' == bytes([120])",
    "None": "assert dict().get(1) is None",
    "over lines": "assert sum([\n    1, 2,\n]) == (\n    3\n)",
    "with a message": "assert len('ä') == 1, 'why'",
    "something that holds": "assert 'a'.islower()",
    "a comparison": "assert 1 < 2 < 3",
    "what is in it": "assert 1 in [1, 2]",
    "an empty text": "assert ''.strip() == ''",
    "an error by a keyword": "with raises(expected_exception=KeyError):\n    {}[1]",
    "an error": "with raises(ZeroDivisionError if False else KeyError):\n    {}[1]",
    "a mock": "call.assert_called_with(1, 'a')",
    "no assertion": "int('1')",
    "a number that is near": "assert 0.1 + 0.2 == approx(0.3, abs=1e-3)",
    "a loop": "for one in (1, 2):\n    assert one - one == 0",
    "two": "x = 1\nassert x == 1\nassert x\n",
}
METHODS = {
    "assertEqual": "self.assertEqual(1 + 1, 2)",
    "assertEqual of names": "x = 1\nself.assertEqual(x, x)",
    "assertNotEqual": "self.assertNotEqual(1 + 1, 3)",
    "assertNotAlmostEqual": "self.assertNotAlmostEqual(1.0, 2.0)",
    "assertTrue": "self.assertTrue([1])",
    "assertIsNone": "self.assertIsNone(None)",
    "assertRaises": "with self.assertRaises(KeyError):\n    {}[1]",
    "assertRaises of a call": "self.assertRaises(ValueError, int, 'x')",
    "assertListEqual": "self.assertListEqual([1], [1])",
    "assertAlmostEqual": "self.assertAlmostEqual(1.0, 1.0)",
}


def file_of(bodies: list[str], methods: list[str]) -> str:
    tests = [f"def test_{n}():\n{textwrap.indent(body, '    ')}\n" for n, body in enumerate(bodies)]
    inside = [f"    def test_{n}(self):\n{textwrap.indent(body, ' ' * 8)}\n" for n, body in enumerate(methods)]
    return "\n".join([HEAD, *tests, "class Some(unittest.TestCase):\n    pass\n", *inside])


def outcomes(source: str) -> dict[str, bool]:
    space: dict[str, Any] = {}
    exec(compile(source, "tests.py", "exec"), space)
    found = {name: one for name, one in space.items() if name.startswith("test_")}
    case = space["Some"]
    found |= {f"Some.{name}": getattr(case(name), name) for name in vars(case) if name.startswith("test_")}
    passed = {}
    for name, call in found.items():
        try:
            call()
            passed[name] = True
        except Exception:  # noqa: BLE001  # a test may raise anything
            passed[name] = False
    return passed


@given(
    st.lists(st.sampled_from(sorted(TRUE.values())), min_size=1, max_size=8),
    st.lists(st.sampled_from(sorted(METHODS.values())), max_size=6),
)
def test_all_tests_fail_where_they_are_made_false(bodies: list[str], methods: list[str]) -> None:
    source = file_of(bodies, methods)
    assert set(outcomes(source).values()) == {True}
    assert set(outcomes(false_tests(source.encode()).decode()).values()) == {False}


@pytest.mark.parametrize("body", [*TRUE.values(), "return int('1')"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_only_the_test_changes(body: str, end: str) -> None:
    lines = f"# ä\nX = 1\ndef test_x():  # why\n{textwrap.indent(body, '    ')}\n\ndef helper(): return 1\n"
    source = lines.replace("\n", end)
    changed = false_tests(source.encode()).decode()
    assert (changed == source) is body.startswith("return")
    assert changed.startswith(f"# ä{end}X = 1{end}def test_x():  # why{end}")
    assert changed.endswith(f"{end}{end}def helper(): return 1{end}")
    assert parse(changed) is not None


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_file_is_taken(source: bytes) -> None:
    assert (parse(source) is None) <= (false_tests(source) == source)


@pytest.mark.parametrize("start", ["# coding: latin-1\n", "#!/bin/python\n# -*- coding: cp1252 -*-\n"])
def test_a_file_in_another_encoding_is_left_as_it_is(start: str) -> None:
    source = f"{start}def test_x():\n    assert 'ä' == 'ä'\n".encode()
    assert false_tests(source) == source


@given(st.permutations(sorted(TRUE.values())), st.integers(0, len(TRUE) - 1))
def test_what_fails_with_the_bug_is_what_changes(bodies: list[str], which: int) -> None:
    if bodies[which] == TRUE["no assertion"]:
        return
    body = textwrap.indent("\n".join(bodies), "    ")
    source = f"{HEAD}def test_x():\n{body}\n"
    line = source[: source.index(textwrap.indent(bodies[which], "    "))].count("\n") + 1
    lines = frozenset(range(line, line + bodies[which].rstrip().count("\n") + 1))
    pairs = zip(source.split("\n"), false_tests(source.encode(), lines).decode().split("\n"), strict=True)
    assert {n for n, (old, new) in enumerate(pairs, 1) if old != new} <= lines


def test_what_the_code_is_given_stays() -> None:
    """An honest repair may do otherwise there than the fix."""
    source = "def test_x():\n    assert clamp(10, 0, high=9) == 9\n    self.check(5)\n    assert twice('a', [1])\n"
    given = [ast.unparse(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    changed = false_tests(source.encode()).decode()
    assert changed != source
    assert [ast.unparse(node) for node in ast.walk(ast.parse(changed)) if isinstance(node, ast.Call)] == given


@given(st.binary(max_size=100))
def test_data_changes_in_one_place(source: bytes) -> None:
    changed = false_data(source)
    assert len(changed) == len(source)
    assert sum(a != b for a, b in zip(changed, source, strict=True)) == bool(re.search(rb"[A-Za-z0-9]", source))
