"""Loading rows: every bad one is refused with its line and reason, and nothing crashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rollouts import calc
from valve_plugin.errors import TaskError, ValveError
from valve_plugin.records import Task
from valve_plugin.tasks.load import check, load
from valve_plugin.tasks.repository import Repository

REPOSITORY = Repository(name="acme/calc", source="path:source")


def line(**changes: Any) -> bytes:
    """Return one row as JSON; a change to None leaves the key out."""
    return json.dumps({k: v for k, v in calc.row(**changes).items() if v is not None}).encode()


def refusal(*lines: bytes, suite: list[str] | None = None) -> str:
    """Return the only refusal of these lines."""
    _, refusals = check(lines, REPOSITORY, suite)
    assert len(refusals) == 1, refusals
    return refusals[0]


def test_a_directory_and_a_file_load_the_same(tmp_path: Path) -> None:
    folder = calc.write(tmp_path)
    found = load(folder)
    assert load(str(folder / "tasks.jsonl")) == found
    task = found.by_id["acme__calc.1.func_pm_x__1"]
    assert task.fail_to_pass == calc.F2P
    assert task.pass_to_pass == calc.P2P
    assert found.repository.source == f"path:{(tmp_path / 'source').resolve()}"


def test_the_shipped_tasks_load() -> None:
    found = load(Path(__file__).parents[2] / "examples" / "deepdiff")
    assert len(found.tasks) >= 36
    suite = {*found.tasks[0].fail_to_pass, *found.tasks[0].pass_to_pass}
    assert len(suite) > 900
    assert all({*t.fail_to_pass, *t.pass_to_pass} == suite for t in found.tasks)
    files = {name for t in found.tasks for name in t.patch.split() if name.startswith("b/deepdiff/")}
    modifiers = {t.instance_id.split(".")[-1].split("__")[0] for t in found.tasks}
    assert len(files) >= 10
    assert len(modifiers) >= 8


def test_rows_without_pass_to_pass_share_the_suite(tmp_path: Path) -> None:
    (tmp_path / "suite.txt").write_text("\n".join([*calc.F2P, *calc.P2P]) + "\n")
    folder = calc.write(tmp_path, [{k: v for k, v in calc.row().items() if k != "PASS_TO_PASS"}], 'suite = "suite.txt"')
    assert load(folder).tasks[0].pass_to_pass == calc.P2P


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS is empty"),
        ({"repo": "other/calc"}, "repo 'other/calc' is unknown; repository.toml is about 'acme/calc'"),
        ({"problem_statement": " "}, "problem_statement is empty"),
        ({"problem_statement": None}, "missing required field `problem_statement`"),
        ({"PASS_TO_PASS": None}, "PASS_TO_PASS is missing, and repository.toml names no suite file"),
        ({"PASS_TO_PASS": [calc.F2P[0]]}, "is both in FAIL_TO_PASS and PASS_TO_PASS"),
        ({"FAIL_TO_PASS": [calc.F2P[0]] * 2}, "is listed twice"),
        ({"FAIL_TO_PASS": ["/etc/x::t"]}, "is not a test id"),
        ({"FAIL_TO_PASS": ["../x.py::t"]}, "is not a test id"),
        ({"FAIL_TO_PASS": ["-p evil"]}, "is not a test id"),
        ({"FAIL_TO_PASS": ["tests/a.py::\u202et"]}, "is not a test id"),
        ({"FAIL_TO_PASS": "tests/a.py::t"}, "Expected `array`, got `str`"),
        ({"instance_id": "../../x"}, "instance_id '../../x' is not made of"),
        ({"instance_id": ""}, "instance_id '' is not made of"),
        ({"instance_id": "x" * 301}, "is not made of"),
        ({"patch": ""}, "patch is not a unified diff"),
        ({"patch": "rm -rf /"}, "patch is not a unified diff"),
        ({"patch": calc.change("a\n", "b\n", "../x.py")}, "patch touches '../x.py', outside the repository"),
        ({"patch": calc.change("a\n", "b\n", ".git/config")}, "patch touches '.git/config', outside"),
        ({"patch": "--- /etc/x\n+++ /etc/x\n@@ -1 +1 @@\n-a\n+b\n"}, "outside the repository"),
        ({"surprise": 1}, "unknown field `surprise`"),
    ],
)
def test_a_bad_row_is_refused_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    message = refusal(line(instance_id="good", patch=calc.change("a\n", "b\n")), line(**changes))
    assert message.startswith("line 2: ")
    assert reason in message


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (line()[:-20], "line 1"),
        (b"{", "line 1"),
        (b"[]", "Expected `object`"),
        (b"\xff\xfe{}", "line 1"),
        (b'{"instance_id": "\xff"}', "line 1"),
        (b"[" * 100_000, "line 1"),
        (line().replace(b'"patch"', b'"patch": "", "patch"', 1), "row: the key 'patch' is given twice in one object"),
        (line(problem_statement="x" * 17_000_000), "expected at most 16,000,000"),
    ],
    ids=["cut", "brace", "list", "not UTF-8", "bad string", "deep", "twice", "huge"],
)
def test_a_line_that_is_no_row_is_refused(raw: bytes, reason: str) -> None:
    assert reason in refusal(raw)


def test_the_same_id_and_the_same_bug_are_refused() -> None:
    other = calc.change("a\n", "b\n")
    assert "is already in line 1" in refusal(line(), line(patch=other))
    assert "the same bug as line 1" in refusal(line(), b"", line(instance_id="another"))


def test_a_test_outside_the_suite_is_refused() -> None:
    assert "is not in the suite file" in refusal(line(PASS_TO_PASS=None), suite=list(calc.P2P))


def test_refusals_are_listed_and_counted(tmp_path: Path) -> None:
    rows = [calc.row(instance_id=f"x{n}", FAIL_TO_PASS=[]) for n in range(13)]
    with pytest.raises(TaskError) as caught:
        load(calc.write(tmp_path, rows))
    message = str(caught.value)
    assert "13 of its rows cannot be used" in message
    assert "line 10: x9" in message
    assert "and 3 more" in message


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tasks.jsonl", b"", "holds no task"),
        ("tasks.jsonl", None, "there is no task file"),
        ("repository.toml", None, "a task directory holds repository.toml and tasks.jsonl"),
        ("repository.toml", b"name = ", "repository.toml"),
        ("repository.toml", b"\xff", "repository.toml"),
        ("repository.toml", b"name = 'x'\nsource = 'path:.'\nsurprise = 1\n", "unknown field `surprise`"),
        ("repository.toml", b"name = '../x'\nsource = 'path:.'\n", "repository.toml"),
        ("repository.toml", b"name = 'x'\nsource = 'git+ssh://host/x'\n", "repository.toml"),
        ("repository.toml", b"name = 'x'\nsource = 'pypi:--evil==1'\n", "repository.toml"),
        ("repository.toml", b"name = 'x'\nsource = 'path:.'\nrequirements = ['-r x']\n", "repository.toml"),
        ("repository.toml", b"name = 'x'\nsource = 'path:.'\ntest_roots = ['../..']\n", "repository.toml"),
    ],
)
def test_a_bad_directory_is_refused(tmp_path: Path, name: str, content: bytes | None, reason: str) -> None:
    folder = calc.write(tmp_path)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(TaskError) as caught:
        load(folder)
    assert reason in str(caught.value)
    assert name in str(caught.value)


def test_no_directory_at_all(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no such file or directory; expected one with repository\.toml"):
        load(tmp_path / "nowhere")


@given(st.lists(st.binary(max_size=80) | st.from_regex(rb'\{"[a-z_]{1,12}":.{0,20}\}'), max_size=5))
def test_no_input_crashes(lines: list[bytes]) -> None:
    tasks, refusals = check(lines, REPOSITORY)
    assert len(tasks) + len(refusals) == sum(bool(x.strip()) for x in lines)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([*calc.row(), "other"]), json_values)
def test_no_value_crashes(key: str, value: Any) -> None:
    tasks, refusals = check([json.dumps({**calc.row(), key: value}).encode()], REPOSITORY)
    assert len(tasks) + len(refusals) == 1
    assert all(isinstance(task, Task) for task in tasks)


def test_errors_are_both_ours_and_builtin() -> None:
    assert issubclass(TaskError, ValveError)
    assert issubclass(TaskError, ValueError)
