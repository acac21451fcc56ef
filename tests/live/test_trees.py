"""Trees of real directories: exact, complete, and without a trace in the person's repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
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


def repository(root: Path, files: Files, *options: str) -> Path:
    """A repository with one commit of these files."""
    put(root, files)
    git(root, "init", "-q", "-b", "main", *options)
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


def sha256(base: Path) -> Path:
    return repository(base / "repo", START, "--object-format=sha256")


def plain_folder(base: Path) -> Path:
    put(base / "plain", START)
    return base / "plain"


KINDS = [checkout, worktree, no_commit_yet, sha256, plain_folder]


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
    copy = tmp_path / "copy"
    trees.write(base, copy)
    assert contents(copy) == {k: v for k, v in started.items() if k not in ("noise.log", ".valve/bank.json")}
    patch = trees.patch(base, end)
    git(copy, "init", "-q", *(["--object-format=sha256"] if make is sha256 else []))
    subprocess.run(["git", "apply", "-"], cwd=copy, input=patch.encode(), check=True)
    assert trees.apply(base, patch) == end
    ours = contents(root)
    assert contents(copy) == {k: v for k, v in ours.items() if k in contents(copy)}
    assert {p for p in changed if (copy / p).exists()} == changed - {"old.txt"}
    assert (copy / "link").is_symlink()
    assert os.access(copy / "untracked.py", os.X_OK)


def test_a_change_in_the_same_second_and_size_is_seen(tmp_path: Path, scratch: Path) -> None:
    root = checkout(tmp_path)
    for n in range(6):
        (root / "src/same.py").write_bytes(b"x = %d\n" % n)
        git(root, "add", "-A")
        (root / "src/same.py").write_bytes(b"x = %d\n" % ((n + 1) % 10))
        trees = Trees(root, scratch / str(n))
        copy = tmp_path / f"copy{n}"
        trees.write(trees.capture(), copy)
        assert (copy / "src/same.py").read_bytes() == b"x = %d\n" % ((n + 1) % 10)


def test_counts_of_changed_lines(tmp_path: Path, scratch: Path) -> None:
    root = checkout(tmp_path)
    trees = Trees(root, scratch)
    base = trees.capture()
    put(root, {"src/app.py": b"def f():\n    return 2\n    # more\n", "data.bin": b"\0" * 9})
    end = trees.capture()
    assert trees.changes(base, end) == [FileChange("data.bin", 1, True), FileChange("src/app.py", 3, False)]
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
        trees.write(base, Path(place) / "copy")
        assert contents(Path(place) / "copy") == before
        mixed = {
            **{n: c for n, c in after.items() if n not in restored},
            **{n: before[n] for n in restored if n in before},
        }
        trees.write(trees.with_paths_from(end, base, restored), Path(place) / "mixed")
        assert contents(Path(place) / "mixed") == mixed


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
    copy = tmp_path / "copy"
    trees.write(trees.capture(), copy)
    assert b"<<<<<<<" in (copy / "src/app.py").read_bytes()
    assert sorted(p.name for p in copy.iterdir() if p.is_dir()) == ["src"]


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
    trees.write(base, tmp_path / "copy")
    assert not trap.exists()


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


def test_what_is_no_project_is_refused(at_home: Path, scratch: Path) -> None:
    with pytest.raises(InfrastructureError, match="is not a project folder"):
        Trees(at_home, scratch)
    with pytest.raises(InfrastructureError, match="is not a project folder"):
        Trees(Path("/"), scratch)


def test_a_directory_that_is_gone_says_so(tmp_path: Path, scratch: Path) -> None:
    root = plain_folder(tmp_path)
    trees = Trees(root, scratch)
    trees.capture()
    root.rename(tmp_path / "elsewhere")
    with pytest.raises(InfrastructureError, match="plain is gone"):
        trees.capture()


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
    trees.write(base, tmp_path / "written")
    assert contents(tmp_path / "written")["libs/x/in/code.py"] == b"a\n"
    patch = trees.patch(base, end)
    (root / "libs/x/in/new.py").unlink()
    put(root, {"libs/x/code.py": b"a\n", "libs/x/in/code.py": b"a\n"})
    trees.apply_to_root(patch)
    assert (root / "libs/x/in/code.py").read_bytes() == b"c\n"
    assert [path for path in before if path not in fingerprint(root)] == []


@pytest.mark.parametrize(
    "settings",
    [{"core.autocrlf": "true"}, {"core.autocrlf": "input"}, {"core.eol": "crlf"}, {}],
    ids=["autocrlf", "input", "eol", "attributes"],
)
@pytest.mark.parametrize(
    "attributes", ["", "* text=auto eol=crlf\n", "*.py ident\n*.txt working-tree-encoding=UTF-16\n"]
)
def test_files_that_git_converted_are_captured_as_they_are(
    tmp_path: Path, scratch: Path, settings: dict[str, str], attributes: str
) -> None:
    root = tmp_path / "repo"
    put(root, {"code.py": b"# caf\xe9 $Id$\nx = 1\n", ".gitattributes": attributes.encode()})
    git(root, "init", "-q")
    for name, value in settings.items():
        git(root, "config", name, value)
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
    trees.write(base, tmp_path / "written")
    assert contents(tmp_path / "written") == there
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
