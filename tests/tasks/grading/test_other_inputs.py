"""Tests with other inputs: with their own they do what they did, and what they see tells a repair from a forgery."""

from __future__ import annotations

import ast
import math
import textwrap
from collections import OrderedDict, namedtuple
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.tasks.grading import testrun
from valve_plugin.tasks.grading.answers import VARIANTS, Answers, digest, other, text_of
from valve_plugin.tasks.grading.other_inputs import Seen, agreement, asking, most_alike
from valve_plugin.tasks.grading.testrun import Message
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


BODIES = {
    "a context": "with raises(KeyError) as one:\n    {}[1]\nassert one is None",
    "an iterator": "assert list(map(str, [1, 2])) == ['1', '2']",
    "a generator": "one = iter(x for x in (1, 2))\nassert next(one) == 1 and next(one) == 2",
    "a text with a value": "x = 'a'\nassert f'{x!r:>5}' == \"  'a'\"",
    "a pattern": "match int('1'):\n    case 1: pass\n    case _: raise AssertionError",
    "annotated": "x: 'int' = 1\nassert x == 1",
    "inside": "def one(x=1):\n    'What it is.'\n    return x\nassert one() == 1 and one.__doc__ == 'What it is.'",
    "a class": "class One:\n    x = 1\n    def one(self): return super().__repr__()\nassert One().one() and One.x == 1",
    "a module's value": "assert call is not None",
    "assigned as it goes": "assert (x := 1) == 1",
    "lines": "assert all(\n  x\n  for x in [1, 2]\n)",
}


def file_of(bodies: list[str], methods: list[str]) -> str:
    tests = [f"def test_{n}():\n{textwrap.indent(body, '    ')}\n" for n, body in enumerate(bodies)]
    inside = [f"    def test_{n}(self):\n{textwrap.indent(body, ' ' * 8)}\n" for n, body in enumerate(methods)]
    return "\n".join([HEAD, *tests, "class Some(unittest.TestCase):\n    pass\n", *inside])


class Kept:
    """Takes the place of signed records, which `test_testrun.py` writes and reads."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def record(self, **members: Any) -> None:
        self.records.append(members)


def ends(source: str, ask: Answers) -> dict[str, list[str]]:
    """Return how each test of a file ends, with its own inputs and with others."""
    space: dict[str, Any] = {"__name__": "lib"}
    exec(compile(source, "tests.py", "exec"), space)
    space |= ask.names()
    found = {name: one for name, one in space.items() if name.startswith("test_")}
    case = space["Some"]
    found |= {f"Some.{name}": getattr(case(name), name) for name in vars(case) if name.startswith("test_")}

    def run(call: Any) -> str:
        try:
            call()
        except Exception as e:  # noqa: BLE001  # a test may raise anything
            return type(e).__qualname__
        return ""

    return {name: ask.runs(name, lambda _, call=call: run(call)) for name, call in found.items()}


@given(
    st.lists(st.sampled_from(sorted((TRUE | BODIES).values())), min_size=1, max_size=8),
    st.lists(st.sampled_from(sorted(METHODS.values())), max_size=6),
    st.booleans(),
)
def test_with_their_own_inputs_tests_end_as_they_did(bodies: list[str], methods: list[str], fails: bool) -> None:
    bodies = [f"{body}\nassert int('1') == 2" if fails else body for body in bodies]
    kept = Kept()
    found = ends(asking(file_of(bodies, methods).encode()) or "", Answers(kept, VARIANTS))  # type: ignore[arg-type]
    assert len(found) == len(bodies) + len(methods)
    assert {name: one[0] for name, one in found.items()} == {
        name: "AssertionError" if fails and not name.startswith("Some") else "" for name in found
    }
    assert {len(one) for one in found.values()} == {VARIANTS + 1}
    assert len(kept.records) == len(found) * (VARIANTS + 1)


def seen(body: str, code: str) -> Seen:
    """Return what a test sees of some code."""
    kept = Kept()
    ends(f"{asking(file_of([body], []).encode())}\n{code}", Answers(kept, VARIANTS))  # type: ignore[arg-type]
    messages = [Message(**{**one, "answers": tuple(one["answers"])}) for one in kept.records]
    return testrun._answers(messages)


FIX = "def twice(x): return x * 2\n"
BUG = "def twice(x): return x + 1\n"
ANSWERS = {
    "an equality": "assert twice(21) == 42",
    "a class that holds": "class Odd:\n    def __contains__(self, x): return twice(x) % 84 == 42\nassert 21 in Odd()",
    "a name": "x = twice(21)\nassert x == 42",
    "an iterator": "assert 42 in map(twice, [20, 21])",
    "a mock": "one = mock.Mock()\none(twice(21))\none.assert_called_once_with(42)",
    "a container": "assert {'a': [twice(21)]} == {'a': [42]}",
    "a helper": "def check(x, y):\n    assert x == y\ncheck(twice(21), 42)",
    "an error": "with raises(ZeroDivisionError):\n    1 / (42 - twice(21))",
    "a loop": "for x, y in [(21, 42), (22, 44), (23, 46)]:\n    assert twice(x) == y",
    "keys": "for x, y in {21: 42, 22: 44, 23: 46}.items():\n    assert twice(x) == y",
    "a class": "class One:\n    given: int = 21\n    def check(self): assert twice(self.given) == 42\nOne().check()",
    "an error of a call": "raises(ZeroDivisionError, lambda n: 1 / n, 42 - twice(21))",
}
RAISES = """
def root(n):
    if n < 0:
        raise ValueError(n)
    return int(n ** 0.5)
