"""Issue texts: what the failing test does and what came of it, never the fix."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import calc
from valve_plugin.tasks.issue_text import code_of_test as code_of
from valve_plugin.tasks.issue_text import compose, describe_failure, error_lines, headline, mask_varying_text
from valve_plugin.tasks.syntax import parse

SOURCE = '''
class TestClamp:
    def test_high(self):
        """It stays in range."""
        assert clamp(10, 0, 9) == 9


def test_many(case):
    assert case
'''
OUTPUT = """\
____ TestClamp.test_high ____
tests/test_ops.py:4: in test_high
    assert clamp(10, 0, 9) == 9
calc/ops.py:11: in clamp
    return low
E   AssertionError: assert 0 == 9
E    +  where 0 = clamp(10, 0, 9)
"""
TEST = "tests/test_ops.py::TestClamp::test_high"


def issue(source: str, output: str, others: list[str], test: str = TEST) -> str:
    """The issue about one test; empty where it shows nothing."""
    voice = describe_failure(test, source, output)
    return compose(voice, others, "calc 1", "") if voice else ""


def test_a_whole_issue() -> None:
    text = issue(SOURCE, OUTPUT, ["tests/test_ops.py::test_many[a]", "tests/test_ops.py::test_many[b]"])
    assert text == (
        "high: assert 0 == 9\n\n"
        "With calc 1 the following worked; in this checkout it does not.\n\n"
        '```python\ndef test_high(self):\n    """It stays in range."""\n    assert clamp(10, 0, 9) == 9\n```\n\n'
        "It ends with\n\n```\nAssertionError: assert 0 == 9\n +  where 0 = clamp(10, 0, 9)\n```\n\n"
        "Probably the same cause: `test_many`.\n\n"
        "Please find the cause in the source and fix it; the tests that fail are not in this checkout. All other "
        "behaviour must stay as it is.\n"
    )


def test_tests_made_from_data_have_no_code_to_show() -> None:
    assert code_of("x = 1", "tests/test_x.py::test_data[1]").startswith("# test_data: a test that is made from data")
    assert code_of("not python (", "t.py::test_data").startswith("# test_data")


def test_long_tests_and_errors_are_cut() -> None:
    source = "def test_long():\n" + "    x = 1\n" * 100
    assert code_of(source, "t.py::test_long").splitlines()[-1] == "    ..."
    output = "\n".join(["E   " + "word " * 1000] * 50)
    lines = error_lines(output)
    assert len(lines) < 20
    assert all(len(x) <= 400 for x in lines)


@given(st.text())
def test_what_names_no_error_makes_none(output: str) -> None:
    assert (issue("", output, []) == "") == (not error_lines(output))
    assert issue("", "E\nE   \n1 passed", []) == ""


odd = ["a::b [c]", "with a space", 'it\'s "quoted"', "ünïcode-☃", "[100%]", "x] [y", "::"]


@given(case=st.sampled_from(odd) | st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=9))
def test_a_case_is_kept_whole(case: str) -> None:
    name = f"tests/test_ops.py::TestA::test_add_it[{case}]"
    text = issue("def test_add_it(case):\n    pass\n", "E   KeyError: 1", [name.replace("TestA", "TestB")], name)
    assert text.startswith(f"add it ({case}): KeyError: 1\n")
    assert "def test_add_it(case):" in text
    assert "The same check fails for 1 more input." in text


SETUP = """\
import os, sys
from calc.ops import clamp
from calc.ops import (
    secret,
)
HIGH = 9
LIMITS = (0, HIGH)
OTHER = 5

def test_it():
    assert clamp(10, *LIMITS) == secret(sys)
"""


def test_what_the_code_uses_stands_before_it_unless_it_tells() -> None:
    failure = describe_failure("t.py::test_it", SETUP, "E   KeyError: 1")
    assert failure
    text = compose(failure, [], "calc 1", calc.change("a\n", "b\n", "x/y.py"))
    before = SETUP.partition("\nOTHER")[0]
    assert f"```python\n{before}\n\ndef test_it():" in text
    assert "OTHER" not in text
    text = compose(failure, [], "calc 1", calc.change("a\n", "b\n"))
    assert "```python\nimport os, sys\nHIGH = 9\nLIMITS = (0, HIGH)\n\ndef test_it():" in text


HELPER = "def check(found, wanted):\n    assert found == wanted\n"
SILENT = """\
from tests.helper import check

