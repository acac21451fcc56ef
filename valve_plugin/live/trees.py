"""Trees of a person's working directory: before and after a run, and the patch between them.

The trees are stored in a scratch repository that uses the objects of the person's own repository; their `.git`, index
and files are only read. This works for a checkout, a worktree, a folder of a monorepo and a folder without git. Files
are stored byte for byte (without filters or conversion of line endings), and configuration inside the captured
directory is ignored, because an agent may have written it.
"""

from __future__ import annotations

import math
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from valve_plugin.errors import InfrastructureError, TaskError
from valve_plugin.files import read_regular
from valve_plugin.redact import is_env_file
from valve_plugin.sandbox.git import (
    NO_PROGRAMS,
    apply_patch,
    create_store,
    diff_trees,
    git,
    quote_word,
    user_ignore_file,
)

MAX_FILE_BYTES = 20_000_000
"""An untracked file larger than this is left out."""
MAX_TOTAL_BYTES = 200_000_000
MAX_FILES = 20_000
"""If untracked files exceed either total, all of them are left out: such a folder contains more than source code."""
_DIFF = ("diff-tree", "-r", "--no-renames", "--no-color", *NO_PROGRAMS, "--full-index")


class FileChange(msgspec.Struct, frozen=True):
    """One path that differs between two trees."""

    path: str
    lines: int
    """Lines added plus lines removed; 1 for a binary file."""


