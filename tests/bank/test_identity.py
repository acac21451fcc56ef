"""Whose bank this is: a foreign one is told, and clones, forks, archives and packages are not nagged."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.banks import sample
from tests.cli.conftest import Run, project, valve  # noqa: F401  (fixtures)
from tests.tools import git
from valve_plugin.bank.identity import find_bank, is_foreign, is_own, is_same_name, remember_folder
from valve_plugin.checkout import find


def remote(folder: Path, **urls: str) -> None:
    git(folder.parent, "init", "-q", str(folder))
    for name, url in urls.items():
        git(folder, "remote", "add", name, url)


def verdict(folder: Path, repo: str, bank: Path | None = None) -> str:
    here, bank = find(folder), bank or folder.parent / "elsewhere"
    ours, theirs = is_own(repo, bank, here), is_foreign(repo, bank, here)
    assert not (ours and theirs)
    return "ours" if ours else "foreign" if theirs else "unknown"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("pyproject.toml", '[project]\nname = "iniconfig"\n'),
        ("setup.py", "setup(name='iniconfig', version='1')\n"),
        ("setup.cfg", "[metadata]\nname = iniconfig\n"),
        ("package.json", '{"name": "iniconfig"}'),
        ("go.mod", "module github.com/pytest-dev/iniconfig\n"),
    ],
)
def test_an_archive_says_by_its_project_whose_it_is(data_dir: Path, tmp_path: Path, file: str, text: str) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / file).write_text(text)
    assert verdict(folder, "Suor/funcy") == "foreign"
    assert verdict(folder, "pytest-dev/iniconfig") == verdict(folder, "iniconfig") == "ours"


def test_a_folders_name_alone_accuses_nobody(data_dir: Path, tmp_path: Path) -> None:
    for name, expected in (("funcy-2.0", "ours"), ("my_funcy", "ours"), ("Funcy", "ours"), ("work", "unknown")):
        (tmp_path / name).mkdir()
        assert verdict(tmp_path / name, "Suor/funcy") == expected
    remote(tmp_path / "work", origin=str(tmp_path / "mirror"))  # a clone of a folder
    assert verdict(tmp_path / "work", "Suor/funcy") == "unknown"


def test_forks_and_renamed_clones_are_the_same_repository(data_dir: Path, tmp_path: Path) -> None:
    fork = tmp_path / "fork"
    remote(fork, origin="git@example.org:me/pyfuncy.git")
    assert verdict(fork, "Suor/funcy") == "foreign"
    (fork / "setup.py").write_text("setup(\n    name='funcy')\n")
    assert verdict(fork, "Suor/funcy") == "ours"
    remote(tmp_path / "work", origin="https://example.org/me/x.git", upstream="https://example.org/Suor/funcy")
    assert verdict(tmp_path / "work", "Suor/funcy") == "ours"
    remote(tmp_path / "owner", origin="https://example.org/me/funcy.git")
    assert verdict(tmp_path / "owner", "Suor/funcy") == "ours"


def test_what_lies_in_the_tree_or_was_said_to_belong_does(data_dir: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    remote(here, origin="https://example.org/a/b")
    assert verdict(here, "me/mine", here / ".valve") == "ours"
    assert verdict(here, "me/mine", here / "demo") == "foreign"
    remember_folder(here / "demo", find(here))
    assert verdict(here, "me/mine", here / "demo") == "ours"
    assert verdict(here, "me/mine", data_dir / "banks/a__b") == "ours"


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True), st.sampled_from("abc"))
def test_owner_case_and_separators_do_not_count(name: str, owner: str) -> None:
    assert is_same_name(f"{owner}/{name}", f"d/{name.upper().replace('_', '-')}")
    assert not is_same_name(f"{owner}/{name}", f"{owner}/{name}x")


def committed(folder: Path) -> Path:
    remote(folder)
    git(folder, "commit", "-q", "--allow-empty", "-m", str(folder))
    (folder / "packages/api").mkdir(parents=True)
    (folder / "packages/api/pyproject.toml").write_text("")
    return folder


@pytest.mark.parametrize("within", ["", "packages/api"])
def test_a_private_bank_without_remote_follows_its_repository(data_dir: Path, tmp_path: Path, within: str) -> None:
    """Not the folder's name: that may change, and another repository may have it."""
    (tmp_path / "else").mkdir()
    first, other = committed(tmp_path / "lib"), committed(tmp_path / "else/lib")
    bank = sample(find_bank("", find(first / within)), f"lib/{within}".rstrip("/")).dir
    moved = first.rename(tmp_path / "else/renamed")
    assert find_bank("", find(moved / within)) == bank
    assert is_own("any/name", bank, find(moved / within))
    assert find_bank("", find(moved / within), "owner/another") == data_dir / "banks/owner__another"
    elsewhere = {find_bank("", find(place)) for place in (other / within, moved / ("" if within else "packages/api"))}
    assert bank not in elsewhere
    assert len(elsewhere) == 2


def test_a_private_bank_from_before_the_first_commit_is_found(data_dir: Path, tmp_path: Path) -> None:
    remote(tmp_path / "lib")
    bank = sample(find_bank("", find(tmp_path / "lib")), "lib").dir
    assert find_bank("", find(committed(tmp_path / "lib"))) == bank == data_dir / "banks/lib"


def test_a_fork_uses_its_private_bank_for_tasks_of_its_origin(data_dir: Path, tmp_path: Path) -> None:
    remote(tmp_path / "fork", origin="https://example.org/someone/lib")
    here = find(tmp_path / "fork")
    assert find_bank("", here, "owner/lib") == find_bank("", here) == data_dir / "banks/someone__lib"
    theirs = sample(data_dir / "banks/owner__lib", "owner/lib").dir
    assert find_bank("", here, "owner/lib") == theirs


@pytest.fixture
def other(project: Path, tmp_path: Path) -> Path:  # noqa: F811
    """A bank of Suor/funcy, while the current repository is iniconfig."""
    (project / "pyproject.toml").write_text('[project]\nname = "iniconfig"\n')
    sample(tmp_path / "funcy", "Suor/funcy")
    return tmp_path / "funcy"


def test_init_does_not_take_another_repositorys_bank(other: Path, valve: Run) -> None:  # noqa: F811
    valve("init", "--bank", str(other), code=2)
    assert "is the bank of Suor/funcy, you are in project; name a bank" in valve.err  # type: ignore[attr-defined]
    assert "give --repo Suor/funcy" in valve.err  # type: ignore[attr-defined]
    assert valve("init", "--bank", str(other), "--repo", "Suor/funcy", "--json")["created"] is False
    assert valve("--bank", str(other), "--json")["foreign"] is False  # as it was said
    valve("context", "dates in UTC", "--bank", str(other))
    assert valve.err == ""  # type: ignore[attr-defined]
