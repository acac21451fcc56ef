"""Trees of real directories: exact, complete, and without a trace in the person's repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools import git, put
from valve_plugin.codec import digest_bytes
from valve_plugin.errors import InfrastructureError, TaskError
from valve_plugin.live import trees as live_trees
from valve_plugin.live.trees import FileChange, Trees
from valve_plugin.sandbox.git import read_blobs, read_tree
from valve_plugin.sandbox.workspace import diff, open_workspace

Files = dict[str, bytes]


def contents(root: Path) -> Files:
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in sorted(root.rglob("*"))
        if p.is_file() and ".git" not in p.relative_to(root).parts
    }


def fingerprint(root: Path) -> dict[str, str]:
    """Every file of a directory, its `.git` included, with its content and time of change.

    Not the times of objects: git renews them when it is asked to store again what is there already.
    """
    return {
        str(p.relative_to(root)): f"{'objects' in p.parts or p.lstat().st_mtime_ns} {digest_bytes(p.read_bytes())}"
        for p in sorted(root.rglob("*"))
        if p.is_file() and not p.is_symlink()
    }


def files_of(trees: Trees, tree: str) -> Files:
    """Every file of a tree with its content, also where a link leads."""
    contents = read_blobs(trees.store, [oid for _, oid in read_tree(trees.store, tree).values()])
    return dict(zip(trees.paths(tree), contents, strict=True))


START: Files = {
    "src/app.py": b"def f():\n    return 1\n",
    "src/same.py": b"x = 1\n",
    "crlf.txt": b"one\r\ntwo\r\n",
    ".gitignore": b"*.log\nbuild/\n",
    "data.bin": bytes(range(256)),
    "old.txt": b"goes\n",
}


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    path = tmp_path / "scratch"
    path.mkdir()
    return path


def repository(root: Path, files: Files) -> Path:
    """A repository with one commit of these files."""
    put(root, files)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "start")
    return root


def checkout(base: Path) -> Path:
    return repository(base / "repo", START)


def worktree(base: Path) -> Path:
    git(checkout(base), "worktree", "add", "-q", str(base / "tree"))
    return base / "tree"


def no_commit_yet(base: Path) -> Path:
    put(base / "repo", START)
    git(base, "init", "-q", str(base / "repo"))
    return base / "repo"


def plain_folder(base: Path) -> Path:
    put(base / "plain", START)
    return base / "plain"


KINDS = [checkout, worktree, no_commit_yet, plain_folder]


@pytest.mark.parametrize("make", KINDS, ids=lambda f: f.__name__)
def test_a_run_is_captured_exactly_and_leaves_no_trace(
    make: Callable[[Path], Path], tmp_path: Path, scratch: Path
) -> None:
    root = make(tmp_path)
    put(
        root,
        {"untracked.py": b"u = 1\n", "noise.log": b"ignored\n", ".valve/bank.json": b"{}", "src/app.py": b"changed\n"},
    )
    before = fingerprint(root)
    trees = Trees(root, scratch, leave_out=[root / ".valve"])
    base = trees.capture()
    assert fingerprint(root) == before
    started = contents(root)

    put(root, {"src/app.py": b"fixed\n", "new/deep/file.py": b"n\n", "latin.txt": b"caf\xe9\n", "new.bin": b"\0\1\2"})
    put(root, {".valve/bank.json": b"{1}", "build/out": b"ignored", "spaced name.py": b"\xf0\x9f\x90\x8d\n"})
    (root / "old.txt").unlink()
    (root / "link").symlink_to("src/app.py")
    os.chmod(root / "src/same.py", 0o755)
    os.chmod(root / "untracked.py", 0o755)
    before = fingerprint(root)
    end = trees.capture()
    assert fingerprint(root) == before
    assert end == Trees(root, (scratch / "again"), leave_out=[root / ".valve"]).capture()

    changed = {c.path for c in trees.changes(base, end)}
    assert changed == {
        *("src/app.py", "new/deep/file.py", "latin.txt", "new.bin", "spaced name.py", "old.txt", "link"),
        *("src/same.py", "untracked.py"),
    }
    copy = put(tmp_path / "copy", files_of(trees, base))
    assert contents(copy) == {k: v for k, v in started.items() if k not in ("noise.log", ".valve/bank.json")}
    patch = trees.patch(base, end)
    git(copy, "init", "-q")
    subprocess.run(["git", "apply", "-"], cwd=copy, input=patch.encode(), check=True)
    assert trees.apply(base, patch) == end
    ours = contents(root)
    assert contents(copy) == {k: v for k, v in ours.items() if k in contents(copy)}
    assert {p for p in changed if (copy / p).exists()} == changed - {"old.txt"}
    assert (copy / "link").is_symlink()
    assert os.access(copy / "untracked.py", os.X_OK)


def test_counts_of_changed_lines(tmp_path: Path, scratch: Path) -> None:
    root = checkout(tmp_path)
    trees = Trees(root, scratch)
    base = trees.capture()
    put(root, {"src/app.py": b"def f():\n    return 2\n    # more\n", "data.bin": b"\0" * 9})
    end = trees.capture()
    assert trees.changes(base, end) == [FileChange("data.bin", 1), FileChange("src/app.py", 3)]
    assert trees.changes(base, base) == []
    assert trees.patch(base, base) == trees.patch(base, end, []) == ""
    assert "data.bin" not in trees.patch(base, end, ["src/app.py"])


NAMES = st.sampled_from(["a.py", "b", "d/a.py", "d/e/f", "g h/\u00e9", "-x", "d.txt"])
CONTENT = st.one_of(st.binary(max_size=40), st.text(max_size=40).map(lambda t: t.encode("utf-8", "replace")))
LAYOUT = st.dictionaries(NAMES, CONTENT, max_size=5)


@hypothesis.settings(max_examples=15)
@given(LAYOUT, LAYOUT, st.lists(NAMES, max_size=3))
def test_any_change_round_trips(before: Files, after: Files, restored: list[str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        root, scratch = Path(place) / "root", Path(place) / "scratch"
        root.mkdir()
        scratch.mkdir()
        put(root, before)
        trees = Trees(root, scratch)
        base = trees.capture()
        shutil.rmtree(root)
        root.mkdir()
        put(root, after)
        end = trees.capture()
        assert trees.apply(base, trees.patch(base, end)) == end
        assert trees.apply(end, trees.patch(end, base)) == base
        assert {c.path for c in trees.changes(base, end)} == {
            n for n in before.keys() | after.keys() if before.get(n) != after.get(n)
        }
        assert files_of(trees, base) == before
        mixed = {
            **{n: c for n, c in after.items() if n not in restored},
            **{n: before[n] for n in restored if n in before},
        }
        assert files_of(trees, trees.with_paths_from(end, base, restored)) == mixed


def test_secrets_files_and_huge_files_stay_out(tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_trees, "MAX_FILE_BYTES", 1000)
    root = checkout(tmp_path)
    put(root, {".env": b"K=planted-value\n", "prod.env": b"K=v\n", ".env.example": b"K=\n", "big.csv": b"x" * 2000})
    os.mkfifo(root / "pipe")
    trees = Trees(root, scratch)
    base = trees.capture()
    assert set(trees.paths(base)) == {*START, ".env.example"}
    assert trees.notes == ["big.csv is not captured: 2,000 bytes"]
    put(root, {"big.csv": b"small now", "more.csv": b"x" * 2000})
    assert trees.capture() == base, "a file left out at the start must not look new at the end"


def test_a_folder_of_too_many_files_is_followed_only_where_git_knows_it(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_trees, "MAX_FILES", 10)
    root = checkout(tmp_path)
    put(root, {f"many/{n}": b"x" for n in range(20)})
    trees = Trees(root, scratch)
    base = trees.capture()
    assert set(trees.paths(base)) == set(START)
    assert "over 10 of them" in trees.notes[0]
    for n in range(15):
        (root / f"many/{n}").unlink()
    put(root, {"src/app.py": b"fixed\n"})
    assert [c.path for c in trees.changes(base, trees.capture())] == ["src/app.py"]


def test_ignore_rules_of_every_kind_are_respected(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = checkout(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("GIT_CONFIG_GLOBAL")
    put(tmp_path / "home", {".config/git/ignore": b"by-default\n", "mine": b"by-config\n"})
    (root / ".git/info/exclude").write_text("by-exclude\n")
    put(root, dict.fromkeys(("by-default", "by-config", "by-exclude", "a.log", "seen"), b""))
    trees = Trees(root, scratch / "1")
    assert set(trees.paths(trees.capture())) == {*START, "by-config", "seen"}
    put(tmp_path / "home", {".gitconfig": b"[core]\n\texcludesFile = ~/mine\n"})
    trees = Trees(root, scratch / "2")
    assert set(trees.paths(trees.capture())) == {*START, "by-default", "seen"}


def test_nested_repositories_conflicts_and_unreadable_files_do_not_stop_it(tmp_path: Path, scratch: Path) -> None:
    root = checkout(tmp_path)
    git(root, "checkout", "-q", "-b", "other")
    put(root, {"src/app.py": b"theirs\n"})
    git(root, "commit", "-q", "-am", "theirs")
    git(root, "checkout", "-q", "main")
    put(root, {"src/app.py": b"ours\n"})
    git(root, "commit", "-q", "-am", "ours")
    subprocess.run(["git", "merge", "other"], cwd=root, capture_output=True, check=False)
    git(root, "init", "-q", "empty-repository")
    git(tmp_path, "clone", "-q", str(root), str(root / "other-repository"))
    (root / "dangling").symlink_to("nowhere")
    trees = Trees(root, scratch)
    captured = files_of(trees, trees.capture())
    assert b"<<<<<<<" in captured["src/app.py"]
    assert {path.partition("/")[0] for path in captured if "/" in path} == {"src"}


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_what_git_was_told_to_overlook_and_repositories_made_later_are_captured(
    tmp_path: Path, scratch: Path, flag: str
) -> None:
    root = tmp_path / "repo"
    put(root, START | {"there/x.py": b""})
    for folder in (root / "there", root):
        git(folder, "init", "-q")
    git(root, "add", "src")
    git(root, "commit", "-qm", "x")
    git(root, "update-index", flag, "src/app.py")
    trees = Trees(root, scratch)
    base = trees.capture()
    assert trees.repositories == {"there/"}
    put(root, {"src/app.py": b"2\n", "there/x.py": b"1\n", "made/y.py": b"1\n"})
    git(root / "made", "init", "-q")
    changed = {change.path for change in trees.changes(base, trees.capture())}
    assert changed == {"src/app.py", "made/y.py"}


def test_a_configuration_inside_the_directory_is_not_heeded(tmp_path: Path, scratch: Path) -> None:
    root = checkout(tmp_path)
    trap = tmp_path / "trapped"
    for key in ("core.fsmonitor", "diff.external", "filter.evil.clean", "filter.evil.smudge", "diff.evil.textconv"):
        git(root, "config", key, f"touch {trap}; cat")
    put(root, {".gitattributes": b"* filter=evil diff=evil\n", "src/app.py": b"new\n"})
    trees = Trees(root, scratch)
    base = trees.capture()
    put(root, {"src/app.py": b"newer\n", "another": b"1\n"})
    trees.patch(base, trees.capture())
    assert not trap.exists()


def test_what_is_no_project_is_refused(tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in (tmp_path, Path("/")):
        with pytest.raises(InfrastructureError, match="is not a project folder"):
            Trees(folder, scratch)


def test_files_of_others_come_and_go_while_it_is_captured(tmp_path: Path, scratch: Path) -> None:
    root = checkout(tmp_path)
    before = Trees(root, scratch).capture()
    churn = "while :; do for n in 1 2 3 4 5 6 7 8; do echo new > sed$n; mv sed$n moved; rm moved; done; done"
    others = [subprocess.Popen(["bash", "-c", churn], cwd=root, stderr=subprocess.DEVNULL) for _ in range(2)]
    try:
        for n in range(15):
            Trees(root, scratch / str(n)).capture()
    finally:
        for other in others:
            other.kill()
            other.wait()
    for name in [*(f"sed{n}" for n in range(1, 9)), "moved"]:
        (root / name).unlink(missing_ok=True)
    assert Trees(root, scratch / "after").capture() == before


def test_files_of_submodules_are_files_like_any_other(tmp_path: Path, scratch: Path) -> None:
    for name in ("inner", "outer", "repo"):
        repository(tmp_path / name, {"code.py": b"a\n", ".gitignore": b"*.log\n"})
    allow = ("-c", "protocol.file.allow=always", "submodule")
    git(tmp_path / "outer", *allow, "add", "-q", str(tmp_path / "inner"), "in")
    git(tmp_path / "outer", "commit", "-qam", "inner")
    git(tmp_path / "repo", *allow, "add", "-q", str(tmp_path / "outer"), "libs/x")
    git(tmp_path / "repo", *allow, "update", "-q", "--init", "--recursive")
    git(tmp_path / "repo", "commit", "-qam", "outer")
    root = tmp_path / "repo"
    before = fingerprint(root)
    trees = Trees(root, scratch)
    base = trees.capture()
    put(root, {"libs/x/code.py": b"b\n", "libs/x/in/code.py": b"c\n", "libs/x/in/new.py": b"d\n", "libs/x/x.log": b""})
    end = trees.capture()
    changed = [change.path for change in trees.changes(base, end)]
    assert changed == ["libs/x/code.py", "libs/x/in/code.py", "libs/x/in/new.py"]
    assert files_of(trees, base)["libs/x/in/code.py"] == b"a\n"
    patch = trees.patch(base, end)
    (root / "libs/x/in/new.py").unlink()
    put(root, {"libs/x/code.py": b"a\n", "libs/x/in/code.py": b"a\n"})
    trees.apply_to_root(patch)
    assert (root / "libs/x/in/code.py").read_bytes() == b"c\n"
    assert [path for path in before if path not in fingerprint(root)] == []


@pytest.mark.parametrize(
    ("setting", "attributes"),
    [
        ("core.autocrlf=true", ""),
        ("core.autocrlf=input", "* text=auto eol=crlf\n"),
        ("core.eol=crlf", "* text=auto eol=crlf\n"),
        ("core.autocrlf=true", "*.py ident\n*.txt working-tree-encoding=UTF-16\n"),
    ],
)
def test_files_that_git_converted_are_captured_as_they_are(
    tmp_path: Path, scratch: Path, setting: str, attributes: str
) -> None:
    root = tmp_path / "repo"
    put(root, {"code.py": b"# caf\xe9 $Id$\nx = 1\n", ".gitattributes": attributes.encode()})
    git(root, "init", "-q")
    git(root, "config", *setting.split("="))
    git(root, "add", "code.py", ".gitattributes")
    git(root, "commit", "-qm", "start")
    for path in ("code.py", ".git/index"):
        (root / path).unlink()
    git(root, "reset", "-q", "--hard")
    os.utime(root / "code.py", (1, 1))
    git(root, "update-index", "--refresh")
    there = contents(root)
    trees = Trees(root, scratch)
    base = trees.capture()
    assert files_of(trees, base) == there
    (root / "code.py").write_bytes(there["code.py"].replace(b"1", b"2"))
    patch = trees.patch(base, trees.capture())
    (root / "code.py").write_bytes(there["code.py"])
    trees.apply_to_root(patch)
    assert (root / "code.py").read_bytes() == there["code.py"].replace(b"1", b"2")


@pytest.mark.parametrize("name", ["git~1", "a\\b", ".git ", "\udcff", "a\nb", ":(glob)x", "\u202e", "n" * 255])
def test_whatever_a_file_is_called_it_is_not_the_host_s_failure(tmp_path: Path, scratch: Path, name: str) -> None:
    root = tmp_path / "repo"
    put(root, {"code.py": b"x = 1\n"})
    trees = Trees(root, scratch)
    base = trees.capture()
    with open_workspace(trees.store, trees.commit(base)) as place:
        (place.path / name).write_bytes(b"y\n")
        try:
            end = trees.apply(base, diff(place))
        except TaskError:
            assert name in ("git~1", "a\\b", ".git ")
        else:
            assert trees.paths(end) == sorted(["code.py", name], key=os.fsencode)
