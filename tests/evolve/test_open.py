"""Rollouts of one task set answer for no other that has the same bugs under the same ids."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from tests.calc import BUGGY, FILES, OPS, change, row, write
from tests.evolve import library
from tests.evolve.test_ledger import ledger
from tests.tasks.test_split import tasks
from tests.tools import need
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import app
from valve_plugin.config import Settings
from valve_plugin.errors import TaskError
from valve_plugin.evolve.open import GRADING_FILE, choose_panel, open_run, stream_of
from valve_plugin.tasks.repository import Repository
from valve_plugin.tasks.task_set import TaskSet

Change = Callable[[Path], None]


@pytest.fixture
def run(installed: None, tmp_path: Path) -> Callable[[Path], Result]:
    """Evolve one bank on a task set, as far as its first task."""
    given = ("--bank", str(tmp_path / "bank"), "--panel-size", "2", "--rollouts", "1", "--limit", "1")
    return lambda tasks: CliRunner().invoke(app, ["evolve", *library.TOY, str(tasks), *given])


def remade(calc: Path, out: Path, change: Change) -> Path:
    shutil.copytree(calc, out, symlinks=True)
    change(out)
    return out


def rows(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = folder / "tasks.jsonl"
    every = [json.loads(line) for line in file.read_text().splitlines()]
    for one in every:
        change(one)
    file.write_text("".join(json.dumps(one) + "\n" for one in every))


def later_source(folder: Path) -> None:
    (folder / "source").rename(folder / "later")
    with (folder / "later/tests/test_core.py").open("a") as file:
        file.write("\n\ndef test_more():\n    assert total([]) == 0\n")
    definition = folder / "repository.toml"
    definition.write_text(definition.read_text().replace('"path:source"', '"path:later"'))


def fewer_guards(folder: Path) -> None:
    rows(folder, lambda row: row["PASS_TO_PASS"].pop())


def other_arguments(folder: Path) -> None:
    with (folder / "repository.toml").open("a") as file:
        file.write('pytest_args = ["-p", "no:cacheprovider"]\n')


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (later_source, "its source tree, hidden tests included, changed since"),
        (fewer_guards, "its PASS_TO_PASS changed since"),
        (
            other_arguments,
            "its repository.toml (where source and tests are, pytest_args, requirements, python) changed",
        ),
    ],
)
def test_tasks_that_are_graded_otherwise_are_refused_by_name(calc, run, tmp_path, change, said):
    assert run(calc).exit_code == 0
    bank = BankStore.open(tmp_path / "bank")
    ran, before = [r["task_id"] for r in bank.local.read_telemetry("rollouts")], ledger(tmp_path / "bank")
    refused = run(remade(calc, tmp_path / "remade", change))
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert any(f"{task}: its " in refused.stderr for task in ran)
    assert "or another bank with --bank DIR" in refused.stderr
    assert len(list(bank.local.read_telemetry("rollouts"))) == len(ran)
    assert run(calc).exit_code == 0, "those it ran on are still good"
    assert ledger(tmp_path / "bank") == before
    (bank.local.dir / GRADING_FILE).unlink()  # as an earlier version left it
    assert run(tmp_path / "remade").exit_code == 0
    assert run(calc).exit_code == 2


def test_what_decides_no_recorded_outcome_may_change(calc, run, tmp_path):
    assert run(calc).exit_code == 0
    bank = BankStore.open(tmp_path / "bank")
    ran = {record["task_id"] for record in bank.local.read_telemetry("rollouts")}

    def otherwise(folder: Path) -> None:
        (folder / "source").rename(folder / "moved")
        definition = folder / "repository.toml"
        definition.write_text(definition.read_text().replace('"path:source"', '"path:moved"'))
        rows(folder, lambda r: r["PASS_TO_PASS"].reverse() if r["instance_id"] in ran else r["PASS_TO_PASS"].pop())

    done = run(remade(calc, tmp_path / "remade", otherwise))
    assert done.exit_code == 0, done.stderr
    assert run(calc).exit_code == 0


def rows_that_need(folder: Path, *broken: str) -> Path:
    """Write three tasks, of which some have a test that writes into its own file."""
    writes = "from pathlib import Path\n\n\ndef test_writes():\n    Path(__file__).write_text('')\n"
    bugs = {"a": BUGGY, "b": OPS.replace("return a + b", "return a - b"), "c": OPS.replace("x < low", "x > low")}
    made = [row(instance_id=name, patch=change(OPS, bug)) for name, bug in bugs.items()]
    for one in made:
        if one["instance_id"] in broken:
            one["PASS_TO_PASS"] = ["tests/test_writes.py::test_writes"]
    return write(folder, made, files={**FILES, "tests/test_writes.py": writes})


def test_what_no_fix_resolves_is_told_before_a_model_is_paid_and_left_out(tmp_path: Path) -> None:
    need("bwrap")
    given = {"model": "gpt-4o-mini", "panel_size": 1, "rollouts": 1, "embedding": "hashing"}
    bank, said = tmp_path / "bank", list[str]()
    with open_run(str(rows_that_need(tmp_path / "some", "b")), str(bank), given, say=said.append) as run:
        panel = run.store.panel()
        assert panel
        assert {t.instance_id for t in (*panel.tasks, *run.stream)} == {"a", "c"}
    (line,) = (line for line in said if "not even by its fix" in line)
    assert "b cannot be resolved" in line
    assert "tests/test_writes.py::test_writes failed" in line
    assert "Read-only file system" in line
    assert "tmp_path" in line
    assert "--with" not in line
    every = str(rows_that_need(tmp_path / "all", "a", "b", "c"))
    with (
        pytest.raises(TaskError, match=r"no task can be resolved.*test_writes.*Read-only.*tmp_path"),
        open_run(every, str(tmp_path / "other"), given),
    ):
        pytest.fail("a run was opened")


@given(st.lists(st.integers(0, 6), min_size=4, max_size=12).filter(lambda bugs: len(set(bugs)) > 2))
def test_no_bug_is_in_the_panel_and_in_the_stream_nor_twice_in_one(bugs: list[int]) -> None:
    every = TaskSet(repository=Repository(name="acme/calc", source="path:x"), tasks=tuple(tasks(bugs)))
    panel = choose_panel(Settings(panel_size=2), every)
    named = [t.instance_id for t in (*panel.tasks, *stream_of(panel, every.tasks))]
    assert sorted(bugs[int(name.removeprefix("t"))] for name in named) == sorted(set(bugs))
