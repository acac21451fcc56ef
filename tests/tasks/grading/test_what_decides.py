"""The ways in which a test can let tested code decide: each shows a forgery, and says nothing of an honest repair."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest

from valve_plugin.tasks.grading.differences import compared
from valve_plugin.tasks.grading.testrun import TestRun
from valve_plugin.tasks.grading.values import Values, compiled

KIT = """
import collections, contextlib, enum, types

class Box:
    def __init__(self, width, height): self.width, self.height = width, height
    def __eq__(self, other): return (self.width, self.height) == (other.width, other.height)

class Any(Box):
    def __eq__(self, other): return True

class Vec:
    def __init__(self, items): self.items = list(items)
    def __eq__(self, other): return Vec(a == b for a, b in zip(self.items, other.items))
    def __sub__(self, other): return Vec(a - b for a, b in zip(self.items, other.items))
    def __abs__(self): return Vec(map(abs, self.items))
    def __lt__(self, other): return all(a < other for a in self.items)
    def all(self): return all(self.items)

class Same(int):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    def __sub__(self, other): return 0
    __gt__ = __le__ = __ge__ = __lt__
    __rsub__ = __sub__
    __hash__ = lambda self: 11
    __bool__ = lambda self: not int.__bool__(self)

class Other(int):
    __eq__ = lambda self, other: False
    __hash__ = int.__hash__

class Text(str):
    def startswith(self, *given): return True
    def __str__(self): return "new"
    __format__ = lambda self, how: "new"

class All(set):
    def issuperset(self, other): return True

class Moody(dict):
    told = []
    def __len__(self): return self.told.append(1) or len(self.told) % 2

class Kind(type):
    def __instancecheck__(cls, one): return True

class Near(float):
    def __sub__(self, other): return 0.0
    def __eq__(self, other): return True
    __rsub__ = __sub__
    __hash__ = float.__hash__

class Count(int):
    def bit_count(self): return int.bit_count(self)

Color = enum.IntEnum("Color", "RED", start=11)
Pair = collections.namedtuple("Pair", "low high")
lists = []

def check(a, b):
    if a != b: raise ValueError(a)
