"""What counts as test files and test configuration."""

from __future__ import annotations

from valve_plugin.tasks.states import is_protected
from valve_plugin.tasks.states import test_files as files_of


def test_roots_may_be_deep_and_several() -> None:
    assert is_protected("pkg/checks/data.bin", ["tests", "pkg/checks/"])
    assert not is_protected("pkg/check", ["pkg/checks"])


def test_files_of_test_ids() -> None:
    ids = ["b/test_b.py::test[x::y]", "a/test_a.py::T::t", "b/test_b.py::other"]
    assert files_of(ids) == ["a/test_a.py", "b/test_b.py"]


def test_what_belongs_to_the_tests() -> None:
    tests = "tests/test_x.py tests/data/input.json tests pkg/inner_test.py pkg/deep/conftest.py pytest.ini setup.cfg"
    assert all(is_protected(path, ["tests"]) for path in tests.split())
    source = "pkg/x.py testsuite/x.py pkg/tests.py pkg/contest.py setup.py t/tests"
    assert not any(is_protected(path, ["tests"]) for path in source.split())
