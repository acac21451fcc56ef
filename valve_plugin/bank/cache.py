"""`bank.json` and `panel.json`: the ledger's present state in files made for people, tools and `git diff`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from valve_plugin.bank import files
from valve_plugin.codec import decode, pretty
from valve_plugin.errors import BankError, RecordError
from valve_plugin.records import SCHEMA_VERSION, Bank, Count, Hash, Item, Record

BANK_FILE = "bank.json"
PANEL_FILE = "panel.json"
MAX_BYTES = 1 << 26


class Head(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place in the ledger."""

    seq: Count
    """Line number, from 0."""
    hash: Hash
    """SHA-256 of the line."""


class BankFile(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bank.json`: the accepted bank, and the ledger line up to which it holds."""

    schema_version: Literal[1] = SCHEMA_VERSION
    ledger: Head
    repo: str
    version: Count
    principles: tuple[Item, ...]
    skills: tuple[Item, ...]

    @property
    def bank(self) -> Bank:
        """The bank alone."""
        return Bank(repo=self.repo, version=self.version, principles=self.principles, skills=self.skills)


class State(NamedTuple):
    """What `bank.json` says, as far as it can be read."""

    head: Head
    bank: Bank


class _Named(msgspec.Struct):
    ledger: Head


class _Version(msgspec.Struct):
    schema_version: Any = None


def render(bank: Bank, head: Head) -> bytes:
    """Return the exact bytes `bank.json` has for a bank at a ledger head."""
    return pretty(
        BankFile(ledger=head, repo=bank.repo, version=bank.version, principles=bank.principles, skills=bank.skills)
    )


def read(path: Path) -> State:
    """Read a `bank.json`.

    Raises:
        BankNotFoundError: there is none.
        BankCorruptError: too large.
        BankError: unreadable, or of another version.
        RecordError: damaged, with the place in the file.
    """
    data = files.read_limited(path, MAX_BYTES, "bank")
    return parse(data, str(path))


def parse(data: bytes, where: str) -> State:
    """Read the bytes of a `bank.json`; raises like `read`."""
    check_version(data, where)
    stored = decode(data, BankFile, where=where)
    return State(stored.ledger, stored.bank)


def named(path: Path) -> Head | None:
    """Return the ledger line a `bank.json` names, whatever else is wrong with it; None where it names none."""
    try:
        return decode(files.read_limited(path, MAX_BYTES, "bank"), _Named, where=str(path)).ledger
    except (BankError, RecordError):
        return None


def check_version(data: bytes, where: str) -> None:
    """Say that a file is of another version before complaining about what that version does differently.

    Raises:
        BankError: it names another schema_version.
    """
    try:
        version = decode(data, _Version, where=where).schema_version
    except RecordError:
        return  # damaged rather than of another version
    if version is not None and version != SCHEMA_VERSION:
        raise BankError(
            f"{where}: schema_version is {version!s:.40}, this valve reads {SCHEMA_VERSION}; "
            "use the version of valve-plugin that wrote it"
        )