class Trees:
    """Captures trees of one directory into a scratch repository."""

    def __init__(self, root: Path, scratch: Path, leave_out: Sequence[Path] = ()) -> None:
        """Prepare to capture `root`.

        Args:
            root: root of a work tree, or any folder.
            scratch: a private directory outside of `root`; the caller removes it.
            leave_out: files and folders below `root` that are never captured, such as the bank.

        Raises:
            InfrastructureError: git is missing, or `root` is no folder to capture.
        """
        if root in (Path.home(), Path(root.anchor)) and not (root / ".git").exists():
            raise InfrastructureError(f"{root} is not a project folder; start mini inside one")
        self.root, self.store = root, scratch / "store"
        self.notes: list[str] = []
        """What was not captured and why, one line each."""
        below = [path for path in leave_out if path != root and path.is_relative_to(root)]
        self.repositories: set[str] | None = None
        """Repositories of their own inside `root` at the first capture, with `/` at the end: they are not captured."""
        self._left_out = [path.relative_to(root).as_posix() for path in below]
        self._skipped: set[str] = set()
        self._only_known = False
        create_store(self.store)
        if (root / ".git").exists():
            # the objects, index and ignore rules of the person's repository, which is only read
            git_dir, common = _git_dirs(root)
            info = self.store / "objects" / "info"
            info.mkdir(parents=True, exist_ok=True)
            (info / "alternates").write_text(f"{quote_word(str(common / 'objects'))}\n")
            with (self.store / "info" / "exclude").open("a") as f:
                f.write("\n" + _text(common / "info" / "exclude"))
            for index in [git_dir / "index", *git_dir.glob("sharedindex.*")]:
                if index.is_file():
                    # Keep the time stamp, because git uses it to find entries that it must check.
                    shutil.copy2(index, self.store / index.name)
        with (self.store / "config").open("a") as f:
            f.write(f"[core]\n\texcludesFile = {quote_word(user_ignore_file())}\n")
        if any(path.exists() for path in below) and self._has_index():
            self._git("rm", "-r", "-q", "-f", "--cached", "--ignore-unmatch", "--", *self._left_out)
        if self._has_index():
            self._look_again()

    def saved(self) -> dict[str, Any]:
        """Return this as plain data, for another process to go on with; see `resumed`."""
        return {
            **{name: value for name, value in vars(self).items() if isinstance(value, list | bool)},
            "root": str(self.root),
            "store": str(self.store),
            "repositories": sorted(self.repositories or ()),
            "_skipped": sorted(self._skipped),
        }

    @classmethod
    def resumed(cls, saved: Mapping[str, Any]) -> Trees:
        """Return what `saved` described after its first capture."""
        trees = cls.__new__(cls)
        sets = {name: set(saved[name]) for name in ("repositories", "_skipped")}
        vars(trees).update(saved, root=Path(saved["root"]), store=Path(saved["store"]), **sets)
        return trees

    def capture(self) -> str:
        """Return the id of the present tree of `root`, with new files but without ignored ones.

        Raises:
            InfrastructureError: git cannot read the directory.
        """
        if not self.root.is_dir():
            raise InfrastructureError(f"{self.root} is gone")
        if self._has_index():
            self._git("add", "-u", "--ignore-errors", ok=(0, 1))  # 1: an unreadable file is kept as it was
        self._add_untracked()
        self.repositories = self.repositories or set()  # one that is made later is captured like any folder
        return self._git("write-tree", "--missing-ok").decode().strip()

    def changes(self, base: str, end: str) -> list[FileChange]:
        """Return the paths that differ between two trees, in tree order."""
        found = [line.split("\t", 2) for line in _strings(self._git(*_DIFF, "--numstat", "-z", base, end))]
        return [FileChange(path, 1 if added == "-" else int(added) + int(removed)) for added, removed, path in found]

    def patch(self, base: str, end: str, paths: Sequence[str] | None = None) -> str:
        """Return the patch from one tree to another, for all paths or some, including binary files.

        A file that is not UTF-8 is treated as binary, so the patch is always text and exact.
        """
        if paths is not None and not paths:
            return ""
        return diff_trees(self.store, base, end, paths or (), max_bytes=math.inf)

    def diff_as_text(self, base: str, end: str, path: str) -> bytes:
        """Return git's patch of one path with binary content printed as text: to search, not to apply."""
        return self._git(*_DIFF, "-p", "--text", base, end, "--", path)

    def paths(self, tree: str) -> list[str]:
        """Return every path of a tree."""
        return _strings(self._git("ls-tree", "-r", "-z", "--name-only", "--full-tree", tree))

    def with_paths_from(self, tree: str, source: str, paths: Sequence[str]) -> str:
        """Return a tree that equals `tree`, but has these paths as in `source`: restored, or removed if not there."""
        env = self._index("mixed")
        self._git("read-tree", tree, env=env)
        # An entry of mode 0 removes a path; ls-tree then adds the paths that exist in the source.
        null = "0" * len(tree)
        lines = [f"0 {null}\t{path}" for path in paths]
        lines += _strings(self._git("ls-tree", "-r", "-z", "--full-tree", source, "--", *paths)) if paths else []
        data = "".join(f"{line}\0" for line in lines).encode("utf-8", "surrogateescape")
        self._git("update-index", "-z", "--index-info", env=env, data=data)
        return self._git("write-tree", "--missing-ok", env=env).decode().strip()

    def apply(self, tree: str, patch: str) -> str:
        """Apply a patch that was made from `tree`; return the new tree.

        Raises:
            TaskError: it does not apply, because it has a path that git refuses, such as `git~1`.
        """
        made = apply_patch(self.store, tree, patch, Path(self._index("applied")["GIT_INDEX_FILE"])) if patch else tree
        if made is None:
            raise TaskError("the patch does not apply to the tree it was made from: git refuses one of its paths")
        return made

    def apply_to_root(self, patch: str) -> None:
        """Apply a patch to the person's files, completely or not at all, without changing their index.

        Raises:
            InfrastructureError: it does not apply; nothing was changed.
        """
        for check in (["--check"], []):
            self._git("apply", *check, "--whitespace=nowarn", "-", data=patch.encode())

    def commit(self, tree: str) -> str:
        """Return a commit of the scratch repository with this tree and no parent."""
        return self._git("commit-tree", tree, data=b"The tree the run started from\n").decode().strip()

    def _add_untracked(self, tries: int = 3) -> None:
        """Add new files. Other programs may remove or change a file while it is read, so try several times."""
        listed = "".join(f"{path}\0" for path in self._untracked()).encode("utf-8", "surrogateescape")
        try:
            self._git("update-index", "--add", "--remove", "-z", "--stdin", data=listed)  # --remove: may be missing
        except InfrastructureError:
            if tries <= 1:
                raise
            self._add_untracked(tries - 1)

    def _untracked(self) -> list[str]:
        """Return new files that are not ignored, within the limits."""
        if self._only_known:
            return []
        listed = _strings(self._git("ls-files", "-z", "--others", "--exclude-standard"))
        nested = {path for path in listed if path.endswith("/")}
        if self.repositories is None:
            self.repositories = nested
        for path in sorted(nested - self.repositories):
            self._add_submodule(path.rstrip("/"))
        found, total = [], 0
        for path in listed:
            if path in nested or self._is_left_out(path):
                continue
            size = _size(self.root / path)
            if size > MAX_FILE_BYTES:
                self.notes.append(f"{path} is not captured: {size:,} bytes")
            if not 0 <= size <= MAX_FILE_BYTES:
                self._skipped.add(path)
                continue
            found.append(path)
            total += size
            if len(found) > MAX_FILES or total > MAX_TOTAL_BYTES:
                self._only_known = True  # also in later captures; otherwise existing files would look new
                why = f"{self.root} holds over {MAX_FILES:,} of them or {MAX_TOTAL_BYTES:,} bytes"
                self.notes.append(f"untracked files are not captured: {why}; list them in .gitignore")
                return []
        return found

    def _is_left_out(self, path: str) -> bool:
        return (
            path in self._skipped
            or is_env_file(path.rpartition("/")[2])
            or any(path == out or path.startswith(f"{out}/") for out in self._left_out)
        )

    def _look_again(self) -> None:
        """Correct the index where it does not hold the files as they are.

        Git may have converted a file, for example its line endings. Its size is then another than that of its content
        in the index, and it is read again, byte for byte. So is a file that git was told to overlook,
        if it is there. A submodule becomes a folder like any other.
        """
        entries = [entry.partition("\t") for entry in _strings(self._git("ls-files", "-v", "-s", "-z"))]
        query = "".join(f"{meta.split()[2]}\n" for meta, _, _ in entries).encode()
        sizes = self._git("cat-file", "--batch-check=%(objectsize)", data=query).split(b"\n")
        submodules, corrected = [], ""
        for (tagged, _, path), size in zip(entries, sizes, strict=False):
            tag, _, meta = tagged.partition(" ")
            there = _size(self.root / path)
            if meta.startswith("160000 "):
                submodules.append(path)
                corrected += f"0 {'0' * len(meta.split()[1])}\t{path}\0"
            elif there >= 0 and (tag == "S" or tag.islower() or (size.isdigit() and there != int(size))):
                corrected += f"{meta}\t{path}\0"  # without flags and the file's time stamp, so git will read it
        data = corrected.encode("utf-8", "surrogateescape")
        self._git("update-index", "-z", "--index-info", data=data)
        for path in submodules:
            self._add_submodule(path)

    def _add_submodule(self, path: str) -> None:
        """Add the files of a submodule and of those inside it."""
        if not (self.root / path / ".git").exists():
            return
        git_dir, common = _git_dirs(self.root / path)
        words = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = git(*words, git_dir=git_dir, cwd=self.root / path, env={"GIT_WORK_TREE": str(self.root / path)})
        names = [f"{path}/{name}" for name in _strings(listed)]
        files = [name for name in names if _size(self.root / name) >= 0 and not self._is_left_out(name)]
        with (self.store / "objects" / "info" / "alternates").open("a") as f:
            f.write(f"{quote_word(str(common / 'objects'))}\n")
        data = "".join(f"{name}\0" for name in files).encode("utf-8", "surrogateescape")
        self._git("update-index", "--add", "-z", "--stdin", data=data)
        for name in names:
            if (self.root / name).is_dir() and not (self.root / name).is_symlink():
                self._add_submodule(name.rstrip("/"))

    def _has_index(self) -> bool:
        return (self.store / "index").exists()

    def _index(self, name: str) -> dict[str, str]:
        return {"GIT_INDEX_FILE": str(self.store / f"{name}-{os.urandom(4).hex()}.index")}  # threads have one each

    def _git(
        self, *arguments: str, data: bytes = b"", env: Mapping[str, str] | None = None, ok: tuple[int, ...] = (0,)
    ) -> bytes:
        full = {"GIT_WORK_TREE": str(self.root), "GIT_LITERAL_PATHSPECS": "1", **(env or {})}
        return git(*arguments, git_dir=self.store, cwd=self.root, data=data, env=full, ok=ok)


