"""Workspaces: what the agent gets, what it can reach, and what its changes are."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests import calc
from tests.sandbox.support import dig
from tests.tools import put
from valve_plugin.errors import TaskError
from valve_plugin.paths import data_dir
from valve_plugin.records import Task
from valve_plugin.sandbox import workspace as workspaces
from valve_plugin.sandbox.git import apply_patch, git
from valve_plugin.sandbox.workspace import Workspace
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.tasks.states import open_task, task_states

Calc = tuple[PreparedRepository, Task]


def in_git(workspace: Workspace, *words: str) -> str:
    """Run git as the agent would; the owner is another one when the tests run as root."""
    command = ["git", "-c", "safe.directory=*", *words]
    return subprocess.run(command, cwd=workspace.path, check=True, capture_output=True, text=True).stdout


def applied(calc_task: Calc, patch: str, tmp_path: Path) -> str | None:
    """Return the tree the patch makes of the tip."""
    return apply_patch(calc_task[0].store, task_states(*calc_task).tip, patch, tmp_path / "index")


def test_holds_the_bug_without_the_failing_tests(place: Workspace) -> None:
    assert workspaces.diff(place) == ""
    assert (place.path / "calc/ops.py").read_text() == calc.BUGGY
    assert not (place.path / "tests/test_ops.py").exists()
    assert (place.path / "tests/test_other.py").exists()


def test_has_one_commit_and_nothing_else_in_its_objects(place: Workspace) -> None:
    assert in_git(place, "rev-list", "--all", "--count") == "1\n"
    assert in_git(place, "status", "--porcelain") == ""
    objects = in_git(place, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").split()
    reachable = {line.split()[0] for line in in_git(place, "rev-list", "--objects", "--all").splitlines()}
    assert set(objects) == reachable
    contents = [in_git(place, "cat-file", "-p", name) for name in objects]
    assert not any(content == calc.OPS or "test_high" in content for content in contents)


def test_nothing_in_it_names_the_store_or_the_task(place: Workspace, calc_task: Calc) -> None:
    prepared, task = calc_task
    for folder, _, files in os.walk(place.path):
        for name in files:
            content = (Path(folder) / name).read_bytes()
            assert str(prepared.store).encode() not in content, name
            assert task.instance_id.encode() not in content, name


def test_every_kind_of_change_comes_back(place: Workspace, calc_task: Calc, tmp_path: Path) -> None:
    root = place.path
    (root / "calc/new.py").write_text("x = 1\n")
    (root / "calc/empty.py").touch()
    (root / "README.md").unlink()
    (root / "data.bin").write_bytes(bytes(range(256)))
    (root / "latin.txt").write_bytes("é".encode("latin-1"))
    (root / ".gitattributes").write_text("* diff text\n")
    (root / "naïve name\n.txt").write_text("x")
    (root / "calc/ops.py").chmod(0o755)
    (root / "link").symlink_to("calc/ops.py")
    patch = workspaces.diff(place)
    prepared, _ = calc_task
    tree = applied(calc_task, patch, tmp_path)
    listing = git("ls-tree", "-r", "-z", str(tree), git_dir=prepared.store).decode()
    modes = {line.split("\t")[1]: line.split()[0] for line in listing.split("\0")[:-1]}
    assert modes["calc/ops.py"] == "100755"
    assert modes["link"] == "120000"
    assert "README.md" not in modes
    assert {"calc/new.py", "calc/empty.py", "naïve name\n.txt"} <= modes.keys()
    for name in ("data.bin", "latin.txt"):
        assert git("show", f"{tree}:{name}", git_dir=prepared.store) == (root / name).read_bytes()


def test_what_the_agent_does_to_its_git_does_not_matter(place: Workspace) -> None:
    (place.path / "calc/ops.py").write_text(calc.OPS)
    expected = workspaces.diff(place)
    commit = "git -c safe.directory='*' -c user.name=a -c user.email=a@b commit -qam done"
    for command in (commit, "rm -rf .git", "echo 'gitdir: /nowhere' > .git"):
        subprocess.run(["sh", "-c", command], cwd=place.path, check=True)
        assert workspaces.diff(place) == expected, command


def test_nothing_of_the_agents_git_runs_on_the_host(place: Workspace, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    hostile = f'[core]\n\tfsmonitor = touch {trap}\n\thooksPath = .\n[filter "x"]\n\tclean = touch {trap}\n'
    (place.path / ".git/config").write_text(hostile)
    (place.path / ".gitattributes").write_text("* filter=x diff=x\n")
    (place.path / "calc/new.py").write_text("x = 1\n")
    assert "calc/new.py" in workspaces.diff(place)
    assert not trap.exists()


def test_symbolic_links_are_not_followed_to_the_host(place: Workspace, tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text("SECRET\n")
    subprocess.run(["rm", "-rf", "calc"], cwd=place.path, check=True)
    (place.path / "calc").symlink_to(tmp_path)
    patch = workspaces.diff(place)
    assert "SECRET" not in patch
    assert f"+{tmp_path}" in patch


def test_nested_repositories_pipes_and_locked_folders_do_not_break_it(place: Workspace) -> None:
    (place.path / "inner").mkdir()
    subprocess.run(["git", "init", "-q", "inner"], cwd=place.path, check=True)
    (place.path / "inner/x.py").write_text("x = 1\n")
    os.mkfifo(place.path / "pipe")
    os.mkfifo(place.path / "calc/.gitignore")
    (place.path / "calc/new.py").write_text("z = 1\n")
    (place.path / "calc/new.py").chmod(0)
    (place.path / "locked").mkdir()
    (place.path / "locked/y.py").write_text("y = 1\n")
    (place.path / "locked").chmod(0)
    patch = workspaces.diff(place)
    assert all(line in patch for line in ("inner/x.py", "locked/y.py", "+z = 1"))
    assert "pipe" not in patch


def test_leavings_of_test_runs_and_ignored_files_stay_out(place: Workspace) -> None:
    left = ("calc/__pycache__/ops.cpython-311.pyc", ".pytest_cache/x", "build/out.txt")
    put(place.path, dict.fromkeys(left, "x"))
    (place.path / ".gitignore").write_text("build/\ncalc/ops.py\n")
    (place.path / "calc/ops.py").write_text(calc.OPS)
    patch = workspaces.diff(place)
    assert "build/" not in patch.replace("+build/", "")
    assert "pycache" not in patch
    assert ".pytest_cache" not in patch
    assert "calc/ops.py" in patch.replace("+calc/ops.py", "")  # tracked: ignoring it changes nothing


def test_a_huge_patch_is_refused_with_its_size(place: Workspace) -> None:
    (place.path / "huge.txt").write_bytes(b"0123456789abcde\n" * 700_000)
    with pytest.raises(TaskError, match=r"the patch has 1\d,\d{3},\d{3} bytes"):
        workspaces.diff(place)


@pytest.mark.parametrize(("depth", "name"), [(1500, "a"), (40, "a" * 200)])
def test_a_path_longer_than_any_call_takes_is_the_agent_s_doing(place: Workspace, depth: int, name: str) -> None:
    dig(place.path, depth, name)
    with pytest.raises(TaskError, match=r"the path a[a/]*… has more than 2,048 bytes"):
        workspaces.diff(place)


def test_no_more_is_read_than_a_patch_may_have(place: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        with (place.path / f"sparse{number}").open("wb") as file:
            file.truncate(500_000_000)
    monkeypatch.setattr(workspaces, "_read", lambda *_: pytest.fail("it was read"))
    with pytest.raises(TaskError, match=r"the files have 15,000,\d{3},\d{3} bytes, expected at most 2,147,483,648"):
        workspaces.diff(place)
    for number in range(1, 30):
        (place.path / f"sparse{number}").unlink()
    with pytest.raises(TaskError, match="the new files have 500,000,000 bytes, expected at most 100,000,000"):
        workspaces.diff(place)
    (place.path / "sparse0").replace(place.path / "calc/ops.py")
    monkeypatch.setattr(workspaces, "_read", lambda *_: iter([b"x"]))
    with pytest.raises(TaskError, match="the changed files have 500,000,"):
        workspaces.diff(place)


def test_git_does_not_read_ignore_files_of_any_size(place: Workspace) -> None:
    """It keeps each line in memory: 500 MB of them would be 18 GB."""
    for folder in ("", "calc", "tests"):
        (place.path / folder / ".gitignore").write_bytes(b"x\n" * 800_000)
    with pytest.raises(TaskError, match=r"the \.gitignore files have 4,800,000 bytes, expected at most 4,000,000"):
        workspaces.diff(place)


def test_is_removed_whatever_happened_inside(calc_task: Calc) -> None:
    with suppress(RuntimeError), open_task(*calc_task) as place:
        (place.path / "calc").chmod(0)
        raise RuntimeError
    assert [p.name for p in (data_dir() / "workspaces").iterdir() if p.is_dir()] == []


def test_a_bad_row_says_what_is_wrong(calc_task: Calc) -> None:
    prepared, task = calc_task
    wrong = replace(task, instance_id="x", patch=calc.change("other\n", "text\n"))
    with pytest.raises(TaskError, match="x: its patch does not apply to acme/calc"):
        task_states(prepared, wrong)
    nowhere = replace(task, instance_id="y", fail_to_pass=("tests/test_no.py::t",))
    with pytest.raises(TaskError, match=r"y: no such test file: tests/test_no\.py"):
        task_states(prepared, nowhere)
