"""Loading rows: every bad one is refused with its line and reason, and nothing crashes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import calc, strategies
from valve_plugin.codec import pretty
from valve_plugin.errors import TaskError
from valve_plugin.records import Task
from valve_plugin.tasks import split as splits
from valve_plugin.tasks import task_set
from valve_plugin.tasks.repository import Repository, read_definition
from valve_plugin.tasks.task_set import SmithRow, check_rows, load

REPOSITORY = Repository(name="acme/calc", source="path:source")


def line(**changes: Any) -> bytes:
    """Return one row as JSON; a change to None leaves the key out."""
    return json.dumps({k: v for k, v in calc.row(**changes).items() if v is not None}).encode()


def refusal(*lines: bytes, suite: list[str] | None = None) -> str:
    """Return the only refusal of these lines."""
    _, refusals = check_rows(enumerate(lines, 1), REPOSITORY, suite)
    assert len(refusals) == 1, refusals
    return "".join(f"line {number}: {why}" for number, why in refusals.items())


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
        ({"repo": "other/calc"}, "repo is 'other/calc', but repository.toml is about 'acme/calc'"),
        ({"problem_statement": " "}, "problem_statement is empty"),
        ({"problem_statement": "a\0b"}, "a NUL character"),
        ({"PASS_TO_PASS": None}, "PASS_TO_PASS is missing, and repository.toml has no suite file"),
        ({"PASS_TO_PASS": [calc.F2P[0]]}, "is in both FAIL_TO_PASS and PASS_TO_PASS"),
        ({"FAIL_TO_PASS": [calc.F2P[0]] * 2}, "is listed twice"),
        ({"FAIL_TO_PASS": ["-p evil"]}, "is not a test id"),
        ({"FAIL_TO_PASS": ["tests/a.py::\u202et"]}, "is not a test id"),
        ({"FAIL_TO_PASS": "tests/a.py::t"}, "Expected `array`, got `str`"),
        ({"instance_id": "../../x"}, "instance_id '../../x' has '/'; expected letters"),
        ({"instance_id": "x" * 301}, "has 301 characters, expected at most 300"),
        ({"patch": "rm -rf /"}, "patch is not a unified diff"),
        ({"patch": calc.change("a\n", "b\n", "../x.py")}, "patch touches '../x.py', outside the repository"),
        ({"patch": calc.change("a\n", "b\n", ".git/config")}, "patch touches '.git/config', outside"),
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
        (b"\xff\xfe{}", "line 1"),
        (b"[" * 100_000, "line 1"),
        (line().replace(b'"patch"', b'"patch": "", "patch"', 1), "row: the key 'patch' is given twice in one object"),
        (line(problem_statement="x" * 17_000_000), "expected at most 16,000,000"),
    ],
    ids=["cut", "not UTF-8", "deep", "twice", "huge"],
)
def test_a_line_that_is_no_row_is_refused(raw: bytes, reason: str) -> None:
    assert reason in refusal(raw)


def test_the_same_id_and_the_same_bug_are_refused() -> None:
    other = calc.change("a\n", "b\n")
    assert "is already in line 1" in refusal(line(), line(patch=other))
    assert "the same bug as line 1" in refusal(line(), b"", line(instance_id="another"))


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
        ("tasks.jsonl", b"", "the file has no tasks"),
        ("tasks.jsonl", None, "there is no task file"),
        ("repository.toml", None, "a task directory holds repository.toml and tasks.jsonl"),
        ("repository.toml", b"name = ", "repository.toml"),
        ("repository.toml", b"\x7fELF\0\xff", "repository.toml: a binary file: not UTF-8 text at byte 6"),
        ("repository.toml", b"name = 'x/y'\n", "repository.toml: Object missing required field `source`"),
        ("tasks.jsonl", b"\x7fELF\0\xff", "line 1"),
        ("repository.toml", b"name = 'x'\nsource = 'path:.'\nsurprise = 1\n", "unknown field `surprise`"),
        ("repository.toml", b"name = '../x'\nsource = 'path:.'\n", "repository.toml"),
        ("repository.toml", b"name = 'x'\nsource = 'git+ssh://host/x'\n", "repository.toml"),
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
    assert str(caught.value).count(str(folder / name)) <= 1


def test_a_file_that_lies_alone_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"\0\xff")
    with pytest.raises(
        TaskError,
        match=r"x.jsonl: a binary file and no task set: a task directory holds .*; there is no .*repository.toml",
    ):
        load(tmp_path / "x.jsonl")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([*calc.row(), "other"]), json_values)
def test_no_value_crashes(key: str, value: Any) -> None:
    tasks, refusals = check_rows([(1, json.dumps({**calc.row(), key: value}).encode())], REPOSITORY)
    assert len(tasks) + len(refusals) == 1
    assert all(isinstance(task, Task) for task in tasks.values())


words = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=3).map(tuple)


@given(strategies.repositories, words)
def test_a_definition_survives_being_written(
    tmp_path_factory: pytest.TempPathFactory, repository: Repository, arguments: tuple[str, ...]
) -> None:
    where = tmp_path_factory.mktemp("t")
    written = replace(repository, pytest_args=arguments, source="pypi:x==1", environment="")
    task_set.write_definition(where, written, "valve tasks generate")
    assert read_definition(where / "repository.toml") == written
    assert task_set.made_by(where) == "valve tasks generate"


def test_what_is_written_loads_and_may_be_moved(tmp_path: Path, data_dir: Path) -> None:
    made = read_definition(calc.write(tmp_path) / "repository.toml")
    kept = {k.lower(): v for k, v in calc.row().items() if k != "PASS_TO_PASS"}
    row = SmithRow(**{**kept, "fail_to_pass": calc.F2P})  # type: ignore[arg-type]
    task_set.write(tmp_path, made, [row], made_by="valve tasks generate --seed 0", suite=[*calc.F2P, *calc.P2P])
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    found = load(moved)
    assert found.tasks[0].pass_to_pass == calc.P2P
    assert found.repository.source == f"path:{moved / 'source'}"
    task_set.check_free(moved, "valve tasks generate")
    with pytest.raises(TaskError, match=r"tasks made by valve tasks generate --seed 0; .*--out"):
        task_set.check_free(moved, "valve tasks import")
    moved.rename(tmp_path)


def test_a_folder_that_is_no_task_set_hides_none(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("parse").mkdir()
    with pytest.raises(TaskError, match=r"^parse: no such task directory \(.*; there: none yet;"):
        task_set.find("parse")
    calc.write(task_set.default_folder("parse"))
    calc.write(task_set.default_folder("pathspec-1.1.1"))
    assert task_set.find("parse") == task_set.default_folder("parse")
    (Path("parse") / "repository.toml").touch()
    assert task_set.find("parse") == Path("parse"), "what is at hand comes first"
    with pytest.raises(TaskError, match=r"did you mean 'pathspec-1\.1\.1'\? there: parse, pathspec-1\.1\.1"):
        task_set.find("pathspce-1.1.1")
    Path("rows").touch()
    assert task_set.find("rows") == Path("rows"), "a file of rows"


WRITTEN = Repository(name="acme/calc", source="path:source", test_roots=("tests",))
SETS = st.frozensets(st.integers(0, 5), min_size=1)


def rows(numbers: frozenset[int] | range) -> list[SmithRow]:
    patches = {n: calc.change(calc.OPS, calc.OPS + f"# {n}\n") for n in sorted(numbers)}
    return [
        SmithRow(
            instance_id=f"t{n}", repo="acme/calc", patch=patch, fail_to_pass=("tests/test_a.py::test_a",),
            pass_to_pass=(), problem_statement="It fails.",
        )
        for n, patch in patches.items()
    ]  # fmt: skip


@given(SETS, SETS)
def test_only_a_set_that_is_not_split_is_replaced_and_by_no_smaller_one(
    tmp_path_factory: pytest.TempPathFactory, there: frozenset[int], more: frozenset[int]
) -> None:
    where = tmp_path_factory.mktemp("t")
    task_set.write(where, WRITTEN, rows(there), made_by="valve tasks generate")
    before = (where / "tasks.jsonl").read_bytes()
    assert task_set.held_tasks(where) == {t.instance_id: t.content_hash for t in load(where).tasks}
    if there <= more or len(there) <= len(more):
        task_set.write(where, WRITTEN, rows(more), made_by="valve tasks generate")
        assert {t.instance_id for t in load(where).tasks} == {f"t{n}" for n in more}
        return
    with pytest.raises(TaskError, match=f"has {len(there)} tasks; the new set would lack "):
        task_set.write(where, WRITTEN, rows(more), made_by="valve tasks generate")
    assert (where / "tasks.jsonl").read_bytes() == before


def test_what_a_split_names_stays_and_comes_back(tmp_path: Path) -> None:
    task_set.write(tmp_path, WRITTEN, rows(range(4)), made_by="valve tasks generate")
    (tmp_path / "split.json").write_bytes(pretty(splits.draw("acme/calc", load(tmp_path).tasks, holdout=1, panel=1)))
    with pytest.raises(TaskError, match=r"4 tasks \(4 of them in its split\); .* lack 1 of them, .*--out "):
        task_set.write(tmp_path, WRITTEN, rows(range(1, 9)), made_by="valve tasks generate")
    task_set.write(tmp_path, WRITTEN, rows(range(6)), made_by="valve tasks generate")
    (tmp_path / "tasks.jsonl").write_text("torn\n")
    assert set(task_set.held_tasks(tmp_path)) == {"t0", "t1", "t2", "t3"}, "it may be made again, and only it"
    with pytest.raises(TaskError, match="lack 1 of them"):
        task_set.write(tmp_path, WRITTEN, rows(range(3)), made_by="valve tasks generate")
    task_set.write(tmp_path, WRITTEN, rows(range(4)), made_by="valve tasks generate")
    assert len(load(tmp_path).tasks) == 4
