"""Where a command may write what a person names: nothing of a bank, nothing that is not its own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from valve_plugin.errors import ConfigError
from valve_plugin.reading import regular

_MOST = 50_000_000
"""Bytes of a table."""


def page(option: str, path: Path, kept: Sequence[Path]) -> None:
    """Require a file that an HTML page may be written to.

    Args:
        kept: folders nothing may be written into.

    Raises:
        ConfigError: another suffix, a folder, a file that is no page, or a place nothing can or may be written to.
    """
    with usable(option, path):
        if path.suffix.lower() not in (".html", ".htm"):
            raise ConfigError(f"{option} {path}: the page is HTML; name a file ending in .html or .htm")
        _outside(option, path, kept)
        if path.exists() and not path.is_file():
            raise ConfigError(f"{option} {path}: is no file; name the file to write, such as {path / 'report.html'}")
        if path.exists() and not _html(path):
            raise ConfigError(f"{option} {path}: exists and is no HTML page; name another file, or remove it first")
        _writable(option, path.parent)


def folder(option: str, path: Path, kept: Sequence[Path] = ()) -> None:
    """Require a folder, or a place where one can be made, outside of every bank.

    Raises:
        ConfigError: a file, inside a bank or a folder of `kept`, or nothing can be written there.
    """
    with usable(option, path):
        _outside(option, path, kept)
        _writable(option, path)


def within(option: str, path: Path) -> None:
    """Require, before the work, that the folder a file goes to is there.

    Raises:
        ConfigError: it is not.
    """
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no folder {path.parent}; name a file in a folder that exists")


def made(option: str, path: Path) -> None:
    """Make a folder, and those above it; `folder` looks before the work, and some places say no only now.

    Raises:
        ConfigError: it cannot be made.
    """
    with usable(option, path):
        path.mkdir(parents=True, exist_ok=True)


def table(option: str, path: Path, own: str) -> None:
    """Require a place where no file is, or an empty one, or one that says `own`: a table that was written here.

    Raises:
        ConfigError: there is another file.
    """
    with usable(option, path):
        if not os.path.lexists(path):
            return
        if not path.is_file() or ((found := regular(path, _MOST)) and own.encode() not in found):
            raise ConfigError(f"{option}: {path} exists and is no table of valve's; name another folder, or remove it")


@contextmanager
def usable(option: str, path: Path) -> Iterator[None]:
    """Say what is wrong with a path in one line.

    Raises:
        ConfigError: the body failed on it (OSError).
    """
    try:
        yield
    except OSError as e:
        raise ConfigError(f"{option} {path}: {e.strerror or e}; name a place that can be written to") from e


def _outside(option: str, path: Path, kept: Sequence[Path]) -> None:
    place = path.resolve()
    for parent in (place, *place.parents):
        bank = (parent / "ledger.jsonl").exists() and (parent / "bank.json").exists()
        if bank or any(parent == one.resolve() for one in kept):
            raise ConfigError(f"{option} {path}: lies inside a bank or its local data, {parent}; name a place outside")


def _writable(option: str, place: Path) -> None:
    """The folder, or the nearest one above it that exists, can be written to."""
    above = next(parent for parent in (place.absolute(), *place.absolute().parents) if os.path.lexists(parent))
    if not above.is_dir():
        raise ConfigError(f"{option}: {above} is no folder; name a place whose folders exist or can be made")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(f"{option}: {above} cannot be written to; name a folder of your own")


def _html(path: Path) -> bool:
    """An empty file, as `mktemp` leaves it, is nobody's either."""
    with path.open("rb") as file:
        start = file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return path.stat().st_size == 0 or start.startswith((b"<!doctype html", b"<html"))
