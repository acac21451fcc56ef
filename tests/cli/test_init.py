"""`valve init`: what it finds, where it puts the bank, and that it changes nothing twice."""

from __future__ import annotations

import shutil
import venv
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.test_checkout import checkout  # noqa: F401  (a fixture)
from tests.tools import git, put
from valve_plugin import config
from valve_plugin.bank.store import BankStore
from valve_plugin.checkout import find
from valve_plugin.cli.init import detect_name, detect_tests
from valve_plugin.records import Attempt


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_source_tree_without_git(project: Path, valve: Run) -> None:
    (project / "tests").mkdir()
    (project / "tests/test_a.py").write_text("")
    made = valve("init", "--json")
    assert made["created"] is True
    assert made["bank"] == str(project / ".valve")
    assert made["found"]["repo"] == {"value": "project", "how": "name of the folder (no git here)"}
    assert made["found"]["test_command"] == {"value": "python -m pytest", "how": "tests/test_a.py"}
    settings = config.load(project / ".valve")
    assert (settings.repo, settings.test_command) == ("project", "python -m pytest")
    assert BankStore.open(project / ".valve").bank.repo == "project"


def test_a_second_time_changes_nothing(project: Path, valve: Run) -> None:
    valve("init")
    before = contents(project)
    again = valve("init", "--repo", "other/name", "--json")
    assert again["created"] is False
    assert "nothing was changed" in valve("init")
    assert "nothing was changed" in valve("init", "--private")
    assert contents(project) == before


def test_what_a_bank_has_is_kept_and_shown(project: Path, valve: Run) -> None:
    valve("init", "--test-command", "tox -e a")
    again = valve("init", "--test-command", "tox -e b", "--json")["found"]["test_command"]
    assert again["value"] == "tox -e a" == config.load(project / ".valve").test_command
    assert "kept; for tox -e b, edit" in again["how"]
    assert str(project / ".valve" / "valve.toml") in valve("init", "--test-command", "tox -e b")


def test_only_the_repositorys_own_bank_is_one_to_commit(project: Path, valve: Run) -> None:
    git(project, "init", "-q")
    assert "Commit it" not in valve("init", "--bank", "trial-bank")
    assert "Commit it" in valve("init")


def test_home_is_hardly_meant(project: Path, tmp_path: Path, valve: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project))
    valve("init", code=2)
    assert "is not a repository" in valve.err
    valve("init", "/", "--bank", str(tmp_path / "root"), code=2)
    assert not (project / ".valve").exists()


@pytest.mark.parametrize("name", ["bad name", "a/b;rm", "/a", "a//b", "é/x", "a/b\n"])
def test_a_name_is_owner_and_name(project: Path, valve: Run, name: str) -> None:
    valve("init", "--repo", name, code=2)
    assert not (project / ".valve").exists()


def test_a_package_folder_and_its_whole_repository(checkout: Path, data_dir: Path, valve: Run) -> None:  # noqa: F811
    package = valve("init", str(checkout / "packages/api/src"), "--json")
    assert package["bank"] == str(checkout / "packages/api/.valve")
    assert package["found"]["repo"]["value"] == "owner/name/packages/api"
    whole = valve("init", str(checkout), "--json")
    assert (whole["created"], whole["bank"]) == (True, str(checkout / ".valve"))


def test_a_worktree_gets_a_bank_of_its_own_and_shares_the_private_one(
    checkout: Path,  # noqa: F811
    data_dir: Path,
    tmp_path: Path,
    valve: Run,
) -> None:
    other = tmp_path / "other"
    git(checkout, "worktree", "add", str(other))
    private = valve("init", str(other), "--private", "--json")
    assert Path(private["bank"]).is_relative_to(data_dir)
    assert valve("init", str(checkout), "--private", "--json") == {
        **private, "created": False, "folder": str(checkout),
    }  # fmt: skip
    assert not (other / ".valve").exists()
    assert valve("init", str(other), "--json")["bank"] == str(other / ".valve")


