"""Finding the repository in checkouts, worktrees, package folders and plain source trees."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.tools import git
from valve_plugin.checkout import find, name_of


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    (root / "packages/api/src").mkdir(parents=True)
    git(root, "init")
    git(root, "remote", "add", "origin", "https://user:s3cret@example.org/owner/name.git")
    (root / "packages/api/pyproject.toml").write_text("")
    git(root, "add", ".")
    git(root, "commit", "-m", "start")
    return root


def test_a_checkout_is_named_by_its_remote(checkout: Path) -> None:
    here = find(checkout)
    assert (here.folder, here.name, here.named_by, here.git) == (checkout, "owner/name", "git remote origin", True)
    assert here.package == ""


def test_a_package_folder_of_a_monorepo(checkout: Path) -> None:
    here = find(checkout / "packages/api/src")
    assert here.folder == checkout / "packages/api"
    assert here.package == "packages/api"
    assert here.name == "owner/name/packages/api"


def test_a_worktree_has_its_repositorys_name_and_its_own_folder(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "worktree", "add", str(tmp_path / "other"))
    here = find(tmp_path / "other")
    assert (here.folder, here.name) == (tmp_path / "other", "owner/name")
    git(checkout, "remote", "remove", "origin")
    assert find(tmp_path / "other").name == find(checkout).name == "work"


def test_a_submodule_is_a_repository_of_its_own(checkout: Path, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init")
    git(inner, "commit", "--allow-empty", "-m", "start")
    git(checkout, "-c", "protocol.file.allow=always", "submodule", "add", str(inner), "lib/inner")
    here = find(checkout / "lib/inner")
    assert (here.folder, here.name) == (checkout / "lib/inner", "inner")


@pytest.mark.parametrize("section", ["include", 'includeIf "gitdir:**/NAME/.git"', 'includeIf "gitdir:NAME/"'])
def test_a_remote_in_an_included_file(checkout: Path, section: str) -> None:
    git(checkout, "remote", "remove", "origin")
    (checkout / ".git/team.conf").write_text('[remote "origin"] url = "git@host.example:team/lib.git" ; ours\n')
    with (checkout / ".git/config").open("a") as f:
        f.write(f"[{section.replace('NAME', checkout.name)}]\n\tpath = team.conf\n")
    git(checkout, "worktree", "add", str(checkout.parent / "other"))
    assert find(checkout).name == find(checkout.parent / "other").name == "team/lib"


def test_the_home_directory_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "package.json").write_text("{}")
    (tmp_path / "notes").mkdir()
    assert find(tmp_path / "notes").folder == tmp_path / "notes"


def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".git")
    os.symlink("/dev/zero", tmp_path / "pyproject.toml")
    assert find(tmp_path).folder == tmp_path


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("git@example.org:owner/name.git", "owner/name"),
        ("ssh://git@example.org:22/owner/name.git", "owner/name"),
        ("https://user:s3cret@example.org/owner/name", "owner/name"),
        ("https://example.org/group/sub/name.git/", "group/sub/name"),
        ("file:///srv/git/name.git", "name"),
        ("/srv/git/name.git", "name"),
        ("../name", "name"),
        ("", ""),
    ],
)
def test_names_of_remotes(url: str, name: str) -> None:
    assert name_of(url) == name