class Base(msgspec.Struct, frozen=True):
    """The directory of a run, as it was at the start."""

    trees: Trees
    tree: str
    cwd: Path
    """Directory in which the agent's commands start: the root of the tree, or a folder below."""

    @property
    def below(self) -> str:
        """`cwd` relative to the root of the tree, with `/`; `.` for the root itself."""
        return self.cwd.relative_to(self.trees.root).as_posix()


def _git_dirs(root: Path) -> tuple[Path, Path]:
    """Return (git directory, directory with the objects) of a checkout; they differ only for a worktree."""
    git_dir = root / ".git"
    if git_dir.is_file():
        git_dir = (root / _text(git_dir).removeprefix("gitdir:").strip()).resolve()
    common = _text(git_dir / "commondir").strip()
    return git_dir, (git_dir / common).resolve() if common else git_dir


def _size(path: Path) -> int:
    """Return the size of a regular file or link in bytes; -1 for anything else, or if it cannot be read."""
    try:
        found = path.lstat()
    except OSError:
        return -1
    if stat.S_ISLNK(found.st_mode):
        return found.st_size
    return found.st_size if stat.S_ISREG(found.st_mode) and os.access(path, os.R_OK) else -1


def _strings(data: bytes) -> list[str]:
    return data.decode("utf-8", "surrogateescape").split("\0")[:-1]


def _text(path: Path) -> str:
    try:
        return read_regular(path, MAX_FILE_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
