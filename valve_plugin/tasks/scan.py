"""The candidates of a source tree, kept: to look for them again takes minutes, and gives the same."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from platform import python_version

from valve_plugin import codec
from valve_plugin.bank.files import write_atomic
from valve_plugin.errors import RecordError
from valve_plugin.reading import regular
from valve_plugin.records import Record
from valve_plugin.tasks.smith import Candidate
from valve_plugin.tasks.source import File

_VERSION = 1
"""Of how candidates are found (`smith.candidates`, `generate.skip`) and kept."""
_PACKAGES = ("swesmith", "libcst")  # what decides how a bug is written down
_MOST = 1 << 29


class Scanned(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """candidates.json."""

    key: str
    candidates: tuple[Candidate, ...]


def key_of(files: Sequence[File], seed: int) -> str:
    """Return a hash of what determines the candidates: source, seed, and the versions of what finds them."""
    source = sorted((path, mode, codec.digest_bytes(content)) for path, mode, content in files)
    versions = [_VERSION, python_version(), *map(_version, _PACKAGES)]
    return codec.digest([source, seed, versions])


def kept(path: Path, key: str) -> list[Candidate] | None:
    """Return the candidates an earlier run found; None: there are none under this key that can be read."""
    try:
        found = codec.decode(regular(path, _MOST), Scanned, where=str(path))
    except (OSError, RecordError):
        return None
    return list(found.candidates) if found.key == key else None


def keep(path: Path, key: str, candidates: Sequence[Candidate]) -> None:
    """Write them down for the next run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, codec.canonical(Scanned(key=key, candidates=tuple(candidates))))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