def test_elsewhere(project: Path, tmp_path: Path, valve: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert valve("init", "--bank", str(tmp_path / "mine"), "--json")["bank"] == str(tmp_path / "mine")
    monkeypatch.setenv("VALVE_BANK", str(tmp_path / "from-environment"))
    assert valve("init", "--json")["bank"] == str(tmp_path / "from-environment")
    assert not (project / ".valve").exists()


def test_what_is_in_the_way_stays(project: Path, valve: Run) -> None:
    (project / ".valve").mkdir()
    (project / ".valve/notes.txt").write_text("mine")
    valve("init", code=2)
    assert contents(project / ".valve") == {"notes.txt": b"mine"}
    assert "not a bank" in valve.err


def test_settings_that_are_there_and_cannot_be_used_stop_it(project: Path, valve: Run) -> None:
    (project / ".valve").mkdir()
    (project / ".valve/valve.toml").write_text("rho = [")
    valve("init", code=2)
    assert contents(project / ".valve") == {"valve.toml": b"rho = ["}
    assert "valve.toml: not valid TOML" in valve.err
    for words in ((), ("connect", "codex", "--yes"), ("connect", "claude", "--yes"), ("bank", "list")):
        valve(*words, code=2)
        assert "valve.toml: not valid TOML" in valve.err
    assert not (project / ".claude").exists()


def test_wrong_use(project: Path, valve: Run) -> None:
    valve("init", "--bank", "x", "--private", code=2)
    valve("init", "no/such/folder", code=2)
    assert contents(project) == {"pyproject.toml": b""}


NPM = '{"scripts": {"test": "vitest"}}'
NPM_DEFAULT = '{"scripts": {"test": "echo \\"Error: no test specified\\" && exit 1"}}'


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({"pyproject.toml": "[tool.pytest.ini_options]", "package.json": NPM}, "python -m pytest"),
        ({"tox.ini": "[testenv]"}, "tox"),
        ({"package.json": NPM}, "npm test"),
        ({"package.json": NPM_DEFAULT}, ""),
        ({"build.gradle": "", "gradlew": ""}, "./gradlew test"),
        ({"Makefile": "all:\n\ntest: all\n\t./run\n"}, "make test"),
        ({"Makefile": "test := x\n"}, ""),
    ],
)
def test_how_tests_are_run(tmp_path: Path, files: dict[str, str], command: str) -> None:
    assert detect_tests(put(tmp_path, files)).value == command


@pytest.mark.parametrize(
    ("files", "installed", "command"),
    [
        ({"test_a.py": "from unittest import TestCase"}, False, "python -m unittest"),
        ({"test_a.py": "from unittest import TestCase"}, True, "python -m pytest"),
        ({"test_a.py": "import unittest\nimport pytest\n"}, False, "python -m pytest"),
        ({"test_a.py": "def test_a(): pass"}, False, "python -m pytest"),
        ({"pytest.ini": "", "test_a.py": "import unittest"}, False, "python -m pytest"),
        ({"tests/test_a.py": "import unittest"}, False, "python -m unittest discover tests"),
        ({"tests/test_a.py": "import unittest", "tests/__init__.py": ""}, False, "python -m unittest"),
        ({"toolz/tests/test_core.py": "import pytest", "toolz/__init__.py": ""}, False, "python -m pytest"),
    ],
)
def test_unittest_runs_what_needs_no_more_where_pytest_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], installed: bool, command: str
) -> None:
    bare = tmp_path / "bare"
    venv.create(bare, with_pip=False, symlinks=True)
    if installed:
        put(next(bare.glob("lib/python*/site-packages")), {"pytest/__init__.py": ""})
    monkeypatch.setenv("PATH", f"{bare / 'bin'}")
    assert detect_tests(put(tmp_path / "project", files)).value == command


def test_what_a_bank_that_is_gone_left_is_told(project: Path, tmp_path: Path, valve: Run) -> None:
    first = tmp_path / "first"
    valve("init", "--bank", str(first), "--repo", "owner/name")
    local = BankStore.open(first).local
    local.remember_bank()
    local.add_attempt(Attempt(id="a", task_id="t", ordinal=0, source="live", outcome="resolved"))
    assert "earlier bank" not in valve.err
    shutil.rmtree(first)
    valve("init", "--bank", str(tmp_path / "second"), "--repo", "owner/name")
    assert "1 attempt of an earlier bank of owner/name, which is gone" in valve.err


def test_what_comes_next_is_the_same_where_no_test_command_was_found(project: Path, valve: Run) -> None:
    said = valve("init").splitlines()
    assert "valve.toml: `test_command = " in said[-2]
    (project / "tests").mkdir()
    (project / "tests/test_a.py").write_text("")
    found = valve("init", "--bank", "other").splitlines()[-1]
    assert ("doctor" in said[-1], "doctor" in found) == (True, True)


def test_binary_files_are_survived(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\x00" * 100)
    (tmp_path / "package.json").symlink_to("/dev/zero")
    assert detect_tests(tmp_path).value == ""


@pytest.mark.parametrize(
    ("files", "value"),
    [
        ({"pyproject.toml": '[project]\nname = "isodate"\n'}, "isodate"),
        ({"setup.cfg": "[metadata]\nname = h2\n"}, "h2"),
        ({"pyproject.toml": '[project]\nname = "../up"\n'}, "isodate-0.7.2"),
        ({"pyproject.toml": "\xff["}, "isodate-0.7.2"),
    ],
)
def test_without_a_remote_a_repository_is_called_as_its_project(
    tmp_path: Path, files: dict[str, str], value: str
) -> None:
    folder = tmp_path / "isodate-0.7.2"
    put(folder, files)
    assert detect_name(find(folder)).value == value
    (folder / ".git").mkdir()
    (folder / ".git/config").write_text('[remote "origin"]\n\turl = https://example.org/owner/name.git\n')
    assert detect_name(find(folder)).value == "owner/name"
