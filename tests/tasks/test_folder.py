"""Task directories: definitions survive being written, and nobody's tasks are replaced by accident."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import strategies
from tests.rollouts import calc
from valve_plugin.errors import TaskError
from valve_plugin.tasks import folder
from valve_plugin.tasks.load import Row, load
from valve_plugin.tasks.repository import Repository, read

words = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=3).map(tuple)


@given(strategies.repositories, words)
def test_a_definition_survives_being_written(
    tmp_path_factory: pytest.TempPathFactory, repository: Repository, arguments: tuple[str, ...]
) -> None:
    where = tmp_path_factory.mktemp("t")
    written = replace(repository, pytest_args=arguments, source="pypi:x==1", environment="")
    folder.write_definition(where, written, "valve tasks generate")
    assert read(where / "repository.toml") == written
    assert folder.made_by(where) == "valve tasks generate"


def test_what_is_written_loads_and_may_be_moved(tmp_path: Path, data_dir: Path) -> None:
    made = read(calc.write(tmp_path) / "repository.toml")
    kept = {k.lower(): v for k, v in calc.row().items() if k != "PASS_TO_PASS"}
    row = Row(**{**kept, "fail_to_pass": calc.F2P})  # type: ignore[arg-type]
    folder.write(tmp_path, made, [row], made_by="valve tasks generate --seed 0", suite=[*calc.F2P, *calc.P2P])
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    found = load(moved)
    assert found.tasks[0].pass_to_pass == calc.P2P
    assert found.repository.source == f"path:{moved / 'source'}"
    folder.check_free(moved, "valve tasks generate")
    with pytest.raises(TaskError, match=r"tasks that valve tasks generate --seed 0 put there; .*--out"):
        folder.check_free(moved, "valve tasks import")
    moved.rename(tmp_path)


def test_tasks_are_found_by_name(data_dir: Path) -> None:
    with pytest.raises(TaskError, match=r"acme/calc: no such .*; there: none yet;"):
        folder.find("acme/calc")
    calc.write(folder.default("acme/calc"))
    assert folder.known() == [folder.default("acme/calc")]
    assert folder.find("acme/calc") == data_dir / "tasks/acme__calc"
    with pytest.raises(TaskError, match="there: acme/calc"):
        folder.find("acme/other")


def test_a_folder_that_is_no_task_set_hides_none(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("parse").mkdir()
    with pytest.raises(TaskError, match=r"^parse: the folder of that name is no task directory \(.*; there: none yet;"):
        folder.find("parse")
    calc.write(folder.default("parse"))
    calc.write(folder.default("pathspec-1.1.1"))
    assert folder.find("parse") == folder.default("parse")
    (Path("parse") / "repository.toml").touch()
    assert folder.find("parse") == Path("parse"), "what is at hand comes first"
    for wrong in ("pathspec", "pathspce-1.1.1"):
        with pytest.raises(TaskError, match=r"did you mean pathspec-1\.1\.1\? \(there: parse, pathspec-1\.1\.1\)"):
            folder.find(wrong)
    Path("rows").touch()
    assert folder.find("rows") == Path("rows"), "a file of rows"