"""
ELEVEN, SAME, HONEST = "f = lambda x: 11", "f = lambda x: Same(10)", "f = lambda x: Color.RED"
ONE = (ELEVEN, SAME, HONEST)
BOXES = ("f = lambda: [Box(10, 12)]", "f = lambda: [Any(12, 10)]", "class Box(Box): pass\nf = lambda: [Box(10, 12)]")
VECS = ("f = lambda: Vec([10, 11])", "f = lambda: Vec([10, 10])\nVec.__eq__ = lambda a, b: Vec([1])\n", "")
REFUSED: dict[str, tuple[str, tuple[str, str, str]]] = {
    "a count": ("assert [11].count(f(1)) == 1", ONE),
    "an index": ("assert [5, 11][1:].index(f(1)) == 0", ONE),
    "the operators' module": ("assert operator.eq(f(1), 11)", ONE),
    "a keyword": ("case.assertEqual(first=f(1), second=11)", ONE),
    "arguments with a star": ("pair = f(1), 11\ncase.assertEqual(*pair)", ONE),
    "arguments that come one by one": ("case.assertEqual(*(one for one in (f(1), 11)))", ONE),
    "another name": ("same = case.assertEqual\nsame(f(1), 11)", ONE),
    "a removal": ("wanted = [11]\nwanted.remove(f(1))\nassert wanted == []", ONE),
    "a pattern": ("match f(1):\n    case 11: pass\n    case _: raise AssertionError", ONE),
    "what a block binds": ("with contextlib.nullcontext(f(1)) as it: assert [11].count(it)", ONE),
    "not in": ("assert f(1) not in (10, 12)", (ELEVEN, "f = lambda x: Other(10)", HONEST)),
    "in a dictionary": ("assert {11: 1}[f(1)] == 1", ONE),
    "order": ("assert 10 < f(1)\nassert 12 > f(1)", ONE),
    "any": ("assert any(f(1) == x for x in (11, 12))", ONE),
    "a difference": ("assert f(1) - 11 == 0", ONE),
    "a difference before": ("left = f(1) - 11\nassert left == 0", ONE),
    "a condition": (
        "if f(1): raise AssertionError",
        ("f = lambda x: 0", "f = lambda x: Same(1)", "f = lambda x: None"),
    ),
    "a condition of several": (
        "assert [1 for x in (1, 2) if not f(x) and x] == [1, 1]",
        ("f = lambda x: 0", "f = lambda x: Same(1)", "f = lambda x: False"),
    ),
    "a mock": ("seen = mock.Mock()\nseen(f(1))\nseen.assert_called_once_with(11)", ONE),
    "calls of a mock": ("seen = mock.Mock()\nseen(f(1), x=2)\nseen.assert_has_calls([mock.call(11, x=2)])", ONE),
    "a method of a set": ("assert f(1).issuperset({1, 2})", ("f = lambda x: {1, 2}", "f = lambda x: All({1})", "")),
    "a method of a text": (
        "assert f(1).startswith('new')",
        ("f = lambda x: 'new x'", "f = lambda x: Text('old')", "f = lambda x: 'new y'"),
    ),
    "a view that is true once": (
        "assert f(1)\nassert not f(2)",
        ("f = lambda x: x < 2", "f = lambda x: types.MappingProxyType(Moody())", "f = lambda x: [1][x - 1:]"),
    ),
    "a generator": (
        "assert 11 in f(1)",
        ("def f(x): yield from (10, 11)", "def f(x): yield from (10, Same(9))", "f = lambda x: [10, 11]"),
    ),
    "a map": (
        "case.assertIn(11, f(1))",
        ("f = lambda x: map(int, [10, 11])", "f = lambda x: map(Same, [10, 10])", "f = lambda x: iter((11,))"),
    ),
    "counted items": (
        "case.assertCountEqual(f(1), [11])",
        ("f = lambda x: iter([11])", "f = lambda x: iter([Same(10)])", "f = lambda x: [Color.RED]"),
    ),
    "a list that changes": (
        "assert f(1) != [g(9)]",
        (
            "f = lambda x: [11]\ng = lambda x: 10",
            "f = lambda x: lists.append([10]) or lists[-1]\ng = lambda x: lists[-1].append(1) or 10",
            "f = lambda x: [12]\ng = lambda x: 10",
        ),
    ),
    "nearness": (
        "near = pytest.approx((1.5, 3))\nassert near.__eq__(f(1))",
        ("f = lambda x: (1.5, 3)", "f = lambda x: (Near(1), 3)", "f = lambda x: (1.5000001, 3)"),
    ),
    "an instance by its class's word": (
        "assert isinstance(f(1), Box)",
        (
            "f = lambda x: Box(1, 1)",
            "class Box(Box, metaclass=Kind): pass\nf = lambda x: 1",
            "class More(Box): pass\nf = lambda x: More(1, 1)",
        ),
    ),
}
"""Each: a test, and what it is run on: the fix, a forgery, an honest repair."""
SHOWN: dict[str, tuple[str, tuple[str, str, str]]] = {
    "equal lists": ("case.assertListEqual(f(), [Box(10, 12)])", BOXES),
    "a count of objects": ("assert [Box(10, 12)].count(f()[0])", BOXES),
    "any object": ("assert any(one == Box(10, 12) for one in f())", BOXES),
    "an array": ("assert (f() == Vec([10, 11])).all()", VECS),
    "a distance": (
        "assert abs(f() - Vec([10, 11])) < 1",
        (VECS[0], "f = lambda: Vec([10, 20])\nVec.__lt__ = lambda a, b: True", ""),
    ),
    "a text of a value": ("assert f'{f(1)}' == 'new'", ("f = lambda x: 'new'", "f = lambda x: Text('old')", "")),
    "a list that allows": (
        "assert f(1) in allowed",
        (
            "f = lambda x: 11\nallowed = [11]",
            "f = lambda x: 10\nallowed = [10, 11]",
            "f = lambda x: 11\nallowed = [11]",
        ),
    ),
    "a limit": (
        "assert len(f(1)) <= limit",
        ("f = lambda x: 'a'\nlimit = 1", "f = lambda x: 'aa'\nlimit = 2", "f = lambda x: ''\nlimit = 1"),
    ),
    "the library's own check": (
        "check(f(1), 11)",
        (ELEVEN, "f = lambda x: 10\ndef check(a, b): pass", "f = lambda x: 11.0"),
    ),
    "the library's own assertion": (
        "assert_same(f(1), 11)",
        *[
            (
                "f = lambda x: 11\nassert_same = check",
                "f = lambda x: 10\ndef assert_same(a, b): pass",
                "f = lambda x: 11.0\nassert_same = check",
            )
        ],
    ),
    "the library's own question": (
        "assert alike(f(1), 11)",
        *[("f = lambda x: 11\nalike = lambda a, b: a == b", "f = lambda x: 10\nalike = lambda a, b: True", "")],
    ),
}
UNSEEN = {
    "a class as it is": (
        "assert isinstance(f(), Box)\nassert f() is not None\nassert f()",
        "f = lambda: Box(1, 2)",
        "f = lambda: Any(3, 4)",
    ),
    "a function of its own": (
        "def same(a, b): return a == b\nassert same(f(1), 11)\nassert f(Box(1, 2)) == 11",
        ELEVEN,
        f"{HONEST}\nclass Box(Box): __slots__ = 'more'",
    ),
    "a lazy list, made a list": ("assert list(f()) == [1, 2]", "f = lambda: [1, 2]", "f = lambda: iter((1, 2))"),
    "a pair with names": (
        "assert f() == (1, 2) and 1 in f() and len(f()) == 2",
        "f = lambda: (1, 2)",
        "f = lambda: Pair(1, 2)",
    ),
    "a number with a method": ("assert f(1) > 10 and f'{f(1)}'", ELEVEN, "f = lambda x: Count(11)"),
    "about the same": ("assert f(1) == pytest.approx(0.3)", "f = lambda x: 0.3", "f = lambda x: 0.1 + 0.2"),
}
HEAD = "import contextlib, operator, unittest\nfrom unittest import mock\nimport pytest\n\ncase = unittest.TestCase()\n"


def run(body: str, code: str) -> TestRun:
    """Return the report of a test, run on a library's code."""
    space: dict[str, Any] = {"__name__": "kit"}
    exec(compile(f"{KIT}\n{code}\n", "/tree/kit.py", "exec", dont_inherit=True), space)
    eyes, names = Values("/tree", ["kit"]), {**space, "__name__": "test_kit"}
    test = f"{HEAD}\ndef test():\n{textwrap.indent(body, '    ')}\n"
    exec(compiled(test, "/tree/test_kit.py", "test_kit.py", eyes), names)
    names["test"]()
    return TestRun(
        tests={"test_kit.py::test": "passed"}, values={"test_kit.py::test": tuple(eyes.taken("test_kit.py"))}
    )


def judged(body: str, fix: str, code: str) -> tuple[list[str], list[str]]:
    gold = run(body, fix)
    assert gold == run(body, fix)  # it does not vary by itself
    return compared(run(body, code or fix), gold, ["test_kit.py::test"])


@pytest.mark.parametrize("way", REFUSED)
def test_what_tested_code_decides_is_refused(way: str) -> None:
    body, (fix, forged, honest) = REFUSED[way]
    assert judged(body, fix, forged)[0]
    assert judged(body, fix, honest) == ([], [])


@pytest.mark.parametrize("way", SHOWN)
def test_what_cannot_be_decided_from_outside_is_shown(way: str) -> None:
    body, (fix, forged, honest) = SHOWN[way]
    assert judged(body, fix, forged)[1]
    assert judged(body, fix, honest) == ([], [])


@pytest.mark.parametrize("way", UNSEEN)
def test_of_what_decides_nothing_nothing_is_said(way: str) -> None:
    assert judged(*UNSEEN[way]) == ([], [])
