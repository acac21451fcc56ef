"""Running git with a fixed identity, without user or system configuration, on exact bytes.

In a user's own repository, trees and commits are only read, with plumbing commands.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from valve_plugin.errors import InfrastructureError, TaskError
from valve_plugin.sandbox.supervisor import run_child

# A fixed identity and time, so that equal trees give equal commits on every machine.
_FIXED = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",  # fetching a missing object could run programs named in the configuration
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_AUTHOR_NAME": "valve",
    "GIT_AUTHOR_EMAIL": "valve@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "valve",
    "GIT_COMMITTER_EMAIL": "valve@localhost",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
    "LC_ALL": "C",
}
# Overrides all .gitattributes of a tree, so that files are stored and read back byte for byte.
_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding -export-ignore -export-subst\n"
# Files that test runs create; they are never part of a patch.
_EXCLUDE = "__pycache__/\n*.py[co]\n.pytest_cache/\n.mypy_cache/\n.ruff_cache/\n.hypothesis/\n.coverage\n"

# Configuration and hooks of a repository can name programs, and a hostile repository may be committed inside another.
# So only a `.git` (which a clone never contains) or a directory that we name is accepted as a repository.
_RUNS_NOTHING = tuple(
    word
    for setting in (
        "core.fsmonitor=false",
        f"core.hooksPath={os.devnull}",
        "log.showSignature=false",
        "safe.bareRepository=explicit",
    )
    for word in ("-c", setting)
)
_COMMITTER = "committer valve <valve@localhost> 946684800 +0000"
_HOSTILE_NAMES = frozenset({"", ".", "..", ".git"})
_ID = re.compile(r"[0-9a-f]{40}")
_SECTION = re.compile(rb"^(?=diff --git )", re.MULTILINE)  # content lines start with a blank, +, - or a backslash

MAX_SECONDS = 600.0
"""Time limit for reading a history or listing the files of a working tree."""

ANSWER_SECONDS = 60.0
"""Time limit for a simple query. A longer one waits, perhaps for a pipe that was planted in the repository."""
MAX_SOURCE_BYTES = 500_000_000
"""Size limit of a library's source tree."""

MAX_PATCH_BYTES = 10_000_000

PLAIN_CONFIG = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n"
"""Configuration of a new checkout."""

NO_PROGRAMS = ("--no-ext-diff", "--no-textconv")
"""Options of every `log` and `diff-tree`, because attributes of a tree can also name programs."""

TreeEntry = tuple[str, str]
"""(mode, object id) of one path."""
File = tuple[str, str, bytes]
"""Relative path, git mode (100644, 100755 or 120000), content."""


class Commit(NamedTuple):
    """One commit that is not a merge."""

    id: str
    parent: str
    """Id of the parent; empty for the first commit, also that of a shallow clone."""
    message: str
    paths: tuple[str, ...]
    """Paths of the changed files."""