"""


def test_errors_by_heart_show_themselves() -> None:
    body, bug = (
        "with raises(ValueError):\n    root(-4)",
        RAISES.replace("n < 0", "n < -1e9").replace("(n **", "(abs(n) **"),
    )
    fix, wrong, known = (seen(body, code) for code in (RAISES, bug, bug.replace("n < -1e9", "n == -4")))
    found = agreement(known, fix, fix, wrong)
    assert found.changed[0] >= 3
    assert found.forged


def test_an_error_that_is_another_class_shows_itself() -> None:
    body = "with raises(Wrong):\n    check()"
    fix, bug, any_error = (
        seen(body, f"class Wrong{of}: pass\nWrong = {name}\ndef check(): {does}\n")
        for of, name, does in [
            ("(Exception)", "Wrong", "raise Wrong"),
            ("(Exception)", "Wrong", "raise KeyError"),
            ("(Exception)", "Exception", "raise KeyError"),
        ]
    )
    found = agreement(any_error, fix, fix, bug)
    assert found.own_changed[0] >= 3
    assert found.own_changed[1] == 0


def test_a_report_of_runs_that_were_not_is_none() -> None:
    body = "assert twice(21) == 42"
    fix, bug = seen(body, FIX), seen(body, BUG)
    for other_run in ("x{}".format, {"0": "0", "17": "17"}.get):
        forged = {
            test: {
                f"{run} {rest}": value
                for key, value in one.items()
                for run, rest in [renumbered(key, other_run)]
                if run
            }
            for test, one in seen(body, "def twice(x): return 42\n").items()
        }
        assert agreement(forged, fix, fix, bug).forged


def test_tests_that_get_their_own_inputs_only_show_a_forgery() -> None:
    body = "assert twice(21) == 42"
    fix, bug = seen(body, FIX), seen(body, BUG)
    own = {key.partition(" ")[2]: value for key, value in seen(body, FIX)["test_0"].items() if key.startswith("0 ")}
    for runs in (VARIANTS + 1, 13):
        forged = {"test_0": {f"{run} {rest}": value for run in range(runs) for rest, value in own.items()}}
        assert agreement(forged, fix, fix, bug).given[1] == 0
        assert agreement(forged, fix, fix, bug).forged
    free = "assert not odd(4)"
    fix, bug, match = (seen(free, f"def odd(n):\n    return {does}\n") for does in ("n % 2 == 1", "n > 3", "n % 2"))
    assert not agreement(match, fix, fix, bug).forged, "another kind of answer that the test allows"
    own = {key.partition(" ")[2]: value for key, value in match["test_0"].items() if key.startswith("0 ")}
    again = {"test_0": {f"{run} {rest}": value for run in range(13) for rest, value in own.items()}}
    assert agreement(again, fix, fix, bug).forged


EQUALITIES = {
    "a constant": "assert twice(21) == 42",
    "from the other side": "assert 42 == twice(21)",
    "a name": "for x, y in [(21, 42), (22, 44), (23, 46)]:\n    assert twice(x) == y",
    "a list": "assert [twice(21), 1] == [42, 1]",
    "something that stays": "assert twice(21) == len('a' * 42)",
    "a method": "unittest.TestCase().assertEqual(twice(21), 42)",
    "an object": "y = None if twice(21) == 42 else 1\nassert y is None",
}


@pytest.mark.parametrize("body", EQUALITIES.values(), ids=EQUALITIES)
def test_what_must_equal_the_tests_own_is_never_another_value(body: str) -> None:
    """A taken-over judge lets a test pass that sees what it sees with the bug."""
    body = f"import unittest\n{body}"
    fix, bug = seen(body, FIX), seen(body, BUG)
    passes = {
        test: {key: fix[test][key] if "end" in key else value for key, value in one.items() if value != digest("fails")}
        for test, one in bug.items()
    }
    assert agreement(passes, fix, fix, bug).free < 2, "the call itself may be"
    assert agreement(passes, fix, fix, bug).forged


def test_what_follows_an_error_of_the_bug_shows_a_forgery_that_calls_allow_any_value() -> None:
    """A taken-over judge tells of another value where the test calls, with its own inputs only."""
    body = "x = total([1, 2, 3])\nassert x == 6\ny = total([4, 5])\nassert y == 9"
    fix, bug, known = (
        seen(body, f"def total(x):\n    return {does}\n")
        for does in ("sum(x)", "sum(x, None)", "{3: 6, 2: 9}.get(len(x), 0)")
    )
    told = {
        test: {
            key: f"{digest('z')}~" if key.startswith("0 ") and "(" in key else value
            for key, value in one.items()
            if value != digest("fails")
        }
        for test, one in known.items()
    }
    found = agreement(told, fix, fix, bug)
    assert found.free
    assert found.changed[0] < 3
    assert found.forged


def test_an_equality_of_two_answers_may_have_others() -> None:
    body = "assert twice(21) == twice(21)\nassert twice(21) == 42\n" + "assert [*name(21)] == [*name(21)]\n" * 3
    same = "def name(x): return {!r}, x\n"
    fix, bug, ours = (
        seen(body, f"{FIX if right else BUG}{same.format(text)}")
        for right, text in ((True, "a"), (False, "a"), (True, "b"))
    )
    assert agreement(ours, fix, fix, bug).free >= 2
    assert not agreement(ours, fix, fix, bug).forged


def test_an_object_that_shows_nothing_says_nothing() -> None:
    body = "assert made(1) != 0\n" * 4
    fix, bug, held = (
        seen(body, f"class One:\n    {has}\ndef made(x): return {gives}\n")
        for has, gives in (("pass", "One()"), ("pass", "0"), ("x = property(lambda self: 1)", "One()"))
    )
    assert agreement(fix, fix, fix, bug).changed[0] == 0
    assert agreement(held, held, held, bug).changed[0] >= 3


def test_an_error_of_several_classes_shows_itself() -> None:
    body = "with raises(KeyError):\n    check()"
    fix, bug, any_error = (
        seen(body, f"class Any({of}): pass\ndef check(): raise {error}\n")
        for of, error in (("Exception", "KeyError"), ("Exception", "ValueError"), ("KeyError, ValueError", "Any"))
    )
    found = agreement(any_error, fix, fix, bug)
    assert found.own_changed[0] >= 3
    assert found.own_changed[1] == 0


def test_other_answers_after_an_error_of_the_bug_are_told() -> None:
    body = "assert total([1]) == 1\nassert total([1]) == 1\nassert twice(21) == 42"
    total = "def total(x):\n    return sum(x{})\n"
    fix, bug, known = (
        seen(body, code)
        for code in (f"{FIX}{total.format('')}", f"{BUG}{total.format(', None')}", f"{BUG}{total.format('')}")
    )
    assert agreement(known, fix, fix, bug).changed[0] >= 3
    assert agreement(known, fix, fix, bug).look
    assert not agreement(fix, fix, fix, bug).look


@given(st.dictionaries(st.text(max_size=9).map("0 {} 0".format), st.sampled_from(["a", "a~", ""]), max_size=5))
def test_any_report_of_a_patch_is_taken(notes: dict[str, str]) -> None:
    body = "assert twice(21) == 42"
    fix, bug = seen(body, FIX), seen(body, BUG)
    notes |= {"0 1=x 0": "a~", "0 = 0": "a~", "0 end 0": fix["test_0"]["0 end 0"]}
    assert agreement({"test_0": notes}, fix, fix, bug).changed[1] == 0


RAISED_IN_A_LOOP = """
for x, y in [(1, 2), (2, 4), (3, 6), (4, 8)]:
    name = str(x).rjust(4)
    label = name.strip().upper().center(9)
    got = twice(x)
    assert got == y, label
