"""Which tests reach a change: by one real watched run, and by reading patches and source."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rollouts import calc
from valve_plugin.rollouts.sandbox import UnsafeLocal
from valve_plugin.tasks import screen
from valve_plugin.tasks.smith import Candidate

SOURCE = "x = 1\n\n\n@dec\n@dec2\ndef f(a):\n    def g():\n        return 1\n    return g\n\n\nclass C:\n    y = 2\n"


def candidate(patch: str) -> Candidate:
    return Candidate(modifier="m", file="calc/ops.py", digest="1", patch=patch)


@pytest.mark.timeout(100)
def test_a_watched_run(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unused = calc.OPS + "\n\ndef unused():\n    return 1\n"
    monkeypatch.setitem(calc.FILES, "calc/ops.py", unused)
    _, prepared, _ = calc.taskset(tmp_path)
    reached = screen.watch(prepared, UnsafeLocal())
    assert reached is not None
    choose = screen.screener(reached, screen.reader(prepared))
    changes = [unused.replace("a + b", "a - b"), unused.replace("return high", "return 1"), unused[:-2] + "2\n"]
    found = [choose(candidate(calc.change(unused, changed))) for changed in changes]
    assert found == [["tests/test_ops.py"], ["tests/test_ops.py", "tests/test_other.py"], []]
    assert choose(candidate(calc.change(unused, "x = 1\n" + unused))) is None


@pytest.mark.parametrize(("line", "function"), [(1, None), (6, None), (7, 4), (8, 7), (9, 4), (13, None)])
def test_the_innermost_function(line: int, function: int | None) -> None:
    assert screen.enclosing(SOURCE, line, line) == function


@given(st.lists(st.sampled_from("abcdefghijkl"), unique=True), st.data())
def test_changed_lines_are_those_that_differ(lines: list[str], data: st.DataObject) -> None:
    if not lines:
        return
    at = data.draw(st.integers(0, len(lines) - 1))
    before = "".join(f"{line}\n" for line in lines)
    after = "".join(f"{'other' if n == at else line}\n" for n, line in enumerate(lines))
    assert [first for first, _ in screen.changed_lines(calc.change(before, after))] == [at + 1]


@given(st.text(), st.text())
def test_nothing_crashes(source: str, patch: str) -> None:
    screen.enclosing(source, 1, 1)
    list(screen.changed_lines(patch))


def test_what_importing_calls_is_reached_from_everywhere() -> None:
    reached = {"": [("calc/ops.py", 4)], "tests/a.py": [], "tests/b.py": [("calc/ops.py", 4)]}
    unseen = Candidate(modifier="m", file="calc/never_imported.py", digest="1", patch="")
    assert screen.screener(reached, lambda _: "")(unseen) == []
    choose = screen.screener(reached, lambda _: calc.OPS)
    assert choose(candidate(calc.change(calc.OPS, calc.OPS.replace("a + b", "a")))) == ["tests/a.py", "tests/b.py"]