def git(
    *arguments: str,
    git_dir: Path | None = None,
    cwd: Path | None = None,
    data: bytes = b"",
    env: Mapping[str, str] | None = None,
    ok: tuple[int, ...] = (0,),
    seconds: float | None = None,
    cpu_seconds: int = 0,
) -> bytes:
    """Run one git command and return its standard output. It runs no program that a repository names.

    Args:
        seconds: limit on its wall time; git then also ends with this process. Needed for a user's own repository, which
            may be large or contain pipes that never end. On our own stores git takes milliseconds.
        cpu_seconds: limit on its CPU time, which does not depend on the machine's load; 0 for none. Needed for files
            that an agent wrote: some ignore patterns take forever.

    Raises:
        InfrastructureError: git is missing, ends with another exit code, or takes longer than `seconds`.
        TaskError: it takes more than `cpu_seconds`.
    """
    full = {"PATH": os.environ.get("PATH", os.defpath), **_FIXED, **(env or {})}
    if git_dir is not None:
        full["GIT_DIR"] = str(git_dir)
    command = ["git", *_RUNS_NOTHING, *arguments]
    if cpu_seconds:
        command = ["/bin/sh", "-c", 'ulimit -t "$0"; exec "$@"', str(cpu_seconds), *command]
    try:
        if seconds is None:
            done = subprocess.run(command, cwd=cwd, env=full, input=data, capture_output=True, check=False)
        else:
            done = run_child(command, cwd=cwd, env=full, data=data, seconds=seconds)
    except subprocess.TimeoutExpired as e:
        raise InfrastructureError(f"git {arguments[0]} did not end within {seconds:.0f} s") from e
    except OSError as e:
        raise InfrastructureError(f"git cannot be run: {e}; install git and put it on PATH") from e
    if cpu_seconds and done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise TaskError(f"git {arguments[0]} used more than {cpu_seconds} s of CPU time on the agent's files")
    if done.returncode not in ok:
        errors = done.stderr.decode("utf-8", "replace").strip()[-500:]
        raise InfrastructureError(f"git {arguments[0]} ended with {done.returncode}: {errors}")
    return done.stdout


def git_line(*arguments: str, **options: Any) -> str:
    """Run one git command and return its output as stripped text; see `git`."""
    return git(*arguments, **options).decode().strip()


def user_ignore_file() -> str:
    """Return the path of the user's ignore file: from their git configuration, else git's default."""
    env = {**os.environ, "GIT_DIR": os.devnull}  # ignores the configuration of repositories
    # No time limit: it reads only one or two files.
    command = ["git", "config", "--type=path", "--get", "core.excludesFile"]
    named = subprocess.run(command, env=env, capture_output=True, check=False).stdout.decode().strip()
    return named or str(Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "git" / "ignore")


def create_store(path: Path) -> None:
    """Make a bare repository that stores files without conversions, for this user only."""
    git("init", "-q", "--bare", "--template=", "--shared=0600", str(path))
    info = path / "info"
    info.mkdir(exist_ok=True)
    (info / "attributes").write_text(_ATTRIBUTES)
    (info / "exclude").write_text(_EXCLUDE)


def borrow_objects(store: Path) -> dict[str, str]:
    """Return variables with which git in another repository also reads the objects of this one."""
    return {"GIT_ALTERNATE_OBJECT_DIRECTORIES": quote_word(str(store.absolute() / "objects"))}  # may have a colon


