"""What pytest prints about several failing tests, taken apart again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from valve_plugin.tasks.aloud import failures

TESTS = """\
import pytest


def test_plain():
    print("____ test_other ____")
    assert [1, 2] == [1, 3]


class TestBox:
    @pytest.mark.parametrize("case", ["a b", "c::d - e [f]"])
    def test_case(self, case):
        raise KeyError(case)


def test_good():
    pass


@pytest.fixture
def broken():
    raise OSError("no fixture")


def test_error(broken):
    pass
"""
IDS = [
    "test_one.py::TestBox::test_case[a b]",
    "test_one.py::TestBox::test_case[c::d - e [f]]",
    "test_one.py::test_error",
    "test_one.py::test_good",
    "test_one.py::test_plain",
]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("aloud")
    for name in ("test_one.py", "test_two.py"):
        (folder / name).write_text(TESTS)
    show = ["-q", "--tb=short", "--color=no", "-p", "no:cacheprovider", "-rf"]
    return printed(folder, [*show, *IDS])


def printed(folder: Path, words: list[str]) -> str:
    command = [sys.executable, "-m", "pytest", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


def test_each_failing_test_has_its_own_section(output: str) -> None:
    found = failures(output, IDS)
    assert sorted(found) == [IDS[0], IDS[1], IDS[4]], "what passes, or fails before it runs, is left out"
    assert "KeyError: 'a b'" in found[IDS[0]]
    assert "KeyError: 'c::d - e [f]'" in found[IDS[1]]
    assert "At index 1 diff: 2 != 3" in found[IDS[4]]
    assert "KeyError" not in found[IDS[4]]


def test_what_cannot_be_told_apart_is_left_out(output: str) -> None:
    twin = "test_two.py::test_plain"
    assert not {IDS[4], twin} & set(failures(output, [*IDS, twin]))
    doubled = output.replace("TestBox.test_case[a b] _", "test_plain _")
    assert IDS[4] not in failures(doubled, IDS)


@pytest.mark.parametrize("cut", [0, 40, 400])
def test_a_run_that_was_stopped_says_nothing(output: str, cut: int) -> None:
    assert failures(output[:cut], IDS) == {}
