"""Checks of the places that a command may write to: never into a bank, never over a file of another kind."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from valve_plugin.errors import ConfigError
from valve_plugin.files import read_regular

_MAX_BYTES = 50_000_000
"""Of a file that may be overwritten."""


def require_page(option: str, path: Path, kept: Sequence[Path]) -> None:
    """Require a file for an HTML page: new, empty or an HTML page, and outside of every bank and of `kept`.

    Raises:
        ConfigError: it is not.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(f"{option} {path}: the page is HTML; name a file ending in .html or .htm")
    require_folder(option, path.parent, kept)
    with explain_errors(option, path):
        found = read_regular(path, _MAX_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip() if path.exists() else b""
    if found and not found[:20].lower().startswith((b"<!doctype html", b"<html")):
        raise ConfigError(f"{option} {path}: exists and is no HTML page; name another file, or remove it first")


def require_folder(option: str, path: Path, kept: Sequence[Path] = ()) -> None:
    """Require a folder that exists or can be made, outside of every bank and of `kept`.

    Raises:
        ConfigError: it is not.
    """
    with explain_errors(option, path):
        place = path.resolve()
        for folder in (place, *place.parents):
            bank = (folder / "ledger.jsonl").exists() and (folder / "bank.json").exists()
            if bank or any(folder == one.resolve() for one in kept):
                raise ConfigError(f"{option} {path}: lies inside a bank or its local data, {folder}")
            if folder.exists() and not folder.is_dir():
                raise ConfigError(f"{option} {path}: {folder} is no folder; name another place")


def make_folder(option: str, path: Path) -> None:
    """Make a folder, and those above it.

    Raises:
        ConfigError: it cannot be made.
    """
    with explain_errors(option, path):
        path.mkdir(parents=True, exist_ok=True)


def require_table(option: str, path: Path, own: str) -> None:
    """Require a file that is new, empty, or contains `own`, which every table written here contains.

    Raises:
        ConfigError: it is another file.
    """
    with explain_errors(option, path):
        if not os.path.lexists(path):
            return
        if not path.is_file() or ((found := read_regular(path, _MAX_BYTES)) and own.encode() not in found):
            raise ConfigError(f"{option}: {path} exists and is no table of valve's; name another folder, or remove it")


@contextmanager
def explain_errors(option: str, path: Path) -> Iterator[None]:
    """Turn a failure of the file system (OSError) into one line (ConfigError)."""
    try:
        yield
    except OSError as e:
        raise ConfigError(f"{option} {path}: {e.strerror or e}; name a place that can be written to") from e