def quote_word(word: str) -> str:
    """Return a word quoted as in git's configuration and lists of paths."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def import_files(
    store: Path,
    files: Iterable[File],
    ref: str,
    *,
    parent: str = "",
    removed: Iterable[str] = (),
    env: Mapping[str, str] | None = None,
) -> str:
    """Commit files as `ref`; return the commit id.

    Args:
        parent: commit with all other files, or an empty string.
        removed: paths of the parent to remove.
    """
    before = f"from {parent}\n" if parent else ""
    stream = [f"commit {ref}\n{_COMMITTER}\ndata 4\nbase\n{before}".encode()]
    stream += [b"D %b\n" % _quote(path) for path in removed]
    for path, mode, content in sorted(files):
        stream.append(b"M %b inline %b\ndata %d\n%b\n" % (mode.encode(), _quote(path), len(content), content))
    git("fast-import", "--quiet", "--force", git_dir=store, data=b"".join(stream), env=env)
    return git_line("rev-parse", ref, git_dir=store, env=env)


def _quote(path: str) -> bytes:
    return quote_word(path).encode("utf-8", "surrogateescape")


def read_tree(store: Path, tree: str) -> dict[str, TreeEntry]:
    """Return every path of a tree (or commit) with its mode and object id."""
    if _ID.fullmatch(tree):  # the last ones are kept: each grade compares with the same trees
        return dict(_kept_tree(store, tree))
    return _kept_tree.__wrapped__(store, tree)


@lru_cache(maxsize=16)
def _kept_tree(store: Path, tree: str) -> dict[str, TreeEntry]:
    out = git("ls-tree", "-r", "-z", "--full-tree", tree, git_dir=store)
    entries = {}
    for line in out.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        meta, path = line.split("\t", 1)
        mode, _, oid = meta.split(" ")
        entries[path] = (mode, oid)
    return entries


def write_tree(store: Path, entries: Mapping[str, TreeEntry], index: Path) -> str:
    """Write a tree of exactly these entries, using a scratch index file; return its id."""
    lines = "".join(f"{mode} {oid}\t{path}\0" for path, (mode, oid) in entries.items())
    env = {"GIT_INDEX_FILE": str(index)}
    index.unlink(missing_ok=True)
    git("update-index", "-z", "--index-info", git_dir=store, env=env, data=lines.encode("utf-8", "surrogateescape"))
    return git_line("write-tree", git_dir=store, env=env)


def apply_patch(store: Path, tree: str, patch: str, index: Path) -> str | None:
    """Apply a patch to a tree (or commit); return the new tree's id, or None if it does not apply.

    If it does not apply directly, a three-way merge with the blobs that it names is tried.

    Args:
        index: a scratch index file, overwritten.
    """
    store, env = store.absolute(), {"GIT_INDEX_FILE": str(index.absolute())}
    git("read-tree", tree, git_dir=store, env=env)
    try:
        data = patch.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None
    for merge in ([], ["--3way"]):
        # Even with --cached, a three-way merge writes a file that is in both trees to the working directory.
        with tempfile.TemporaryDirectory(prefix="apply-", dir=index.absolute().parent) as empty:
            try:
                options = ("--cached", "--whitespace=nowarn", *merge)
                git("apply", *options, git_dir=store, env=env, cwd=Path(empty), data=data)
            except InfrastructureError:
                git("read-tree", tree, git_dir=store, env=env)
            else:
                return git_line("write-tree", "--missing-ok", git_dir=store, env=env)
    return None


def diff_trees(
    store: Path,
    old: str,
    new: str,
    paths: Sequence[str] = (),
    *,
    env: Mapping[str, str] | None = None,
    max_bytes: float = MAX_PATCH_BYTES,
) -> str:
    """Return the patch between two trees (or commits) as text that applies byte for byte.

    A text file that is not UTF-8 is written in git's binary format.

    Raises:
        TaskError: it is larger than `max_bytes`, or the target of a link is not UTF-8.
    """
    options = ["-p", "-r", "--binary", "--full-index", "--no-renames", "--no-color", *NO_PROGRAMS]
    command = ["diff-tree", *options, old, new, "--", *paths]
    env = {"GIT_LITERAL_PATHSPECS": "1", **(env or {})}
    patch = git(*command, git_dir=store, env=env)
    if len(patch) <= max_bytes and not _is_utf8(patch):
        with tempfile.NamedTemporaryFile("w", suffix=".attributes") as attributes:
            attributes.write("* -diff\n")
            attributes.flush()
            binary = git("-c", f"core.attributesFile={attributes.name}", *command, git_dir=store, env=env)
        both = zip(_SECTION.split(patch), _SECTION.split(binary), strict=True)  # one section per file
        patch = b"".join(text if _is_utf8(text) else whole for text, whole in both)
    if len(patch) > max_bytes:
        raise TaskError(f"the patch has {len(patch):,} bytes, expected at most {max_bytes:,}")
    try:
        return patch.decode("utf-8")
    except UnicodeDecodeError as e:  # git writes links as text always
        raise TaskError(f"the patch cannot be written: the target of a link is not UTF-8 text ({e})") from e


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def find_git_dir(checkout: Path) -> Path:
    """Return the directory with a repository's objects and refs.

    Raises:
        TaskError: there is no git repository.
    """
    place = checkout.resolve()
    inside = any((folder / ".git").exists() for folder in (place, *place.parents))
    bare = not inside and (place / "HEAD").is_file()  # inside another repository it may be hostile
    try:
        words, own = ["rev-parse", "--absolute-git-dir"], place if bare else None
        env = trust_checkout(checkout)
        return Path(git_line(*words, cwd=checkout, git_dir=own, env=env, seconds=ANSWER_SECONDS))
    except (InfrastructureError, OSError) as e:
        raise TaskError(f"{checkout}: not a git repository; expected a checkout or a clone") from e


def has_history(checkout: Path) -> bool:
    """Whether the commit of a checkout has a parent. (It has none in a new repository or a shallow clone.)"""
    try:
        words = ["rev-parse", "-q", "--verify", "HEAD^^{commit}"]
        return bool(git(*words, git_dir=find_git_dir(checkout), seconds=ANSWER_SECONDS, ok=(0, 1, 128)))
    except (InfrastructureError, TaskError):
        return False


def read_files(repository: Path, commit: str) -> list[File]:
    """Return the files of a commit; submodules are left out.

    Raises:
        TaskError: they are too large for a library's source, or have a path that git would not check out.
    """
    entries = {p: e for p, e in read_tree(repository, commit).items() if e[0] in ("100644", "100755", "120000")}
    if odd := next((path for path in entries if _HOSTILE_NAMES.intersection(path.lower().split("/"))), ""):
        raise TaskError(f"{commit}: its tree has the path {odd!r}, which git refuses to check out")
    query = "".join(f"{oid}\n" for _, oid in entries.values()).encode()
    sizes = git("cat-file", "--batch-check=%(objectsize)", git_dir=repository, data=query).split(b"\n")
    if (size := sum(int(line) for line in sizes if line.isdigit())) > MAX_SOURCE_BYTES:
        raise TaskError(f"{repository}: {size:,} bytes in {commit}, expected at most {MAX_SOURCE_BYTES:,} of source")
    contents = read_blobs(repository, [oid for _, oid in entries.values()])
    return [(path, mode, content) for (path, (mode, _)), content in zip(entries.items(), contents, strict=True)]


def read_blobs(repository: Path, ids: Sequence[str]) -> list[bytes]:
    """Return the contents of these objects of a git directory."""
    out = git("cat-file", "--batch", git_dir=repository, data="".join(f"{oid}\n" for oid in ids).encode())
    contents, at = [], 0
    for _ in ids:
        end = out.index(b"\n", at)
        size = int(out[at:end].split()[2])
        contents.append(out[end + 1 : end + 1 + size])
        at = end + 1 + size + 1
    return contents


def resolve_commit(repository: Path, name: str) -> str:
    """Return the commit id of a name or branch (also of `origin`), or an empty string if there is none."""
    for candidate in (name, f"refs/heads/{name}", f"refs/remotes/origin/{name}"):
        if found := git("rev-parse", "-q", "--verify", f"{candidate}^{{commit}}", git_dir=repository, ok=(0, 1, 128)):
            return found.decode().strip()
    return ""


def read_log(repository: Path, start: str, most: int) -> list[Commit]:
    """Return up to `most` commits that are not merges, newest first."""
    form = "--format=%x01%H%x00%P%x00%B%x00"
    command = ["log", "--no-merges", f"-{most}", form, "--name-only", "-z", *NO_PROGRAMS, start]
    out = git(*command, git_dir=repository, seconds=MAX_SECONDS)
    found = []
    for record in out.decode("utf-8", "replace").split("\x01")[1:]:
        oid, parents, message, *paths = record.split("\0")
        names = tuple(path.strip("\n") for path in paths if path.strip("\n"))
        found.append(Commit(id=oid, parent=parents, message=message.strip(), paths=names))
    return found


def trust_checkout(checkout: Path) -> dict[str, str]:
    """Return variables with which git reads a checkout of another owner. (We never write to it.)"""
    key = {"GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": str(checkout.resolve())}
    return {"GIT_CONFIG_COUNT": "1", **key}
