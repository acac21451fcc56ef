"""`valve tasks mine` on a real little history."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import calc
from tests.cli.conftest import Run
from tests.lean import lean
from tests.tools import git, put
from valve_plugin.tasks import task_set
from valve_plugin.tasks.make.candidates import plain_message
from valve_plugin.tasks.task_set import load

CUBE = "\n\ndef cube(x):\n    return x * x * x\n"


def commit(where: Path, message: str, files: dict[str, str]) -> None:
    git(put(where, files), "add", "-A")
    git(where, "commit", "-qm", message)


@pytest.fixture
def history(project: Path) -> Path:
    """Commits: a fix beside a version that changes again, one later overwritten, one that no test notices."""
    git(project, "init", "-q")
    test = calc.TEST_OTHER + "\n\ndef test_cube():\n    from calc.ops import cube\n\n    assert cube(2) == {}\n"
    commit(
        project, "start", {**calc.FILES, "calc/ops.py": calc.BUGGY, "tests/test_ops.py": "", ".gitignore": "*.log\n"}
    )
    fix = "fix(ops): values above the range become the low end (#12)\n\nCo-authored-by: A B <a@b.c>"
    version = "calc/about.py"
    commit(project, fix, {"calc/ops.py": calc.OPS, "tests/test_ops.py": calc.TEST_OPS, version: "version = 1\n"})
    commit(project, "cube of a number", {"calc/ops.py": calc.OPS + CUBE, "tests/test_other.py": test.format(8)})
    squared = CUBE.replace("x * x * x", "x**3")
    commit(project, "cube by a power", {"calc/ops.py": calc.OPS + squared, "tests/test_other.py": test.format("2**3")})
    commit(project, "a new version", {"tests/test_more.py": "def test_it():\n    pass\n", version: "version = 2\n"})
    return project


def test_a_fix_in_the_history_becomes_a_task(history: Path, valve: Run) -> None:
    before = subprocess.run(["find", ".git", "-type", "f"], cwd=history, capture_output=True, check=True).stdout
    options = ["--python", str(lean()), "--unsafe-local", "--repo", "acme/calc"]
    made = valve("tasks", "mine", *options, "--json")
    assert (made["commits"], made["first"], made["gone"]) == (5, 1, 1)  # cube was rewritten since
    assert made["tasks"] == 1
    (task,) = load(task_set.default_folder("acme/calc__mined")).tasks
    assert task.fail_to_pass == calc.F2P
    assert task.problem_statement.startswith("values above the range become the low end\n\n")
    assert "def test_high" in task.problem_statement
    after = subprocess.run(["find", ".git", "-type", "f"], cwd=history, capture_output=True, check=True).stdout
    assert after == before


def test_without_a_history_it_says_so(project: Path, valve: Run) -> None:
    valve("tasks", "mine", "--unsafe-local", code=2)
    assert "not a git repository" in valve.err
    git(project, "init", "-q")
    for number in "12":
        valve("tasks", "mine", "--unsafe-local", code=2)
        assert ".: its HEAD has no commit before it" in valve.err
        commit(project, number, {number: ""})


def test_where_nothing_can_be_tried_nothing_is_run(project: Path, valve: Run) -> None:
    git(project, "init", "-q")
    commit(project, "start", calc.FILES)
    commit(project, "source alone", {"calc/ops.py": calc.BUGGY})
    made = valve("tasks", "mine", "--unsafe-local", "--repo", "acme/calc", "--json", code=1)
    assert made == {"repository": "acme/calc", "path": "", "tasks": 0, "commits": 2, "first": 1, "tried": 0, "gone": 0}
    assert valve.err == (
        "looking for fixes in the history\n2 commits looked at (1 without a parent), none with source and tests\n"
        "so nothing was run: --commits N looks further back, `valve tasks generate` needs no history\n"
    )
    assert not task_set.default_folder("acme/calc__mined").exists()


def test_merges_are_no_commits_to_look_at(project: Path, valve: Run) -> None:
    git(project, "init", "-q")
    for place, start in ("one", calc.FILES), ("two", {"other.txt": ""}):
        git(project, "checkout", "-q", "--orphan", place)
        git(project, "rm", "-rqf", "--ignore-unmatch", ".")
        commit(project, f"first of {place}", start)
    commit(project, "more", {"more.txt": ""})
    git(project, "merge", "-q", "--no-edit", "--allow-unrelated-histories", "one")
    valve("tasks", "mine", "--unsafe-local", "--repo", "acme/calc", code=1)
    assert "3 commits looked at (2 without a parent), none" in valve.err
    valve("tasks", "mine", "--unsafe-local", "--repo", "acme/calc", "--commits", "1", code=1)
    assert "1 commit looked at, none" in valve.err


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("fix: wrong sum of two numbers (#3)", "wrong sum of two numbers"),
        ("Sum of two\n\nSigned-off-by: X <x@y.z>\nnumbers is wrong", "Sum of two\n\nnumbers is wrong"),
        ("typo", ""),
    ],
)
def test_messages_lose_their_bookkeeping(message: str, text: str) -> None:
    assert plain_message(message) == text


@given(st.text())
def test_any_message_can_be_read(message: str) -> None:
    assert plain_message(plain_message(message)) is not None
