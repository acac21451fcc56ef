"""Source trees as (path, mode, content) triples: from a PyPI source archive or from a directory."""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from valve_plugin.errors import TaskError
from valve_plugin.reading import regular
from valve_plugin.rollouts.foreign import walk
from valve_plugin.tasks.environment import pip

File = tuple[str, str, bytes]
"""Relative path, git mode (100644, 100755 or 120000), content."""

MAX_BYTES = 500_000_000
_SKIP = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".mypy_cache"})


def download(python: Path, requirement: str, into: Path) -> Path:
    """Download the source archive of `NAME==VERSION` with pip, which knows the user's index; return the file.

    Raises:
        InfrastructureError: pip failed.
        TaskError: the release has no source archive.
    """
    name = requirement.partition("==")[0]
    into.mkdir(parents=True, exist_ok=True)
    pip(python, "download", "--no-deps", "--no-binary", name, "-d", str(into), requirement)
    found = sorted(p for p in into.iterdir() if p.name.endswith((".tar.gz", ".tgz", ".zip", ".tar.bz2")))
    if len(found) != 1:
        raise TaskError(f"{requirement}: expected one source archive, got {[p.name for p in into.iterdir()]}")
    return found[0]


def from_archive(archive: Path, sha256: str = "") -> list[File]:
    """Read a source archive without unpacking it; its single top directory is dropped.

    Raises:
        TaskError: other content than `sha256` says, absolute or climbing paths, too large, or not an archive.
    """
    found = hashlib.sha256(_bytes(archive)).hexdigest()
    if sha256 and found != sha256:
        raise TaskError(f"{archive.name}: sha256 is {found}, expected {sha256}; the tasks were made from other source")
    try:
        members = list(_zip(archive) if archive.suffix == ".zip" else _tar(archive))
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as e:
        raise TaskError(f"{archive.name}: not a readable source archive: {e}") from e
    files = [(_relative(path, archive), mode, content) for path, mode, content in members]
    return [file for file in files if file[0]]


def from_directory(root: Path) -> list[File]:
    """Read a source tree, without version control, environments and caches.

    Raises:
        TaskError: no such directory, or larger than 500 MB.
    """
    if not root.is_dir():
        raise TaskError(f'{root}: no such directory; `source = "path:…"` is relative to repository.toml')
    files, size = [], 0
    for folder in walk(root.resolve(), skip=True):
        for name in [n for n in folder.folders if n in _SKIP or os.path.exists(root / folder.path(n) / "pyvenv.cfg")]:
            folder.folders.remove(name)
        for name in folder.others:
            if file := _read(root / folder.path(name), folder.path(name)):
                files.append(file)
                size += len(file[2])
                _check_size(size, root)
    return files


def _read(path: Path, name: str) -> File | None:
    try:
        info = path.lstat()
    except OSError as e:  # gone, or a name longer than the system takes
        raise TaskError(f"{name[:80]}: {e.strerror or e}") from e
    if stat.S_ISLNK(info.st_mode):
        return name, "120000", os.fsencode(os.readlink(path))
    if not stat.S_ISREG(info.st_mode) or name.endswith(".pyc") or _is_git([path.name]):
        return None
    return name, "100755" if info.st_mode & 0o111 else "100644", _bytes(path)


def _bytes(path: Path) -> bytes:
    try:
        _check_size(path.stat().st_size, path)
        return regular(path, MAX_BYTES)
    except OSError as e:
        raise TaskError(f"{path}: {e.strerror or e}") from e


def _tar(archive: Path) -> Iterator[File]:
    size = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            size += member.size
            _check_size(size, archive)
            mode = "100755" if member.mode & 0o111 else "100644"
            if member.isfile() and (handle := tar.extractfile(member)):
                yield member.name, mode, handle.read()
            elif member.issym():
                yield member.name, "120000", member.linkname.encode()


def _zip(archive: Path) -> Iterator[File]:
    with zipfile.ZipFile(archive) as zipped:
        _check_size(sum(i.file_size for i in zipped.infolist()), archive)
        for info in zipped.infolist():
            if not info.is_dir():
                yield info.filename, "100755" if (info.external_attr >> 16) & 0o111 else "100644", zipped.read(info)


def _relative(name: str, archive: Path) -> str:
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts:
        raise TaskError(f"{archive.name}: hostile path {name!r}")
    return "" if _is_git(parts) else "/".join(parts[1:])  # a submodule leaves a file .git behind


def _is_git(parts: Sequence[str]) -> bool:
    """True for what git takes for its own, and refuses in a tree."""
    return any(part.lower() == ".git" for part in parts)


def _check_size(size: int, where: Path) -> None:
    if size > MAX_BYTES:
        raise TaskError(f"{where}: more than {MAX_BYTES:,} bytes of source; expected a library's source tree")