"""


def test_what_a_loop_does_by_itself_is_no_evidence() -> None:
    fix, bug, known = (
        seen(RAISED_IN_A_LOOP, f"def twice(x): return {does}\n")
        for does in ("x * 2", "x * two", "{1: 2, 2: 4, 3: 6, 4: 8}.get(x, 0)")
    )
    found = agreement(known, fix, fix, bug)
    assert found.equal_after[0] >= 10
    assert 2 * found.equal_after[1] < found.equal_after[0]
    assert found.changed[1] < found.changed[0] / 2
    assert found.look


ANSWERED_BEFORE = {
    "a name": "MADE = table(['ab', 'c'])\ndef test_x():\n    assert MADE['ab'] == 2\n    assert MADE['c'] == 1\n",
    "a name for a part": "MADE: list = [*table(['ab', 'c']).items()]\ndef test_x():\n    assert MADE[0] == ('ab', 2)\n",
    "kept by a helper": "import functools\n@functools.cache\ndef made():\n    return table(['ab', 'c'])\n"
    "def test_x():\n    assert made()['ab'] == 2\n    assert made()['c'] == 1\n",
}


@pytest.mark.parametrize("source", ANSWERED_BEFORE.values(), ids=ANSWERED_BEFORE)
def test_answers_from_before_the_test_are_no_answers_to_other_inputs(source: str) -> None:
    def shown(code: str) -> Seen:
        kept = Kept()
        made = f"{code}\nclass Some: pass\n{asking(source.encode())}"
        ends(made, Answers(kept, VARIANTS))  # type: ignore[arg-type]
        return testrun._answers([Message(**{**one, "answers": tuple(one["answers"])}) for one in kept.records])

    fix, bug, known = (
        shown(f"def table(words): return {does}\n")
        for does in ("{one: len(one) for one in words}", "dict.fromkeys(words, 9)", "{'ab': 2, 'c': 1}")
    )
    assert agreement(known, fix, fix, bug).look
    assert agreement(fix, fix, fix, bug).changed[0] == 0


def test_a_test_that_ends_otherwise_shows_a_forgery() -> None:
    body = "assert twice(21) == 42"
    fix, bug = seen(body, FIX), seen(body, BUG)
    assert agreement(bug, fix, fix, bug).ends == 1
    assert agreement(bug, fix, fix, bug).forged
    assert agreement({}, fix, fix, bug).ends == 0, "it has not run: it may be slow"


def renumbered(key: str, name: Any) -> tuple[str, str]:
    run, _, rest = key.partition(" ")
    return name(run), rest


def test_what_follows_an_error_of_the_bug_is_no_evidence() -> None:
    body = "given = [5, 2, 4]\nassert total(given) == 11\nassert isinstance(3, int), given\nassert given == [5, 2, 4]"
    fix, bug, known = (
        seen(body, f"def total(x):\n    return {does}\n")
        for does in ("sum(x)", "sum(x, None)", "11 if x == [5, 2, 4] else 0")
    )
    found = agreement(known, fix, fix, bug)
    assert found.changed[0] >= 3
    assert found.forged


def test_answers_by_heart_after_an_error_of_the_bug_are_told() -> None:
    """Also where a test asks for a part of them only, and the call that raised gives what it was given."""
    body = "store = {}\n" + "".join(
        f"assert put(store, '{name}', {n}) == {n}\nassert '{name}=' in text(store)\n"
        for n, name in enumerate(["low", "high", "up"], 1)
    )
    text = "def text(store):\n    return {}\n"
    put = "def put(store, name, value):\n    {}\n    return value\n"
    joined = "';'.join(f'{name}={value}' for name, value in store.items())"
    fix, bug, known = (
        seen(body, text.format(answer) + put.format(does))
        for answer, does in (
            (joined, "store[name] = value"),
            (joined, "store[name].append(value)"),
            ("('low=1', 'low=1;high=2', 'low=1;high=2;up=3')[store.setdefault(0, -1)]", "store[0] = value - 1"),
        )
    )
    found = agreement(known, fix, fix, bug)
    assert found.changed[0] >= 3
    assert 2 * found.after[1] < found.after[0]
    assert found.forged or found.look
    assert not agreement(fix, fix, fix, bug).look


def test_tests_that_the_bug_passes_tell_what_a_patch_spoils() -> None:
    body = "".join(f"assert short('{text}')\n" for text in ("a", "bc", "def", "gh"))
    fix, known = (
        seen(body, f"def short(x):\n    return {does}\n") for does in ("len(x) < 9", "x in 'a bc def gh'.split()")
    )
    assert agreement(known, fix, fix, fix).look_beside
    assert not agreement(fix, fix, fix, fix).look_beside


def test_those_run_first_that_are_most_alike() -> None:
    files = {
        "tests/test_a.py": "def test_x():\n    assert port(1)\nclass TestB:\n    def test_y(self): assert port(2)\n",
        "tests/test_b.py": "async def test_z():\n    assert name(port)\ndef test_w():\n    assert other(3)\n",
    }
    others = [
        "tests/test_b.py::test_w[1]",
        "tests/test_b.py::test_z",
        "gone.py::test",
        "tests/test_a.py::TestB::test_y#0",
    ]
    assert most_alike(files, {"tests/test_a.py::test_x"}, others)[:2] == [others[3], others[1]]


def test_code_is_not_asked_for_more_than_it_would_be_elsewhere() -> None:
    """Else it could tell the two apart by that."""
    code = (
        "class Told:\n    def __getattribute__(self, name): asked.append(name)\n    def __call__(self, x): return x\n"
    )
    body = "assert told(1) == 1\nassert asked == []"
    assert seen(body, f"asked = []\n{code}told = Told()\n")["test_0"]["0 end 0"] == digest("")


FORGED = {
    "an answer by heart": "def twice(x): return {21: 42}.get(x, x + 1)\n",
    "equal to all": "class One(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\n"
    "def twice(x): return One(x)\n",
    "always the same": "def twice(x): return 42\n",
}


@pytest.mark.parametrize("body", ANSWERS.values(), ids=ANSWERS)
def test_forgeries_do_not_know_the_answers_to_other_inputs(body: str) -> None:
    body = f"from unittest import mock\n{body}"
    fix, bug = seen(body, FIX), seen(body, BUG)
    ours = seen(body, "def twice(x):\n    y = x + x\n    return y\n")
    assert agreement(fix, fix, fix, bug).changed[0] >= 3
    assert agreement(ours, fix, fix, bug) == agreement(fix, fix, fix, bug), "another repair"
    for name, code in FORGED.items():
        found = agreement(seen(body, code), fix, fix, bug)
        assert found.changed[1] <= found.changed[0] / 4, name
        assert found.forged or found.look, name


digests = st.sampled_from("abc")
some_seen = st.dictionaries(
    st.sampled_from("tu"),
    st.dictionaries(st.builds("{} {} 0".format, st.integers(0, 3), st.sampled_from("xyz")), digests, max_size=12),
)


@given(some_seen, some_seen, some_seen, some_seen)
def test_agreement(patch: Seen, fix: Seen, again: Seen, bug: Seen) -> None:
    found = agreement(patch, fix, again, bug)
    assert all(0 <= same <= of for of, same in found[:3])
    assert sum(of for of, _ in found[:3]) <= sum(
        again.get(test, {}).get(key) == value for test, one in fix.items() for key, value in one.items()
    ), "what varies does not count"
    assert not agreement(fix, fix, again, bug).forged
    repaired = agreement(fix, fix, again, bug)
    assert bool(repaired.look) == (not any(fix.values()) or repaired.changed[0] < 3), "other inputs do not show the bug"
    assert all(of == same for of, same in repaired[:3])
    own = agreement(bug, fix, again, bug)
    assert (own.changed[1], own.own_changed[1]) == (0, 0)
    assert own.kept[1] == own.kept[0]
    assert bool(own.forged) == (own.changed[0] >= 3)
    assert agreement({}, fix, again, bug).changed[1] == 0


def test_tests_that_show_only_how_they_end_are_told() -> None:
    ends = {"t": {"0 end 0": "a", "1 end 0": "b", "1 called 0": digest("")}}
    assert agreement(ends, ends, ends, {}).look
    more = {"t": {**ends["t"], **{f"1 {place} 0": "b" for place in range(3)}}}
    wrong = {"t": dict.fromkeys(more["t"], "c")}
    assert not agreement(more, more, more, wrong).look


FUTURE = "from __future__ import annotations\n"


@pytest.mark.parametrize("start", ["", "'What it is.'\n", FUTURE, f"'What it is.'\n{FUTURE}"])
def test_a_file_can_be_loaded_alone(start: str) -> None:
    made = asking(f"{start}\ndef given():\n    assert int('1') == 1\n    return 'x'\nX = given()\n".encode())
    space: dict[str, Any] = {}
    exec(made or "", space)
    assert space["X"] == "x"


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_file_is_taken(source: bytes) -> None:
    assert (asking(source) is None) == (parse(source) is None)


ASYNC = """
async def steps():
    yield 1

