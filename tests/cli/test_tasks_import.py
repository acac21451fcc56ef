"""`valve tasks import`, from rows over a source tree and from the branches of a clone."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests import calc
from tests.cli.conftest import Run
from tests.lean import lean
from tests.tools import git, put
from valve_plugin.tasks import task_set
from valve_plugin.tasks.repository import find_prepared
from valve_plugin.tasks.states import gold_patch, task_states
from valve_plugin.tasks.task_set import load


def git_diff(where: Path, after: str, *options: str) -> str:
    """Return what another diff says about the same change: less context, other names in the header."""
    for side, text in (("a", calc.OPS), ("b", after)):
        put(where / "diff" / side, {"calc/ops.py": text})
    words = ["git", "diff", "--no-index", *options, "a/calc/ops.py", "b/calc/ops.py"]
    text = subprocess.run(words, cwd=where / "diff", capture_output=True, text=True, check=False).stdout
    return text.replace("x/a/", "x/").replace("y/b/", "y/")


def rows(where: Path, *more: dict[str, object]) -> str:
    path = where / "rows.jsonl"
    repo = "swesmith/acme__calc.0123abcd"
    made = [calc.row(repo=repo, FAIL_TO_PASS=json.dumps(calc.F2P)), *more]
    path.write_text("".join(json.dumps({**row, "repo": repo}) + "\n" for row in made))
    return str(path)


def test_rows_over_a_source_tree(project: Path, valve: Run, tmp_path: Path) -> None:
    tree = put(tmp_path / "tree", calc.FILES)
    tests = calc.change(calc.TEST_OPS, calc.TEST_OPS + "# more\n", "tests/test_ops.py")
    other = calc.change(calc.OPS, calc.WRONG_FIX)
    given = rows(
        tmp_path,
        calc.row(instance_id="empty", FAIL_TO_PASS=[]),
        calc.row(instance_id="again"),
        calc.row(problem_statement="other", patch=other),
        calc.row(instance_id="elsewhere", patch=calc.change("x\n", "y\n")),
        calc.row(instance_id="list", FAIL_TO_PASS="[broken"),
        calc.row(instance_id="wordless", problem_statement=None, patch=other.rstrip("\n")),
        calc.row(instance_id="few", patch=git_diff(tmp_path, calc.BUGGY, "-U1", "--src-prefix=x/", "--dst-prefix=y/")),
        calc.row(instance_id="touches", patch=calc.change(calc.OPS, calc.BUGGY + "#\n") + tests),
        calc.row(instance_id="mapped", patch=calc.change(calc.OPS, "#\n"), PASS_TO_PASS=["[100%]"]),
        calc.row(instance_id="odd/id"),
        calc.row(instance_id="x" * 301),
    )
    options = ["--source", str(tree), "--python", str(lean()), "--unsafe-local"]
    made = valve("tasks", "import", given, *options, "--json", code=1)
    assert (made["repository"], made["tasks"]) == ("acme/calc", 2)
    expected = [
        "line 2: empty: FAIL_TO_PASS is empty",
        "line 3: again: the same bug as line 1",
        "line 4: acme__calc.1.func_pm_x__1: the same instance_id as line 1",
        "line 5: elsewhere: its patch does not apply",
        "line 6: list: FAIL_TO_PASS is neither",
        "line 8: few: the same bug as line 1",
        "line 9: touches: its patch changes tests/test_ops.py, a test file",
        "line 10: mapped: its tests include '[100%]', which this source cannot have",
        "line 11: odd/id: instance_id 'odd/id' has '/'; expected letters",
        f"line 12: {'x' * 80}: instance_id '{'x' * 40}'… has 301 characters, expected at most 300",
    ]
    assert [r[: len(e)] for r, e in zip(made["refusals"], expected, strict=True)] == expected
    tasks = load(task_set.default_folder("acme/calc")).tasks
    assert tasks[0].fail_to_pass == calc.F2P
    assert tasks[1].problem_statement.startswith("high: ")
    assert "def test_high(self):" in tasks[1].problem_statement
    assert "2 tasks imported, 10 refused" in valve("tasks", "import", given, *options, code=1)


def test_a_fix_that_does_not_resolve_is_told(project: Path, valve: Run, tmp_path: Path) -> None:
    tests = "import pytest\n\n@pytest.fixture\ndef base(): raise OSError('no server')\n\ndef test_base(base): pass\n"
    tree = put(tmp_path / "tree", {**calc.FILES, "tests/test_base.py": tests})
    given = rows(
        tmp_path,
        calc.row(
            instance_id="a",
            patch=calc.change(calc.OPS, calc.BUGGY + "#\n"),
            FAIL_TO_PASS=["tests/test_base.py::test_base"],
        ),
    )
    valve("tasks", "import", given, "--source", str(tree), "--python", str(lean()), "--unsafe-local")
    assert "a cannot be resolved, not even by its fix: tests/test_base.py::test_base" in valve.err
    assert "no server" in valve.err


def test_branches_of_a_clone(project: Path, valve: Run, tmp_path: Path) -> None:
    clone = put(tmp_path / "clone", calc.FILES)
    name = str(calc.row()["instance_id"])
    git(clone, "init", "-q")
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", "source")
    git(clone, "checkout", "-qb", name)
    put(clone, {"calc/ops.py": calc.BUGGY})
    git(clone, "commit", "-qam", "bug")
    (clone / "tests/test_ops.py").unlink()
    git(clone, "commit", "-qam", "no tests")
    git(clone, "checkout", "-q", "main")
    put(clone, {"calc/ops.py": "moved_on = True\n"})
    git(clone, "commit", "-qam", "later")
    given = rows(tmp_path, calc.row(instance_id="nowhere"))
    options = ["--clone", str(clone), "--python", str(lean())]
    made = valve("tasks", "import", given, *options, "--json", code=1)
    assert made["tasks"] == 1
    assert made["refusals"] == [
        "line 2: nowhere: the clone has no branch of that name; fetch it with git, or give --source"
    ]
    task = load(task_set.default_folder("acme/calc")).tasks[0]
    assert task_states(find_prepared("acme/calc"), task)
    assert "+        return high" in gold_patch(find_prepared("acme/calc"), task)


def test_what_the_rows_change_must_be_said(project: Path, valve: Run, tmp_path: Path) -> None:
    given = rows(tmp_path)
    valve("tasks", "import", given, code=2)
    assert "give --source PATH or --source pypi:NAME==VERSION" in valve.err
    named = tmp_path / "named.jsonl"
    named.write_text(json.dumps(calc.row(image_name="nowhere/none:1")) + "\n")
    valve("tasks", "import", str(named), code=None)
    assert (
        valve.err.index("--source PATH") < valve.err.index("--clone PATH") < valve.err.index("the image nowhere/none:1")
    )
    valve("tasks", "import", given, "--source", "a", "--clone", "b", code=2)
    assert "give one of them" in valve.err
    shutil.copytree(calc.write(tmp_path / "known"), task_set.default_folder("acme/calc"))
    (task_set.default_folder("acme/calc") / "tasks.jsonl").unlink()
    assert valve("tasks", "import", given, "--json")["tasks"] == 1


def test_a_clone_that_is_none(project: Path, valve: Run, tmp_path: Path) -> None:
    valve("tasks", "import", rows(tmp_path), "--clone", str(tmp_path), code=2)
    assert "not a git repository" in valve.err


def test_rows_that_are_none_are_told_what_they_lack(project: Path, valve: Run, tmp_path: Path) -> None:
    path = tmp_path / "none.jsonl"
    path.write_text('{"a": 1}\n\n' + json.dumps(calc.row(FAIL_TO_PASS=None, repo="acme/calc")) + "\n")
    assert valve("tasks", "import", str(path), code=1) == (
        "refused  line 1: lacks repo, instance_id, patch, FAIL_TO_PASS\nrefused  line 3: lacks FAIL_TO_PASS\n"
        "0 tasks imported, 2 refused\n"
    )
    assert valve.err.startswith("a row is SWE-smith's: repo, instance_id")
    assert valve("tasks", "import", str(path), "--json", code=1)["refusals"][0].startswith("line 1: lacks repo")
    with path.open("a") as file:
        file.write(json.dumps(calc.row(repo="acme/calc")) + "\n")
    tree = put(tmp_path / "tree", calc.FILES)
    options = ["--source", str(tree), "--python", str(lean()), "--json"]
    made = valve("tasks", "import", str(path), *options, code=1)
    assert made["tasks"] == 1
    assert [refusal.split(": ")[0] for refusal in made["refusals"]] == ["line 1", "line 3"]
    assert "lacks repo, instance_id, patch, FAIL_TO_PASS" in made["refusals"][0]


def test_rows_of_other_repositories_are_told_and_counted(project: Path, valve: Run, tmp_path: Path) -> None:
    mine, other = calc.row(repo="acme/calc"), calc.row(repo="swesmith/seperman__deepdiff.ed252022")
    given = [
        other,
        mine,
        {**other, "repo": "a/b"},
        {**mine, "instance_id": "again"},
        other,
        {"instance_id": "nobody's"},
    ]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(given))
    tree = put(tmp_path / "tree", calc.FILES)
    options = ["--repo", "acme/calc", "--source", str(tree), "--python", str(lean())]
    made = valve("tasks", "import", str(path), *options, "--json", code=1)
    assert (made["tasks"], made["left_out"]) == (1, 3)
    assert made["other_repositories"] == {"swesmith/seperman__deepdiff.ed252022": 2, "a/b": 1}
    assert [refusal.split(": ")[0] for refusal in made["refusals"]] == ["row 4", "row 6"]
    assert "the same bug as row 2" in made["refusals"][0]
    said = valve("tasks", "import", str(path), *options, code=1)
    assert "1 task imported, 2 refused, 3 rows about other repositories left out; " in said
    told = "3 rows about other repositories left out: seperman/deepdiff (2), a/b (1)\n"
    assert told in valve.err
