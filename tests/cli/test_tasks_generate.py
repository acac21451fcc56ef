"""`valve tasks generate`, from a source tree to tasks that verify; SWE-smith's candidates are given."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import calc
from tests.cli.conftest import Run
from tests.lean import lean
from tests.tools import need_module
from valve_plugin.tasks import task_set
from valve_plugin.tasks.make import candidates, generate
from valve_plugin.tasks.make.candidates import Candidate
from valve_plugin.tasks.task_set import load


def candidate(name: str, source: str) -> Candidate:
    return Candidate(modifier=name, file="calc/ops.py", digest="1", patch=calc.change(calc.OPS, source))


CANDIDATES = [
    candidate("nothing", calc.OPS.replace("Arithmetic", "Sums")),
    candidate("clamp", calc.BUGGY),
    candidate("clamp_again", calc.WRONG_FIX),  # the same tests fail
    candidate("plus", calc.OPS.replace("a + b", "a - b")),
]


@pytest.fixture
def tree(project: Path) -> Path:
    """The little repository in the current directory."""
    for name, text in calc.FILES.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
    return project


def test_a_missing_extra_is_said_before_the_source_is_read(
    tree: Path, valve: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "swesmith", None)
    monkeypatch.setattr("valve_plugin.tasks.make.define.read_source", lambda *_: pytest.fail("read"))
    valve("tasks", "generate", "--unsafe-local", "--out", str(tree.parent / "made"), code=2)
    assert "the extra `smith`, 0.9 GB, is needed: " in valve.err
    assert "-m pip install swebench==4.1.0 'swesmith[generate,validate]==0.0.9'" in valve.err


def test_tasks_of_a_source_tree(tree: Path, valve: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "load_modifiers", lambda: None)
    monkeypatch.setattr(candidates, "find_candidates", lambda *_: CANDIDATES)
    venv = str(lean())
    options = ["--python", venv, "--unsafe-local", "--repo", "acme/calc"]
    made = valve("tasks", "generate", "--n", "2", *options, "--json")
    assert (made["tasks"], made["wanted"]) == (2, 2)
    found = load(task_set.default_folder("acme/calc"))
    first = sorted(t.instance_id.split(".")[-1] for t in found.tasks)
    assert "plus__1" in first, "of two bugs in the same lines one is tried first"
    assert all("With an earlier commit the following worked" in t.problem_statement for t in found.tasks)
    assert not (tree / ".valve").exists()

    tries = generate.try_candidate
    monkeypatch.setattr(generate, "try_candidate", lambda *_: pytest.fail("tried again"))
    monkeypatch.setattr("valve_plugin.tasks.make.generate.stable_suite", lambda *_: pytest.fail("run again"))
    rows = task_set.default_folder("acme/calc") / "tasks.jsonl"
    before = rows.read_bytes()
    assert "2 verified tasks; " in valve("tasks", "generate", "--n", "2", *options)
    assert rows.read_bytes() == before
    monkeypatch.setattr(generate, "try_candidate", tries)
    said = valve("tasks", "generate", "--n", "9", *options, code=1)
    assert "   1 dropped: no test notices it\n3 verified tasks (9 wanted" in said
    assert f"--seed 1 --out {rows.parent}-seed-1" in valve.err
    three = rows.read_bytes()
    assert "3 verified tasks" in valve("tasks", "generate", "--n", "2", *options)
    assert rows.read_bytes() == three
    assert "3 tasks are kept: --n says how many there are at least" in valve.err
    valve("split", "acme/calc", "--holdout", "1", "--panel", "1", "--by", "bug")
    monkeypatch.setattr(candidates, "find_candidates", lambda *_: pytest.fail("the refusal comes before the search"))
    said = "has 3 tasks (3 of them in its split); the new set would lack 3 of them"
    valve("tasks", "generate", "--n", "9", "--seed", "1", *options, code=2)
    assert said in valve.err
    assert f"--out {rows.parent}-2" in valve.err
    monkeypatch.setattr(candidates, "find_candidates", lambda *_: CANDIDATES[:2])
    (tree / "calc/new.py").write_text("")  # another source
    valve("tasks", "generate", "--n", "9", *options, code=2)
    assert said in valve.err
    assert rows.read_bytes() == three


def test_a_name_that_is_none_is_refused(tree: Path, valve: Run) -> None:
    valve("tasks", "generate", "--repo", "a/b/c", "--unsafe-local", code=2)
    assert "repository name 'a/b/c', expected owner/name" in valve.err


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_a_library_from_its_source_archive(project: Path, valve: Run) -> None:
    need_module("swesmith")
    made = valve("tasks", "generate", "pypi:funcy==2.0", "--n", "3", "--workers", "2", "--json")
    assert made["tasks"] == 3
    checked = valve("tasks", "verify", "funcy", "--times", "1", "--json")
    assert [task["findings"] for task in checked["tasks"]] == [[], [], []]