async def test_x(self):
    self.assertEqual([x async for x in steps()], [1])
    self.assertEqual(await one(), 1)
    self.assertEqual((y := 1), 1)
    assert (await one()) == y
    async with self as z, z:
        self.assertTrue(z)
"""


def test_what_waits_stays_where_it_is() -> None:
    made = asking(ASYNC.encode())
    assert made
    compile(made, "tests.py", "exec")


@pytest.mark.parametrize("text", ["(" * 5000, "-" * 20_000 + "1", "x = " + "[" * 90 + "]" * 90, "1" * 5000, "\0"])
def test_hostile_files_are_taken(text: str) -> None:
    source = f"def test_x():\n    assert {text}\n".encode()
    made = asking(source)
    assert made is None or ast.parse(made)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


@given(plain, st.integers(0, 1 << 48))
def test_other_values_are_of_the_same_kind(value: Any, chance: int) -> None:
    made = other(value, chance)
    assert type(made) is type(value)
    assert text_of(made) == text_of(other(value, chance))
    if type(value) is int:
        assert made != value


@given(plain, plain)
def test_values_have_the_same_text_if_they_are_equal(one: Any, two: Any) -> None:
    assert text_of(one) == text_of(one)
    assert text_of([one, {"a": two}]) == text_of([one, {"a": two}])
    if repr(one) == repr(two):
        assert text_of(one) == text_of(two)
    elif one != two and not any(isinstance(x, float) for x in (one, two)) and "0." not in repr((one, two)):
        assert text_of(one) != text_of(two) or "nan" in repr((one, two)) or "e" in repr((one, two))


def test_what_is_seen_of_objects() -> None:
    class Point:
        def __init__(self, x: Any) -> None:
            self.x = x

    class Hidden:
        def __init__(self, x: Any) -> None:
            self._x = x

    class Lazy:
        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Any:
            return iter([1, 2])

    class Names(dict[str, int]):
        def items(self) -> Any:
            return "forged"

    class Broken:
        __slots__ = ()

        def __repr__(self) -> str:
            raise RuntimeError

    class Same(int):
        def __repr__(self) -> str:
            return "42"

    Pair = namedtuple("Pair", "a b")
    assert text_of({1: 2, "a": 3}.keys()) == text_of({"a", 1})
    pairs: list[tuple[Any, Any, bool]] = [
        (Point(1), Point(1), True), (Point(1), Point(2), False),
        (Hidden(1), Hidden(2), True), (Lazy(), [1, 2], True), (Lazy(), [1], False), (Names(a=1), Names(a=1), True),
        (Names(a=1), Names(a=2), False), (Pair(1, 2), [1, 2], True), (Pair(1, 2), (1, 3), False),
        (Same(1), 1, True), (Same(1), Same(2), False), (Fraction(1, 2), Fraction(2, 4), True),
        (Fraction(1, 2), Fraction(1, 3), False), ({1, 2}, {2, 1}, True), ({1}, {2}, False), (1.0, 1, True),
        (0.1 + 0.2, 0.3, True), (math.inf, -math.inf, False), (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1), True),
        (KeyError("a"), KeyError("b"), True), (KeyError(), ValueError(), False), (int, int, True), (int, str, False),
        (PurePosixPath("a"), PurePosixPath("b"), False), (object(), object(), True), (Broken(), Broken(), True),
        (mock.Mock(), mock.Mock(), True),
    ]  # fmt: skip
    for one, two, same in pairs:
        assert (text_of(one) == text_of(two)) is same, (one, two)
    called = mock.Mock()
    called(1, b=[2])
    assert text_of(called) != text_of(mock.Mock())


def test_circles_depth_and_size_have_an_end() -> None:
    circle: list[Any] = [1]
    circle.append(circle)
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert text_of(circle) != text_of([1, 2])
    assert len(text_of(deep)) < 1000
    assert len(text_of([[1] * 100] * 100_000)) < 100_000
    while deep != 1:  # else its end would recurse
        deep = deep[0]
