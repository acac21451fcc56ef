"""Git as a function: a fixed identity, no user or system configuration, exact bytes, errors that say what failed."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from valve_plugin.errors import InfrastructureError
from valve_plugin.rollouts import lifeline

# One identity and one moment, so that equal trees give equal commits on every machine.
_FIXED = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",  # an object that is not here is not asked for: fetching runs what the config names
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_AUTHOR_NAME": "valve",
    "GIT_AUTHOR_EMAIL": "valve@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "valve",
    "GIT_COMMITTER_EMAIL": "valve@localhost",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
    "LC_ALL": "C",
}
# Outranks every .gitattributes of a tree: what is stored is what is read back, byte for byte.
_ATTRIBUTES = "* -text -eol -ident -filter -working-tree-encoding -export-ignore -export-subst\n"
# What running tests leaves behind; never part of a patch.
_EXCLUDE = "__pycache__/\n*.py[co]\n.pytest_cache/\n.mypy_cache/\n.ruff_cache/\n.hypothesis/\n.coverage\n"

# A repository's configuration and hooks name programs, and it may be one that somebody committed inside another,
# to be found by whoever looks below it. Only a `.git`, which no clone brings, or a directory we name is a repository.
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

LONGEST = 600.0
"""Seconds that looking through a repository may take: its history, or the files of its working tree."""

NO_PROGRAMS = ("--no-ext-diff", "--no-textconv")
"""What every `log` and `diff-tree` is given: attributes of a tree choose programs too."""

TreeEntry = tuple[str, str]
"""(mode, object id) of one path."""


def git(
    *arguments: str,
    git_dir: Path | None = None,
    cwd: Path | None = None,
    data: bytes = b"",
    env: Mapping[str, str] | None = None,
    ok: tuple[int, ...] = (0,),
    seconds: float | None = None,
) -> bytes:
    """Run one git command, which runs no program that a repository names, and return its standard output.

    Args:
        seconds: of wall clock it may take, for what looks through a user's own repository: that can be long, and pipes
            in a `.git` that came out of an archive wait for ever. It also ends with this process. None: any. The others
            work on our own stores or on what they are given, for milliseconds, and the end of their input or output,
            which is a pipe of ours, ends them.

    Raises:
        InfrastructureError: git is missing, ends with a code that is not in `ok`, or not within `seconds`.
    """
    full = {"PATH": os.environ.get("PATH", os.defpath), **_FIXED, **(env or {})}
    if git_dir is not None:
        full["GIT_DIR"] = str(git_dir)
    command = ["git", *_RUNS_NOTHING, *arguments]
    try:
        if seconds is None:
            done = subprocess.run(command, cwd=cwd, env=full, input=data, capture_output=True, check=False)
        else:
            done = lifeline.run(command, cwd=cwd, env=full, data=data, seconds=seconds)
    except subprocess.TimeoutExpired as e:
        raise InfrastructureError(f"git {arguments[0]} did not end within {seconds:.0f} s") from e
    except OSError as e:
        raise InfrastructureError(f"git cannot be run: {e}; install git and put it on PATH") from e
    if done.returncode not in ok:
        said = done.stderr.decode("utf-8", "replace").strip()[-500:]
        raise InfrastructureError(f"git {arguments[0]} ended with {done.returncode}: {said}")
    return done.stdout


def blob_id(data: bytes, like: str) -> str:
    """Return the id git gives a file's content, in the format of another id. Pure."""
    algorithm = hashlib.sha256 if len(like) == 64 else hashlib.sha1  # a name in git's store, no protection
    return algorithm(b"blob %d\0" % len(data) + data).hexdigest()


def ignore_file() -> str:
    """Return the person's own ignore file, from their git configuration or git's default place."""
    env = {**os.environ, "GIT_DIR": os.devnull}  # no repository's configuration is asked
    # It reads a file or two, so nobody has to end it.
    command = ["git", "config", "--type=path", "--get", "core.excludesFile"]
    named = subprocess.run(command, env=env, capture_output=True, check=False).stdout.decode().strip()
    return named or str(Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "git" / "ignore")


def create_store(path: Path) -> None:
    """Make a bare repository that keeps bytes as they are."""
    git("init", "-q", "--bare", "--template=", str(path))
    info = path / "info"
    info.mkdir(exist_ok=True)
    (info / "attributes").write_text(_ATTRIBUTES)
    (info / "exclude").write_text(_EXCLUDE)


def import_files(store: Path, files: Iterable[tuple[str, str, bytes]], ref: str) -> str:
    """Commit (path, mode, content) triples without a parent as `ref`; return the commit id."""
    stream = [f"commit {ref}\n{_COMMITTER}\ndata 4\nbase\n".encode()]
    for path, mode, content in sorted(files):
        stream.append(f"M {mode} inline {_quote(path)}\ndata {len(content)}\n".encode() + content + b"\n")
    git("fast-import", "--quiet", "--force", git_dir=store, data=b"".join(stream))
    return git("rev-parse", ref, git_dir=store).decode().strip()


def amend(
    repository: Path, commit: str, changes: Mapping[str, tuple[str, bytes] | None], env: Mapping[str, str]
) -> None:
    """Make refs/heads/main a commit like `commit`, but for these files: mode and content, or None for one that goes."""
    stream = [
        f"commit refs/heads/main\ncommitter valve <valve@localhost> 946684800 +0000\ndata 0\nfrom {commit}\n".encode()
    ]
    stream += [b"D %b\n" % _quoted(path) for path, now in changes.items() if now is None]
    for path, now in changes.items():
        if now is not None:
            stream.append(b"M %b inline %b\ndata %d\n%b\n" % (now[0].encode(), _quoted(path), len(now[1]), now[1]))
    git("fast-import", "--quiet", "--force", git_dir=repository, data=b"".join(stream), env=env)


def read_tree(store: Path, tree: str) -> dict[str, TreeEntry]:
    """Return every path of a tree (or commit) with its mode and object id."""
    out = git("ls-tree", "-r", "-z", "--full-tree", tree, git_dir=store)
    entries = {}
    for line in out.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        meta, path = line.split("\t", 1)
        mode, _, oid = meta.split(" ")
        entries[path] = (mode, oid)
    return entries


def write_tree(store: Path, entries: Mapping[str, TreeEntry], index: Path, env: Mapping[str, str] | None = None) -> str:
    """Write a tree of exactly these entries, by way of a scratch index file; return its id."""
    lines = "".join(f"{mode} {oid}\t{path}\0" for path, (mode, oid) in entries.items())
    env = {**(env or {}), "GIT_INDEX_FILE": str(index)}
    index.unlink(missing_ok=True)
    git("update-index", "-z", "--index-info", git_dir=store, env=env, data=lines.encode("utf-8", "surrogateescape"))
    return git("write-tree", git_dir=store, env=env).decode().strip()


def _quoted(path: str) -> bytes:
    return _quote(path).encode("utf-8", "surrogateescape")


def _quote(path: str) -> str:
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
