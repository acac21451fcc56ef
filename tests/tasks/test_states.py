"""What counts as test files and test configuration."""

from __future__ import annotations

import pytest

from valve_plugin.tasks.states import is_protected
from valve_plugin.tasks.states import test_files as files_of


@pytest.mark.parametrize(
    "path",
    [
        "tests/test_x.py",
        "tests/data/input.json",
        "tests",
        "pkg/test_inner.py",
        "pkg/inner_test.py",
        "conftest.py",
        "pkg/deep/conftest.py",
        "pytest.ini",
        "setup.cfg",
        "pyproject.toml",
        "tox.ini",
    ],
)
def test_belongs_to_the_tests(path: str) -> None:
    assert is_protected(path, ["tests"])


@pytest.mark.parametrize(
    "path", ["pkg/x.py", "testsuite/x.py", "pkg/tests.py", "pkg/contest.py", "setup.py", "t/tests"]
)
def test_belongs_to_the_source(path: str) -> None:
    assert not is_protected(path, ["tests"])


def test_roots_may_be_deep_and_several() -> None:
    assert is_protected("pkg/checks/data.bin", ["tests", "pkg/checks/"])
    assert not is_protected("pkg/check", ["pkg/checks"])


def test_files_of_test_ids() -> None:
    ids = ["b/test_b.py::test[x::y]", "a/test_a.py::T::t", "b/test_b.py::other"]
    assert files_of(ids) == ["a/test_a.py", "b/test_b.py"]
