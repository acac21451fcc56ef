"""Trees of a person's working directory: what a run started from, what it left, and the patch between them.

Everything is kept in a scratch repository that borrows the objects of the person's own one, so their `.git`, index and
files are only read. It works the same for a checkout, a worktree, a folder of a monorepo and a folder without git. It
stores bytes as they are (no filter or line-ending conversion runs) and never heeds a configuration inside the directory
it looks at, which an agent may have written.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from valve_plugin.bank.redact import is_env_file
from valve_plugin.errors import InfrastructureError
from valve_plugin.reading import regular
from valve_plugin.tasks.git import NO_PROGRAMS, create_store, git, ignore_file

MAX_FILE_BYTES = 20_000_000
"""An untracked file larger than this is left out."""
MAX_TOTAL_BYTES = 200_000_000
MAX_FILES = 20_000
"""Beyond either total all untracked files are left out: such a folder holds more than source code."""
_DIFF = ("diff-tree", "-r", "--no-renames", "--no-color", *NO_PROGRAMS, "--full-index")


class Change(msgspec.Struct, frozen=True):
    """One path that differs between two trees."""

    path: str
    lines: int
    """Lines added plus lines removed; 1 for a binary file."""
    binary: bool


class Trees:
    """Captures trees of one directory into a scratch repository."""

    def __init__(self, root: Path, scratch: Path, leave_out: Sequence[Path] = ()) -> None:
        """Prepare to capture `root`.

        Args:
            root: top of a work tree, or any folder.
            scratch: a directory outside of `root`, for this object alone; whoever made it removes it.
            leave_out: files and folders below `root` that are never captured, such as the bank.

        Raises:
            InfrastructureError: git is missing, or `root` is no folder to capture.
        """
        if root in (Path.home(), Path(root.anchor)) and not (root / ".git").exists():
            raise InfrastructureError(f"{root} is no project folder; start mini inside one")
        self.root, self.store = root, scratch / "store"
        self.notes: list[str] = []
        """What captures left out and why, one line each."""
        below = [path for path in leave_out if path != root and path.is_relative_to(root)]
        self._left_out = [path.relative_to(root).as_posix() for path in below]
        self._skipped: set[str] = set()
        self._only_known = False
        create_store(self.store)
        if (root / ".git").exists():
            self._borrow(*_git_dirs(root))
        with (self.store / "config").open("a") as f:
            f.write(f"[core]\n\texcludesFile = {_quoted(ignore_file())}\n")
        if any(path.exists() for path in below) and self._has_index():
            self._git("rm", "-r", "-q", "-f", "--cached", "--ignore-unmatch", "--", *self._left_out)
        if (root / ".gitmodules").exists():
            self._drop_submodules()

    def capture(self) -> str:
        """Return the id of the tree that `root` holds now, with new files, without ignored ones.

        Raises:
            InfrastructureError: git cannot read the directory.
        """
        if not self.root.is_dir():
            raise InfrastructureError(f"{self.root} is gone")
        if self._has_index():
            self._git("add", "-u", "--ignore-errors", ok=(0, 1))  # 1: a file could not be read, and stays as it was
        self._add_untracked()
        return self._git("write-tree", "--missing-ok").decode().strip()

    def changes(self, base: str, end: str) -> list[Change]:
        """Return the paths that differ between two trees, in tree order."""
        found = []
        for line in _strings(self._git(*_DIFF, "--numstat", "-z", base, end)):
            added, removed, path = line.split("\t", 2)
            found.append(Change(path, 1, True) if added == "-" else Change(path, int(added) + int(removed), False))
        return found

    def patch(self, base: str, end: str, paths: Sequence[str] | None = None) -> str:
        """Return the patch from one tree to the other, of all paths or some; binary files included.

        A file that is not UTF-8 goes in as binary, so the patch is always text, and exact.
        """
        try:
            return self.diff(base, end, paths).decode("utf-8")
        except UnicodeDecodeError:
            chosen = [change.path for change in self.changes(base, end)] if paths is None else paths
            return "".join(self._one_patch(base, end, path) for path in chosen)

    def diff(self, base: str, end: str, paths: Sequence[str] | None = None, *, text: bool = False) -> bytes:
        """Return the patch as git prints it; with `text`, binary content is shown too (for reading, not applying)."""
        if paths is not None and not paths:
            return b""
        return self._git(*_DIFF, "-p", "--text" if text else "--binary", base, end, "--", *(paths or ()))

    def paths(self, tree: str) -> list[str]:
        """Return every path of a tree."""
        return _strings(self._git("ls-tree", "-r", "-z", "--name-only", "--full-tree", tree))

    def with_paths_from(self, tree: str, source: str, paths: Sequence[str]) -> str:
        """Return `tree` with each path as it is in `source`: restored where it was changed, gone where it is new."""
        env = self._index("mixed")
        self._git("read-tree", tree, env=env)
        # An entry of mode 0 removes the path; ls-tree then lists only the ones the source has.
        null = "0" * len(tree)
        lines = [f"0 {null}\t{path}" for path in paths]
        lines += _strings(self._git("ls-tree", "-r", "-z", "--full-tree", source, "--", *paths)) if paths else []
        data = "".join(f"{line}\0" for line in lines).encode("utf-8", "surrogateescape")
        self._git("update-index", "-z", "--index-info", env=env, data=data)
        return self._git("write-tree", "--missing-ok", env=env).decode().strip()

    def write(self, tree: str, to: Path) -> None:
        """Write a tree's files into a directory, byte for byte."""
        to.mkdir(parents=True, exist_ok=True)
        env = self._index("written")
        self._git("read-tree", tree, env=env)
        self._git("checkout-index", "-a", "-f", "-q", f"--prefix={to}/", env=env)

    def applied(self, tree: str, patch: str) -> str:
        """Return a tree with a patch applied that was made from it.

        Raises:
            InfrastructureError: it does not apply.
        """
        env = self._index("applied")
        self._git("read-tree", tree, env=env)
        if patch:
            self._git("apply", "--cached", "--whitespace=nowarn", "-", env=env, data=patch.encode())
        return self._git("write-tree", "--missing-ok", env=env).decode().strip()

    def apply_to_root(self, patch: str) -> None:
        """Apply a patch to the person's files, all of it or none; their index stays as it is.

        Raises:
            InfrastructureError: it does not apply; nothing was changed.
        """
        for check in (["--check"], []):
            self._git("apply", *check, "--whitespace=nowarn", "-", data=patch.encode())

    def commit(self, tree: str) -> str:
        """Return a commit of the scratch repository that holds a tree and has no parent."""
        return self._git("commit-tree", tree, data=b"The tree the run started from\n").decode().strip()

    def _borrow(self, git_dir: Path, common: Path) -> None:
        """Take over objects, index and ignore rules of the person's repository, by reading only."""
        info = self.store / "objects" / "info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "alternates").write_text(f"{common / 'objects'}\n")
        if "objectformat = sha256" in _text(common / "config").lower():
            with (self.store / "config").open("a") as f:
                f.write("[core]\n\trepositoryformatversion = 1\n[extensions]\n\tobjectFormat = sha256\n")
        with (self.store / "info" / "exclude").open("a") as f:
            f.write("\n" + _text(common / "info" / "exclude"))
        for index in [git_dir / "index", *git_dir.glob("sharedindex.*")]:
            if index.is_file():
                # With its time stamp, by which git knows which entries it must not trust.
                shutil.copy2(index, self.store / index.name)

    def _add_untracked(self, tries: int = 3) -> None:
        """Take new files in; others work in the directory meanwhile, so one may be gone or change while it is read."""
        listed = "".join(f"{path}\0" for path in self._untracked()).encode("utf-8", "surrogateescape")
        try:
            self._git("update-index", "--add", "--remove", "-z", "--stdin", data=listed)  # --remove: gone is no error
        except InfrastructureError:
            if tries <= 1:
                raise
            self._add_untracked(tries - 1)

    def _untracked(self) -> list[str]:
        """Return new files that are not ignored, within the limits."""
        if self._only_known:
            return []
        found, total = [], 0
        for path in _strings(self._git("ls-files", "-z", "--others", "--exclude-standard")):
            if self._is_left_out(path):
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
                return self._give_up(f"{self.root} holds over {MAX_FILES:,} of them or {MAX_TOTAL_BYTES:,} bytes")
        return found

    def _give_up(self, why: str) -> list[str]:
        self._only_known = True  # from now on, or else files that were there would look new
        self.notes.append(f"untracked files are not captured: {why}; list them in .gitignore")
        return []

    def _is_left_out(self, path: str) -> bool:
        return (
            path in self._skipped
            or path.endswith("/")  # a repository of its own
            or is_env_file(path.rpartition("/")[2])
            or any(path == out or path.startswith(f"{out}/") for out in self._left_out)
        )

    def _drop_submodules(self) -> None:
        entries = _strings(self._git("ls-files", "-s", "-z")) if self._has_index() else []
        paths = "".join(f"{entry.partition(chr(9))[2]}\0" for entry in entries if entry.startswith("160000 "))
        self._git("update-index", "-z", "--force-remove", "--stdin", data=paths.encode("utf-8", "surrogateescape"))

    def _one_patch(self, base: str, end: str, path: str) -> str:
        raw = self.diff(base, end, [path])
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return git(*_DIFF, "-p", "--binary", base, end, "--", path, git_dir=self._binary_store()).decode("ascii")

    def _binary_store(self) -> Path:
        """Return a repository with the same objects that takes every file for binary."""
        store = self.store / f"binary-{os.urandom(4).hex()}"
        create_store(store)
        shutil.copy(self.store / "config", store / "config")
        (store / "info" / "attributes").write_text("* -diff\n")
        (store / "objects" / "info" / "alternates").write_text(f"{self.store / 'objects'}\n")
        return store

    def _has_index(self) -> bool:
        return (self.store / "index").exists()

    def _index(self, name: str) -> dict[str, str]:
        return {"GIT_INDEX_FILE": str(self.store / f"{name}-{os.urandom(4).hex()}.index")}  # threads have one each

    def _git(
        self,
        *arguments: str,
        data: bytes = b"",
        env: Mapping[str, str] | None = None,
        ok: tuple[int, ...] = (0,),
    ) -> bytes:
        full = {"GIT_WORK_TREE": str(self.root), "GIT_LITERAL_PATHSPECS": "1", **(env or {})}
        return git(*arguments, git_dir=self.store, cwd=self.root, data=data, env=full, ok=ok)


def _git_dirs(root: Path) -> tuple[Path, Path]:
    """Return the git directory of a work tree and the one that holds its objects (the same, but for a worktree)."""
    git_dir = root / ".git"
    if git_dir.is_file():
        git_dir = (root / _text(git_dir).removeprefix("gitdir:").strip()).resolve()
    common = _text(git_dir / "commondir").strip()
    return git_dir, (git_dir / common).resolve() if common else git_dir


def _size(path: Path) -> int:
    """Return the bytes of a regular file or link; -1 for what cannot be read or is neither."""
    try:
        found = path.lstat()
    except OSError:
        return -1
    if stat.S_ISLNK(found.st_mode):
        return found.st_size
    return found.st_size if stat.S_ISREG(found.st_mode) and os.access(path, os.R_OK) else -1


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _strings(data: bytes) -> list[str]:
    return data.decode("utf-8", "surrogateescape").split("\0")[:-1]


def _text(path: Path) -> str:
    try:
        return regular(path, MAX_FILE_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
