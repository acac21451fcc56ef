"""The store keeps bytes as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from valve_plugin.errors import InfrastructureError
from valve_plugin.tasks.git import create_store, git, import_files, read_tree, write_tree

names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=8).filter(
    lambda n: n not in (".", "..") and not n.lower().startswith((".git", "git~"))
)
files = st.dictionaries(
    st.lists(names, min_size=1, max_size=2).map("/".join),
    st.tuples(st.sampled_from(["100644", "100755"]), st.binary(max_size=40)),
    max_size=5,
).filter(lambda f: not any(a.startswith(b + "/") for a in f for b in f))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=files)
def test_what_goes_in_comes_out(tmp_path: Path, files: dict[str, tuple[str, bytes]]) -> None:
    store = tmp_path / "store"
    create_store(store)
    commit = import_files(store, [(path, mode, data) for path, (mode, data) in files.items()], "refs/valve/base")
    entries = read_tree(store, commit)
    assert {path: mode for path, (mode, _) in entries.items()} == {path: mode for path, (mode, _) in files.items()}
    for path, (_, oid) in entries.items():
        assert git("cat-file", "blob", oid, git_dir=store) == files[path][1]
    tree = git("rev-parse", f"{commit}^{{tree}}", git_dir=store).decode().strip()
    assert write_tree(store, entries, tmp_path / "index") == tree


def test_equal_files_are_equal_commits_whatever_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = []
    for name in ("a", "b"):
        monkeypatch.setenv("GIT_AUTHOR_NAME", name)
        create_store(tmp_path / name)
        crlf = [("x.txt", "100644", b"a\r\nb\n"), (".gitattributes", "100644", b"* text=auto eol=crlf ident\n")]
        commits.append(import_files(tmp_path / name, crlf, "refs/valve/base"))
    assert commits[0] == commits[1] == "a45eac89fe802a5d2889b57aaf584fbf20297b21"


def test_a_failure_says_what_git_said(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="git rev-parse ended with 128: fatal"):
        git("rev-parse", "HEAD", git_dir=tmp_path)
