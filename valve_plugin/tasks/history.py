"""Trees and commits of a user's own repository, read with plumbing commands; nothing in it is ever written."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from valve_plugin.errors import InfrastructureError, TaskError
from valve_plugin.tasks.git import LONGEST, NO_PROGRAMS, git, read_tree
from valve_plugin.tasks.source import MAX_BYTES, File

ANSWERS = 60.0
"""Seconds after which a git that only has to look something up is waiting for a pipe that somebody planted."""

_ODD = frozenset({"", ".", "..", ".git"})


class Commit(NamedTuple):
    """One commit of a linear walk through the history."""

    id: str
    parent: str
    """Empty for the first one, also for the oldest of a shallow clone."""
    message: str
    paths: tuple[str, ...]
    """Files it changes."""


def git_dir(checkout: Path) -> Path:
    """Return the directory with a repository's objects and refs.

    Raises:
        TaskError: there is no git repository.
    """
    place = checkout.resolve()
    inside = any((folder / ".git").exists() for folder in (place, *place.parents))
    bare = not inside and (place / "HEAD").is_file()  # inside another, it is what somebody committed there
    try:
        own = place if bare else None
        words = ["rev-parse", "--absolute-git-dir"]
        found = git(*words, cwd=checkout, git_dir=own, env=trusting(checkout), seconds=ANSWERS).decode().strip()
    except (InfrastructureError, OSError) as e:
        raise TaskError(f"{checkout}: no git repository here; expected a checkout or a clone") from e
    return Path(found)


def goes_back(checkout: Path) -> bool:
    """Whether the commit a checkout is at has one before it: a new repository and a shallow clone have none."""
    try:
        words = ["rev-parse", "-q", "--verify", "HEAD^^{commit}"]
        return bool(git(*words, git_dir=git_dir(checkout), seconds=ANSWERS, ok=(0, 1, 128)))
    except (InfrastructureError, TaskError):
        return False


def files_at(repository: Path, commit: str) -> list[File]:
    """Return the files of a commit; submodules are left out.

    Args:
        repository: a git directory.

    Raises:
        TaskError: they are larger than a library's source is, or have a path that git itself would not write.
    """
    entries = {p: e for p, e in read_tree(repository, commit).items() if e[0] in ("100644", "100755", "120000")}
    if odd := next((path for path in entries if _ODD.intersection(path.lower().split("/"))), ""):
        raise TaskError(f"{commit}: its tree has the path {odd!r}, which git refuses to check out; is it an attack?")
    query = "".join(f"{oid}\n" for _, oid in entries.values()).encode()
    sizes = git("cat-file", "--batch-check=%(objectsize)", git_dir=repository, data=query).split(b"\n")
    if (size := sum(int(line) for line in sizes if line.isdigit())) > MAX_BYTES:
        raise TaskError(f"{repository}: {size:,} bytes in {commit}, expected at most {MAX_BYTES:,} of source")
    out = git("cat-file", "--batch", git_dir=repository, data=query)
    files, at = [], 0
    for path, (mode, _) in entries.items():
        end = out.index(b"\n", at)
        size = int(out[at:end].split()[2])
        files.append((path, mode, out[end + 1 : end + 1 + size]))
        at = end + 1 + size + 1
    return files


def resolve(repository: Path, name: str) -> str:
    """Return the commit id a name stands for, looking at branches of `origin` too; empty: there is none."""
    for candidate in (name, f"refs/heads/{name}", f"refs/remotes/origin/{name}"):
        if found := git("rev-parse", "-q", "--verify", f"{candidate}^{{commit}}", git_dir=repository, ok=(0, 1, 128)):
            return found.decode().strip()
    return ""


def walk(repository: Path, start: str, most: int) -> list[Commit]:
    """Return commits that are no merges, newest first, the message and the changed files of each."""
    form = "--format=%x01%H%x00%P%x00%B%x00"
    command = ["log", "--no-merges", f"-{most}", form, "--name-only", "-z", *NO_PROGRAMS, start]
    out = git(*command, git_dir=repository, seconds=LONGEST)
    found = []
    for record in out.decode("utf-8", "replace").split("\x01")[1:]:
        oid, parents, message, *paths = record.split("\0")
        names = tuple(path.strip("\n") for path in paths if path.strip("\n"))
        found.append(Commit(id=oid, parent=parents, message=message.strip(), paths=names))
    return found


def trusting(checkout: Path) -> dict[str, str]:
    """Only read from here on, so it does not matter who owns it."""
    key = {"GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": str(checkout.resolve())}
    return {"GIT_CONFIG_COUNT": "1", **key}
