"""The append-only, hash-chained file every other file of a bank directory can be made from.

One line is `{"bank":…,"entry":…,"prev":…,"seq":…}` in canonical JSON. `prev` is the hash of the previous
line's bytes, `bank` the hash of the bank from this line on, so that a reader who knows a bank can check it
against the last line alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from valve_plugin.bank.cache import check_version
from valve_plugin.bank.entries import Entry
from valve_plugin.codec import canonical, decode, digest_bytes
from valve_plugin.errors import BankCorruptError, LedgerForkedError, RecordError
from valve_plugin.records import Count, Hash, Record

FILE_NAME = "ledger.jsonl"
GENESIS = "0" * 64
MAX_BYTES = 1 << 30
_MAX_LINE = 1 << 26
_CONFLICT = (b"<<<<<<<", b"|||||||", b"=======", b">>>>>>>")
RESTORE = "restore the file from git or a backup"
_FORK = "two histories, as of two branches; keep one side's bank directory whole (git checkout --ours or --theirs)"


class Stored(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line, as it is on disk."""

    seq: Count
    """Line number, from 0."""
    prev: Hash
    bank: Hash
    entry: Entry


class Line(NamedTuple):
    """One line that was read and fits its place."""

    seq: int
    hash: str
    bank: str
    entry: Entry


class Reading(NamedTuple):
    """A whole ledger."""

    lines: list[Line]
    torn: bytes
    """What a killed write left after the last complete line."""
    size: int
    """Bytes up to the end of the last complete line."""


class Tail(NamedTuple):
    """The last complete line, unparsed but for the bank it names."""

    seq: int
    hash: str
    bank: str


class _Peek(msgspec.Struct):
    """The two keys a reader needs of the last line; the rest is skipped."""

    seq: int
    bank: str


class _FirstLine(msgspec.Struct):
    entry: msgspec.Raw = msgspec.Raw(b"{}")


def encode(seq: int, prev: str, bank: str, entry: Entry) -> bytes:
    """Return the bytes of a line, without its newline.

    Raises:
        RecordError: the entry could not be read back: a value of the wrong type or out of range.
    """
    line = canonical(Stored(seq=seq, prev=prev, bank=bank, entry=entry))
    decode(line, Stored, where=f"{type(entry).__name__} entry")  # records do not check themselves when they are made
    return line


def hash_of(line: bytes) -> str:
    """Return what the next line's `prev` is: SHA-256 of a line's bytes without its newline."""
    return digest_bytes(line)


def parse(data: bytes, where: str) -> Reading:
    """Read a ledger's bytes, checking form, numbering and chain. What follows the last newline is torn.

    Raises:
        LedgerForkedError: two lines continue the same one, or git left conflict marks.
        BankCorruptError: a complete line is damaged; the message names it.
    """
    end = data.rfind(b"\n") + 1
    raw_lines = data[:end].split(b"\n")[:-1]
    if raw_lines:
        _check_version(raw_lines[0], where)
    lines: list[Line] = []
    seen = {GENESIS: 0}  # hash of a line -> its 1-based number
    for number, raw in enumerate(raw_lines, start=1):
        line = _parse_line(raw, number, seen, f"{where}: line {number}")
        seen[line.hash] = number
        lines.append(line)
    return Reading(lines, data[end:], end)


def tail(data: bytes) -> Tail | None:
    """Return the last line if the file looks whole (no torn end, as many lines as it is numbered), else None."""
    if not data.endswith(b"\n"):
        return None
    raw = data[data.rfind(b"\n", 0, -1) + 1 : -1]
    try:
        peek = decode(raw, _Peek, where="")
    except RecordError:
        return None
    if peek.seq + 1 != data.count(b"\n"):
        return None
    return Tail(peek.seq, hash_of(raw), peek.bank)


def _parse_line(raw: bytes, number: int, seen: Mapping[str, int], where: str) -> Line:
    if raw.startswith(_CONFLICT):
        raise LedgerForkedError(f"{where}: git left a conflict mark: {_FORK}")
    if len(raw) > _MAX_LINE:
        raise BankCorruptError(f"{where}: {len(raw)} bytes, expected at most {_MAX_LINE}; {RESTORE}")
    try:
        stored = decode(raw, Stored, where=where)
    except RecordError as e:
        raise BankCorruptError(f"{e}; {RESTORE}, or use the version of valve-plugin that wrote it") from e
    continues = seen.get(stored.prev)
    if continues is None:
        raise BankCorruptError(f"{where}: does not continue the line before, so one of the two was changed; {RESTORE}")
    if continues != number - 1:
        raise LedgerForkedError(f"{where}: continues line {continues}, as line {continues + 1} does: {_FORK}")
    if stored.seq != number - 1 or canonical(stored) != raw:
        raise BankCorruptError(
            f"{where}: not as it was written (its number, order of keys, spaces or line end); {RESTORE}"
        )
    return Line(stored.seq, hash_of(raw), stored.bank, stored.entry)


def _check_version(first: bytes, where: str) -> None:
    try:
        entry = decode(first, _FirstLine, where=where).entry
    except RecordError:
        return  # damaged rather than of another version
    check_version(bytes(entry), f"{where}: line 1")
