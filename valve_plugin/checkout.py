"""Which repository a directory belongs to."""

from __future__ import annotations

import re
import subprocess
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from valve_plugin.files import read_text
from valve_plugin.paths import BANK_NAME

# Files that say "a project starts here"; the nearest one above a directory marks a monorepo's package.
PROJECT_FILES = [
    *("pyproject.toml", "setup.py", "setup.cfg", "package.json", "go.mod", "Cargo.toml", "pom.xml", "build.gradle"),
    *("build.gradle.kts", "Gemfile", "composer.json", "mix.exs", "Package.swift", "CMakeLists.txt"),
]

_GIT_SECONDS = 10.0
_SCP = re.compile(r"^(?:[^@/]+@)?[^:/]+:(?P<path>(?!//).+)$")  # git@host:owner/name.git


class Checkout(NamedTuple):
    """What a bank belongs to: a repository, or one package folder of it."""

    folder: Path
    """Absolute; where `.valve` is, or would be."""
    root: Path
    """Top of the work tree, or `folder` where there is no git."""
    name: str
    """owner/name, with the package's path for a package folder."""
    named_by: str
    """How the name was found, in words."""
    git: bool

    @property
    def package(self) -> str:
        """Path of the package folder within the repository; empty for the whole repository."""
        relative = self.folder.relative_to(self.root).as_posix()
        return "" if relative == "." else relative


def find(start: Path) -> Checkout:
    """Find the repository around `start`.

    The folder is the nearest one upwards, within the work tree, that holds a bank; else the nearest with a
    project file; else the top of the work tree. Outside git the same, up to the first hit, else `start`.
    """
    start = start.resolve()
    upwards = [start, *start.parents]
    root = next((d for d in upwards if (d / ".git").exists()), None)
    # Without git, do not climb into the home directory or the file system's root: they are no repository.
    stop = {Path.home(), upwards[-1]}
    within = upwards[: upwards.index(root) + 1] if root else list(takewhile(lambda d: d not in stop, upwards))
    folder = _nearest_folder(within, [BANK_NAME]) or _nearest_folder(within, PROJECT_FILES) or root or start
    name, how = _name(root) if root else (folder.name, "name of the folder (no git here)")
    package = "" if root is None else folder.relative_to(root).as_posix()
    if package not in ("", "."):
        name = f"{name}/{package}"
    return Checkout(folder=folder, root=root or folder, name=name, named_by=how, git=root is not None)


def name_of(url: str) -> str:
    """Return owner/name for a remote's URL (never its host, user or password), or the last part of a local path."""
    scp = _SCP.match(url)
    if scp:
        path = scp["path"]
    elif "://" in url:
        parts = urlsplit(url)
        path = parts.path if parts.scheme != "file" else Path(parts.path).name
    else:
        path = Path(url).name
    names = path.strip("/").removesuffix(".git").split("/")
    return "/".join(part for part in names if part not in ("", ".", ".."))  # it becomes the name of folders


def remote_names(root: Path) -> list[str]:
    """Return what the remotes of a work tree call the repository: a fork's owner, and whom it was forked from."""
    if not (root / ".git").exists():
        return []
    return [name for url in _remotes(_common_dir(root)).values() if (name := name_of(url))]


def _nearest_folder(directories: list[Path], names: list[str]) -> Path | None:
    return next((d for d in directories if any((d / n).exists() for n in names)), None)


def _name(root: Path) -> tuple[str, str]:
    common = _common_dir(root)
    remotes = _remotes(common)
    for remote in ("origin", *remotes):
        name = name_of(remotes.get(remote, ""))
        if name:
            return name, f"git remote {remote}"
    # Without a remote every worktree still belongs to the repository whose directory holds the objects.
    home = common.parent if common.name == ".git" else common
    return home.name.removesuffix(".git"), "name of the repository's folder (no git remote)"


def _common_dir(root: Path) -> Path:
    """Return the directory that holds the repository's config: `.git`, or where a worktree's `.git` file leads."""
    dot = root / ".git"
    if dot.is_dir():
        return dot
    link = read_text(dot).removeprefix("gitdir:").strip()
    own = (root / link).resolve()
    common = read_text(own / "commondir").strip()
    return (own / common).resolve() if common else own


def _remotes(git_dir: Path) -> dict[str, str]:
    """Return the address of each remote. git reads its configuration itself, because that may include other files."""
    command = ["git", "--git-dir", str(git_dir), "config", "--file", str(git_dir / "config"), "--includes", "-z"]
    command += ["--get-regexp", r"^remote\..*\.url$"]
    try:  # the time limit is for an included pipe
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=_GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found: dict[str, str] = {}
    for entry in done.stdout.decode("utf-8", "replace").split("\0"):
        key, _, url = entry.partition("\n")
        if url:
            found.setdefault(key.removeprefix("remote.").removesuffix(".url"), url)
    return found