def test_silent():
    print("\\n".join(map(str, range(30))))
    E = [1, 2]
    check(E, [1, 3])
"""


def test_a_silent_assertion_shows_statement_values_and_output(tmp_path: Path) -> None:
    files = {"helper.py": HELPER, "test_silent.py": SILENT, "__init__.py": ""}
    (tmp_path / "tests").mkdir()
    for name, text in files.items():
        (tmp_path / "tests" / name).write_text(text)
    show = ["-q", "--tb=short", "-l", "--color=no", "-p", "no:cacheprovider", "-rf"]
    test = "tests/test_silent.py::test_silent"
    failure = describe_failure(test, SILENT, printed(tmp_path, [*show, test]))
    assert failure
    assert failure.title == "assert found == wanted"
    assert failure.error == [
        "assert found == wanted",
        "  with found = [1, 2]",
        "  with wanted = [1, 3]",
        "AssertionError",
    ]
    assert failure.output == tuple(map(str, range(20, 30)))
    assert "It prints\n\n```\n20\n" in compose(failure, [], "calc 1", "")


SYNTAX = """\
E     File "<template>", line 18
E       yield str(}'foo': 42{)
E                 ^
E   SyntaxError: closing parenthesis '}' does not match opening parenthesis '('
"""
CHAIN = """\
tests/test_ops.py:4: in test_high
    return CACHE[key]
E   KeyError: 'a'

During handling of the above exception, another exception occurred:
tests/test_ops.py:6: in test_high
    clamp()
E   calc.errors.Missing: no such limit: a
E   expected one of b, c
------ Captured stdout call ------
E   nothing
"""


def test_a_title_is_the_last_exceptions_own_line() -> None:
    assert headline(SYNTAX) == "SyntaxError: closing parenthesis '}' does not match opening parenthesis '('"
    assert headline(CHAIN) == "calc.errors.Missing: no such limit: a"
    assert headline("E   assert 1 == 2\nE   KeyError: 3") == "assert 1 == 2"
    assert headline("E     just words\nE   more") == "just words"
    assert error_lines(CHAIN) == ["KeyError: 'a'", "calc.errors.Missing: no such limit: a", "expected one of b, c"]


@given(st.integers(14, 60))
def test_of_a_long_error_the_difference_at_its_end_is_kept(frames: int) -> None:
    middle = "".join(f"E     frame {n}\nE     ^^^^\n" for n in range(frames))
    lines = error_lines(f"{CHAIN.partition('------')[0]}\n{middle}E   - expected\nE   + found\n")
    assert len(lines) == 14
    assert lines[0] == "calc.errors.Missing: no such limit: a"
    assert lines[-3:] == [f"  frame {frames - 1}", "- expected", "+ found"]
    assert "KeyError: 'a'" not in lines


addresses = st.integers(16**8, 16**12 - 1).map(hex)
varying = st.tuples(
    addresses,
    st.integers(0, 999).map(lambda n: f"/tmp/pytest-of-me/pytest-{n}/test_x0/a.txt"),
    st.text("abcdefgh_12345", min_size=8, max_size=8).map(lambda name: f"/tmp/tmp{name}/b"),
    st.integers(0, 10**9).map(lambda n: f"{n / 10**6:.6f} seconds"),
    st.integers(0, 10**8).map(lambda n: f"{1_700_000_000 + n}.123456"),
)


@given(varying, varying)
def test_what_differs_from_run_to_run_is_masked(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    def told(values: tuple[str, ...]) -> str:
        at, *rest = values
        output = "".join(f"E   {word}\n" for word in [f"ValueError: <calc.Box object at {at}>", *rest])
        return issue(SOURCE, output, [])

    assert told(one) == told(other)
    assert "ValueError: <calc.Box object at 0x…>" in told(one)


@pytest.mark.parametrize("text", ["0x7f", "assert 3.14 == 2.5", "5 s", "0.25 seconds", "0xdeadbeef", "/tmp/a.txt"])
def test_what_a_test_is_about_is_not_masked(text: str) -> None:
    assert mask_varying_text(text) == text


def printed(folder: Path, words: list[str]) -> str:
    command = [sys.executable, "-m", "pytest", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("source", ["def f(:", b"\xff\xfe", "a\0b", "(" * 5000 + ")" * 5000])
def test_what_is_not_python_has_no_tree(source: str | bytes) -> None:
    assert parse(source) is None
