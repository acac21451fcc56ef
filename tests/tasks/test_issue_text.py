"""Issue texts: what the failing test does and what came of it, never the fix."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.rollouts import calc
from valve_plugin.tasks.issue_text import compose, error_lines, leaks
from valve_plugin.tasks.issue_text import test_code as code_of

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


def test_a_whole_issue() -> None:
    text = compose(
        TEST, SOURCE, OUTPUT, ["tests/test_ops.py::test_many[a]", "tests/test_ops.py::test_many[b]"], "calc 1"
    )
    assert text == (
        "high: assert 0 == 9\n\n"
        "With calc 1 the following worked; in this checkout it does not.\n\n"
        '```python\ndef test_high(self):\n    """It stays in range."""\n    assert clamp(10, 0, 9) == 9\n```\n\n'
        "It ends with\n\n```\nAssertionError: assert 0 == 9\n +  where 0 = clamp(10, 0, 9)\n```\n\n"
        "Probably the same cause: `test_many`.\n\n"
        "Please find the cause in the source and fix it. All other behaviour must stay as it is.\n"
    )


def test_frames_of_the_source_are_left_out() -> None:
    text = compose(TEST, SOURCE, OUTPUT, [], "calc 1")
    assert "calc/ops.py" not in text
    assert "return low" not in text
    assert leaks(text, calc.change(calc.OPS, calc.BUGGY)) == []


def test_leaks_are_found() -> None:
    patch = "--- a/calc/ops.py\n+++ b/calc/ops.py\n@@ -1 +1 @@\n-    if value > the_upper_limit:\n+    pass\n"
    assert leaks("see calc/ops.py", patch) == ["calc/ops.py"]
    assert leaks("in calc.ops it says `if value > the_upper_limit:`", patch) == [
        "calc.ops",
        "if value > the_upper_limit:",
    ]
    assert leaks("pass the exam", patch) == []


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


@given(st.text(), st.text(), st.lists(st.text(min_size=1), max_size=3))
def test_any_text_makes_an_issue(source: str, output: str, others: list[str]) -> None:
    assert compose("t.py::test_x[a]", source, output, others, "calc 1").endswith("stay as it is.\n")


def test_a_title_has_single_spaces() -> None:
    name = "tests/test_ops.py::test__rules__std_LT01_[a__b]"
    assert compose(name, "", "", [], "calc 1").startswith("rules std LT01 (a__b): it fails\n")
