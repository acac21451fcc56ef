"""`valve tasks list|show|verify` and `valve split`, as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import calc
from tests.cli.conftest import Run
from tests.tools import git
from valve_plugin.tasks import task_set


@pytest.fixture
def tasks(data_dir: Path) -> Path:
    """A task set of four in user data."""
    rows = [calc.row(instance_id=f"task{n}", patch=calc.change(calc.OPS, calc.BUGGY + f"# {n}\n")) for n in range(4)]
    return calc.write(task_set.default_folder("acme/calc"), rows)


def test_listing(tasks: Path, project: Path, valve: Run) -> None:
    (found,) = valve("tasks", "list", "--all", "--json")
    assert (found["repository"], found["tasks"], found["split"]) == ("acme/calc", 4, False)
    assert "acme/calc\t4\t" in valve("tasks", "list", "--all")
    valve("tasks", "list", "acme/calc", "--all", code=2)
    assert "--all lists every task set" in valve.err
    listed = valve("tasks", "list", "acme/calc", "--json")["tasks"]
    assert listed[0] == {
        "instance_id": "task0", "files": ["calc/ops.py"], "fail_to_pass": 2, "pass_to_pass": 8, "part": ""
    }  # fmt: skip


def test_showing(tasks: Path, project: Path, valve: Run) -> None:
    shown = valve("tasks", "show", "acme/calc", "k1", "--patch")
    assert "clamp(10, 0, 9) is 0" in shown
    assert "+# 1" in shown
    assert valve("tasks", "show", str(tasks), "task2", "--json")["instance_id"] == "task2"
    valve("tasks", "show", code=2)
    assert "TASK is missing: an instance id" in valve.err
    valve("tasks", "show", "acme/calc", "task", code=2)
    assert "4 tasks have 'task' in their id" in valve.err
    valve("tasks", "show", "acme/calc", "tusk1", code=2)
    assert "did you mean 'task" in valve.err


def test_splitting(tasks: Path, project: Path, valve: Run) -> None:
    valve("split", "acme/calc", code=2)
    assert "4 tasks, expected at least 151" in valve.err
    assert "choose smaller sizes, such as --holdout 1 --panel 2, or make 147 more tasks\n" in valve.err
    small = ["split", "acme/calc", "--holdout", "1", "--panel", "2", "--by", "bug"]
    made = valve(*small, "--json")
    assert valve(*small, "--json") == made
    assert valve("split", "acme/calc", "--holdout", "1", "--panel-size", "2", "--by", "bug", "--json") == made
    for spelling in ("--panel", "--panel-size"):
        valve("evolve", "nowhere", spelling, "2", code=2)
        assert "nowhere: no such task directory" in valve.err
    assert len(made["stream"]) == 1
    parts = {t["instance_id"]: t["part"] for t in valve("tasks", "list", "acme/calc", "--json")["tasks"]}
    assert sorted(parts.values()) == ["holdout", "panel", "panel", "stream"]
    valve(*small, "--holdout-seed", "1", code=2)
    drawn = "holds a split already: holdout 1, panel 2, stream 1. It is not drawn again"
    assert drawn in valve.err
    assert "in no part" not in valve.err

    lines = (tasks / "tasks.jsonl").read_bytes()
    more = calc.row(instance_id="task9", patch=calc.change(calc.OPS, calc.BUGGY + "# 9\n"))
    (tasks / "tasks.jsonl").write_bytes(lines + json.dumps(more).encode() + b"\n")
    valve("split", "acme/calc", code=2)  # no word of the sizes, which are not the trouble
    assert drawn in valve.err
    assert "1 task is in no part of the split" in valve.err
    valve("tasks", "list", "acme/calc")
    assert "1 task is in no part of the split" in valve.err
    valve("evolve", "acme/calc", "--simulate", "--unsafe-local", "--panel-size", "3", code=2)
    assert "the panel of split.json has 2 tasks, --panel-size asks for 3" in valve.err


MANY = "".join(f"def f{n}(x):\n    y = x + {n}\n    return y\n\n\n" for n in range(9))


def test_bugs_in_one_function_are_in_one_part(data_dir: Path, project: Path, valve: Run) -> None:
    rows = [
        calc.row(instance_id=f"f{n}-{kind}", patch=calc.change(MANY, changed, "calc/many.py"))
        for n in range(9)
        for kind, changed in enumerate(
            [MANY.replace(f"+ {n}\n", f"- {n}\n"), MANY.replace(f"f{n}(x)", f"f{n}(x, z=1)")]
        )
    ]
    rows.append(calc.row(instance_id="again", patch=rows[0]["patch"], FAIL_TO_PASS=[calc.F2P[0]]))
    rows.append(calc.row(instance_id="else", patch=calc.change(calc.OPS, calc.BUGGY)))
    calc.write(task_set.default_folder("acme/calc"), rows, files={**calc.FILES, "calc/many.py": MANY})
    made = valve("split", "acme/calc", "--holdout", "5", "--panel", "6", "--json")
    parts = [
        {t["instance_id"].split("-")[0] for t in part} for part in (made["holdout"]["tasks"], made["panel"]["tasks"])
    ]
    parts.append({t["instance_id"].split("-")[0] for t in made["stream"]})
    assert [len(made["holdout"]["tasks"]), len(made["panel"]["tasks"])] == [5, 6]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 10
    assert "again" not in set.union(*parts)
    assert made["by"] == "function"
    valve("split", "acme/calc", "--holdout", "5", "--panel", "6", "--by", "file", code=2)
    assert "holds a split already" in valve.err
    (task_set.default_folder("acme/calc") / "split.json").unlink()
    valve("split", "acme/calc", "--holdout", "5", "--panel", "6", "--by", "file", code=2)
    assert "its 19 tasks are in 2 groups by file" in valve.err
    assert "groups     19  by bug; each is in one part" in valve(
        "split", "acme/calc", "--holdout", "5", "--panel", "6", "--by", "bug"
    )


def test_verifying(tasks: Path, project: Path, valve: Run) -> None:
    options = ["--unsafe-local", "--times", "1"]
    assert "1 of 1 task verified, 0 with findings" in valve("tasks", "verify", "acme/calc", "--limit", "1", *options)
    calc.write(tasks, [calc.row(FAIL_TO_PASS=["tests/test_other.py::test_middle"], PASS_TO_PASS=[])])
    said = valve("tasks", "verify", "acme/calc", *options, code=1)
    assert "empty passes: tests/test_other.py::test_middle passes without the fix" in said


REMOTES = {
    "mirror": "https://github.com/swesmith/acme__calc.0123abcd",
    "https": "https://user:secret@github.com/Acme/Calc.git/",
    "fork": "https://github.com/me/calc",
    "local clone": "../calc",
    "group": "https://gitlab.com/team/tools/calc.git",
}


def place(root: Path, situation: str) -> Path:
    """Make a checkout of acme/calc in a folder of another name; return the folder."""
    here = root / "renamed"
    here.mkdir()
    git(here, "init", "-q")
    git(here, "commit", "-q", "--allow-empty", "-m", "x")
    if situation in REMOTES:
        git(here, "remote", "add", "origin", REMOTES[situation])
    elif situation == "project file":
        (here / "pyproject.toml").write_text('[project]\nname = "calc"\n')
    elif situation == "worktree":
        git(here, "remote", "add", "upstream", REMOTES["https"])
        git(here, "worktree", "add", "-q", str(root / "tree"))
        return root / "tree"
    elif situation == "submodule":
        (root / "acme").mkdir()
        here.rename(root / "acme/calc")
        here.mkdir()
        git(here, "init", "-q")
        git(here, "submodule", "add", "-q", str(root / "acme/calc"), "libs/x")
        return here / "libs/x"
    return here


@pytest.mark.parametrize("situation", [*REMOTES, "project file", "worktree", "submodule"])
def test_a_checkout_by_another_name_finds_its_set(
    tasks: Path, valve: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, situation: str
) -> None:
    calc.write(task_set.default_folder("acme/other"))
    monkeypatch.chdir(place(tmp_path, situation))
    assert len(valve("tasks", "list", "--json")["tasks"]) == 4
    if situation in ("fork", "project file", "local clone"):  # it may be of either
        second = calc.write(task_set.default_folder("they/calc"))
        valve("tasks", "list", code=2)
        assert str(tasks) in valve.err
        assert str(second) in valve.err


@pytest.mark.parametrize(
    "command", ["tasks verify", "tasks list", "tasks show task0", "split --holdout 1 --panel 1 --by bug"]
)
def test_the_task_set_of_the_repository_one_is_in(project: Path, valve: Run, command: str) -> None:
    words = command.split()
    valve(*words, code=2)
    assert "there is no task set of project in user data; give TASKS" in valve.err
    rows = [calc.row(instance_id=f"task{n}", patch=calc.change(calc.OPS, calc.BUGGY + f"# {n}\n")) for n in range(3)]
    made = calc.write(task_set.default_folder("project__mined"), rows)
    options = ["--unsafe-local", "--times", "1", "--limit", "1"] if "verify" in words else []
    assert "task0" in json.dumps(valve(*words, *options, "--json", code=None))
    assert valve.err.startswith(f"task set: {made}\n")
    calc.write(task_set.default_folder("project"), [calc.row()])
    valve(*words, code=2)
    assert "there are 2 task sets of project, give one: " in valve.err
    assert "that of the repository you are in" in " ".join(valve(*words, "--help").split())
