"""The store keeps bytes as they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from valve_plugin.errors import InfrastructureError, TaskError
from valve_plugin.sandbox.git import (
    apply_patch,
    create_store,
    diff_trees,
    git,
    import_files,
    read_blobs,
    read_tree,
    write_tree,
)

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
    contents = read_blobs(store, [oid for _, oid in entries.values()])
    assert dict(zip(entries, contents, strict=True)) == {path: data for path, (_, data) in files.items()}
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


@pytest.mark.parametrize("attributes", [b"* text\n", b"* diff\n", b"* -diff\n", b"* binary\n"])
def test_a_patch_is_text_and_exact_whatever_a_tree_says_of_its_files(
    tmp_path: Path, attributes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    store, index = tmp_path / "store", tmp_path / "index"
    create_store(store)
    before = [(name, "100644", b"old\n") for name in ("a.txt", "diff --git b.txt", "c.txt")]
    after = [("a.txt", "100644", b"new\n"), ("diff --git b.txt", "100755", "é\ndiff --git \n".encode("latin-1"))]
    after += [("c.txt", "120000", b"a.txt"), ("d.bin", "100644", bytes(range(256)))]
    rules = (".gitattributes", "100644", attributes)
    commits = [
        import_files(store, [rules, *files], f"refs/valve/{name}") for name, files in (("old", before), ("new", after))
    ]
    patch = diff_trees(store, *commits)
    tree = git("rev-parse", f"{commits[1]}^{{tree}}", git_dir=store).decode().strip()
    assert apply_patch(store, commits[0], patch, index) == tree
    assert "-old\n+new\n" in patch, "only what is no text is binary"
    assert diff_trees(store, *commits, ["c.txt"]).count("diff --git") == 2  # the type of a file changed
    assert apply_patch(store, commits[1], patch, index) is None
    assert list(here.iterdir()) == [], "nothing is written to the working directory"
    with pytest.raises(TaskError, match="bytes, expected at most 100"):
        diff_trees(store, *commits, max_bytes=100)
