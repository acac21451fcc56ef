"""`valve init`: what it finds, where it puts the bank, and that it changes nothing twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.test_checkout import checkout  # noqa: F401  (a fixture)
from tests.tools import git
from valve_plugin import config
from valve_plugin.bank.store import BankStore


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_source_tree_without_git(project: Path, valve: Run) -> None:
    (project / "tests").mkdir()
    (project / "tests/test_a.py").write_text("")
    made = valve("init", "--json")
    assert made["created"] is True
    assert made["bank"] == str(project / ".valve")
    assert made["found"]["repo"] == {"value": "project", "how": "name of the folder (no git here)"}
    assert made["found"]["language"]["value"] == "Python"
    assert made["found"]["test_command"] == {"value": "python -m pytest", "how": "tests/test_a.py"}
    settings = config.load(project / ".valve")
    assert (settings.repo, settings.language, settings.test_command) == ("project", "Python", "python -m pytest")
    assert BankStore.open(project / ".valve").bank.repo == "project"


def test_a_second_time_changes_nothing(project: Path, valve: Run) -> None:
    valve("init")
    before = contents(project)
    again = valve("init", "--repo", "other/name", "--json")
    assert again["created"] is False
    assert "nothing was changed" in valve("init")
    assert "nothing was changed" in valve("init", "--private")
    assert contents(project) == before


def test_a_source_archive_is_called_as_its_project_and_a_bank_keeps_its_name(project: Path, valve: Run) -> None:
    valve("init")
    (project / "pyproject.toml").write_text('[project]\nname = "isodate"\n')
    valve("init")
    assert BankStore.open(project / ".valve").bank.repo == "project"
    valve("tasks", "list", code=2)
    assert "there is no task set of project" in valve.err
    shutil.rmtree(project / ".valve")
    made = valve("init", "--json")["found"]["repo"]
    assert made == {"value": "isodate", "how": "the project's metadata; the folder (no git here): project"}
    assert BankStore.open(project / ".valve").bank.repo == "isodate"
    assert valve("init", "--json")["created"] is False
    valve("tasks", "list", code=2)
    assert "there is no task set of isodate" in valve.err


def test_home_is_hardly_meant(project: Path, tmp_path: Path, valve: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project))
    valve("init", code=2)
    assert "is your home directory" in valve.err
    valve("init", "/", "--bank", str(tmp_path / "root"), code=2)
    assert not (project / ".valve").exists()
    assert valve("init", "--force", "--json")["created"] is True


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


def test_what_is_found_can_be_overruled(project: Path, valve: Run) -> None:
    made = valve("init", "--repo", "me/mine", "--test-command", "tox -e 'py312'", "--json")
    assert made["found"]["repo"] == {"value": "me/mine", "how": "--repo"}
    assert config.load(project / ".valve").test_command == "tox -e 'py312'"


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


def test_prepared_settings_are_kept(project: Path, valve: Run) -> None:
    (project / ".valve").mkdir()
    (project / ".valve/valve.toml").write_text('check = "tox"\n')
    valve("init")
    assert config.load(project / ".valve").check == "tox"


def test_wrong_use(project: Path, valve: Run) -> None:
    valve("init", "--bank", "x", "--private", code=2)
    valve("init", "no/such/folder", code=2)
    assert contents(project) == {"pyproject.toml": b""}


def test_a_read_only_folder_is_one_line(project: Path, valve: Run) -> None:
    (project / "file").write_text("")
    valve("init", "--bank", str(project / "file/bank"), code=2)
    assert valve.err.count("\n") == 1


def test_a_test_command_is_added_to_a_bank_without_one(bank: BankStore, valve: Run) -> None:
    path = bank.dir / "valve.toml"
    path.write_text("[model_kwargs]\ntemperature = 0\n")
    assert "its settings name the test command now" in valve("init", "--test-command", "tox -e 'a b'")
    assert config.load(bank.dir).test_command == "tox -e 'a b'"
    assert config.load(bank.dir).model_kwargs == {"temperature": 0}
    was = path.read_bytes()
    assert "nothing was changed" in valve("init", "--test-command", "tox -e 'a b'")
    valve("init", "--test-command", "nox", code=2)
    assert "test_command is \"tox -e 'a b'\" already" in valve.err
    assert path.read_bytes() == was
    path.unlink()
    path.symlink_to(bank.dir.parent / "elsewhere")
    valve("init", "--test-command", "nox", code=2)
    assert "symbolic link" in valve.err
