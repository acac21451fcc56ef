"""Candidate bugs: finding them, and the tests that reach them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import calc
from valve_plugin.sandbox.bubblewrap import UnsafeLocal
from valve_plugin.tasks.make import candidates
from valve_plugin.tasks.make.candidates import Candidate


def nothing_in(root: Path, seed: int, name: str) -> list[Candidate]:
    return []


def test_the_time_left_goes_by_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("swesmith", "bug_gen", "adapters", "procedural", "python"):
        above = {"bug_gen": "swesmith.", "python": "swesmith.bug_gen.procedural."}.get(name, "swesmith.bug_gen.")
        full = name if name == "swesmith" else above + name
        monkeypatch.setitem(sys.modules, full, ModuleType(full))
    monkeypatch.setattr(candidates, "_in_file", nothing_in)
    for name, size in (("a", 99), ("b", 299), ("c", 599)):
        (tmp_path / f"{name}.py").write_bytes(b"#" * size)
    shares: list[float] = []
    assert candidates.find_candidates(tmp_path, lambda _: False, 0, report=shares.append) == []
    assert shares == [0.1, 0.4, 1.0]


SOURCE = "x = 1\n\n\n@dec\n@dec2\ndef f(a):\n    def g():\n        return 1\n    return g\n\n\nclass C:\n    y = 2\n"


def changing(patch: str) -> Candidate:
    return Candidate(modifier="m", file="calc/ops.py", digest="1", patch=patch)


def test_a_watched_run(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unused = calc.OPS + "\n\ndef unused():\n    return 1\n"
    monkeypatch.setitem(calc.FILES, "calc/ops.py", unused)
    _, prepared, _ = calc.taskset(tmp_path)
    reached = candidates.trace_calls(prepared, UnsafeLocal())
    assert reached is not None
    assert reached.counts == {"tests/test_ops.py": 9, "tests/test_other.py": 2}
    suite = [*calc.F2P, *calc.P2P]
    choose = candidates.screener(reached, suite, candidates.source_reader(prepared))
    changes = [unused.replace("a + b", "a - b"), unused.replace("return high", "return 1"), unused[:-2] + "2\n"]
    found = [choose(changing(calc.change(unused, changed))) for changed in changes]
    assert [screened and screened.paths for screened in found] == [
        tuple(sorted(t for t in suite if "test_add" in t or "known" in t or "hopeless" in t)),
        tuple(sorted({*calc.F2P, *(t for t in suite if "clamp" in t.lower() or "test_other" in t)})),
        (),
    ]
    assert all(screened and screened.tests == set(screened.paths) and screened.known_bad == 0 for screened in found)
    assert choose(changing(calc.change(unused, "x = 1\n" + unused))) is None


@pytest.mark.parametrize(("line", "function"), [(1, None), (6, None), (7, 4), (8, 7), (9, 4), (13, None)])
def test_the_innermost_function(line: int, function: int | None) -> None:
    assert candidates.enclosing_function(SOURCE, line, line) == function


@given(st.lists(st.sampled_from("abcdefghijkl"), unique=True), st.data())
def test_changed_lines_are_those_that_differ(lines: list[str], data: st.DataObject) -> None:
    if not lines:
        return
    at = data.draw(st.integers(0, len(lines) - 1))
    before = "".join(f"{line}\n" for line in lines)
    after = "".join(f"{'other' if n == at else line}\n" for n, line in enumerate(lines))
    assert [first for first, _ in candidates.changed_lines(calc.change(before, after))] == [at + 1]


@given(st.text(), st.text())
def test_nothing_crashes(source: str, patch: str) -> None:
    candidates.enclosing_function(source, 1, 1)
    list(candidates.changed_lines(patch))


def screened(callers: tuple[str, ...], suite: list[str]) -> candidates.ReachingTests | None:
    counts = {f"tests/{letter}.py": 3 for letter in "abcde"}
    reached = candidates.CallTrace(functions=(("calc/ops.py", 4, callers),), counts=counts)
    choose = candidates.screener(reached, suite, lambda _: calc.OPS)
    unseen = Candidate(modifier="m", file="calc/never_imported.py", digest="1", patch="")
    assert choose(unseen) == candidates.ReachingTests((), frozenset(), 0)
    return choose(changing(calc.change(calc.OPS, calc.OPS.replace("a + b", "a"))))


SUITE = [f"tests/{letter}.py::test_{n}" for letter in "abcde" for n in (1, 2)]


def test_few_tests_are_looked_at_by_name_and_many_by_file() -> None:
    named = screened(("tests/a.py::test_1", "tests/b.py::test_9"), SUITE)
    assert named == candidates.ReachingTests(("tests/a.py::test_1",), frozenset(["tests/a.py::test_1"]), 0)
    whole = screened(("tests/a.py", "tests/a.py::test_1"), SUITE)
    assert whole == candidates.ReachingTests(
        ("tests/a.py",), frozenset(["tests/a.py::test_1", "tests/a.py::test_2"]), 1
    )


def test_what_importing_calls_is_reached_from_everywhere() -> None:
    assert screened(("",), SUITE) is None


@given(st.sets(st.sampled_from([*SUITE, *(test.split("::")[0] for test in SUITE)])), st.sets(st.sampled_from(SUITE)))
def test_no_test_is_named_twice(callers: set[str], suite: set[str]) -> None:
    found = screened(tuple(sorted(callers)), sorted(suite))
    if found is not None:
        files = {path for path in found.paths if "::" not in path}
        named = [path for path in found.paths if "::" in path]
        assert not files.intersection(path.split("::")[0] for path in named)
        assert found.tests == {t for t in suite if t in named or t.split("::")[0] in files}
