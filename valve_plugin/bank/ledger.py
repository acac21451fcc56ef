"""The ledger: an append-only, hash-chained file. All other files of a bank directory can be made from it.

One line is `{"bank":…,"entry":…,"prev":…,"seq":…}` in canonical JSON. `prev` is the hash of the previous line's
bytes, `bank` the hash of the bank after this line. So a known bank can be checked against the last line alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, get_args

import msgspec

from valve_plugin.bank.entries import Entry, EpochOpened, Judged, PanelFixed
from valve_plugin.codec import canonical, decode, digest_bytes
from valve_plugin.errors import BankCorruptError, BankError, LedgerForkedError, RecordError
from valve_plugin.records import Count, Hash, LedgerVersion, Panel, Proposal, Record, Verdict

FILE_NAME = "ledger.jsonl"
BANK_FILE = "bank.json"
PANEL_FILE = "panel.json"
GENESIS = "0" * 64
MAX_BYTES = 1 << 30
_MAX_LINE = 1 << 26
_CONFLICT = (b"<<<<<<<", b"|||||||", b"=======", b">>>>>>>")
RESTORE = "restore the file from git or a backup"
_FORK = (
    "the file mixes two histories, as after a git merge; keep the whole bank directory of one side "
    "(git checkout --ours or --theirs)"
)


class StoredLine(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line as stored on disk."""

    seq: Count
    """Line number, from 0."""
    prev: Hash
    bank: Hash
    entry: Entry


class Line(NamedTuple):
    """One line that was read and checked."""

    seq: int
    hash: str
    bank: str
    entry: Entry


class ParsedLedger(NamedTuple):
    """A whole ledger."""

    lines: list[Line]
    torn: bytes
    """Bytes after the last complete line, left by a killed write."""
    size: int
    """Bytes up to the end of the last complete line."""
    digest: str
    """SHA-256 of these bytes."""


class _LastLineKeys(msgspec.Struct):
    """The two keys that are read from the last line."""

    seq: int
    bank: str


class _Version(msgspec.Struct):
    schema_version: Any = None


class _FirstLine(msgspec.Struct):
    entry: msgspec.Raw = msgspec.Raw(b"{}")


def check_version(data: bytes, where: str) -> None:
    """Check the schema_version of a file before anything else in it.

    Raises:
        BankError: the file has another schema_version.
    """
    try:
        version = decode(data, _Version, where=where).schema_version
    except RecordError:
        return  # damaged rather than of another version
    if version is not None and version not in get_args(LedgerVersion):
        raise BankError(
            f"{where}: schema_version is {version!s:.40}, this valve reads 1 and 2; "
            "use the version of valve-plugin that wrote it"
        )


def encode(seq: int, prev: str, bank: str, entry: Entry) -> bytes:
    """Return the bytes of a line, without its newline.

    Raises:
        RecordError: the entry could not be read back: a value of the wrong type or out of range.
    """
    line = canonical(StoredLine(seq=seq, prev=prev, bank=bank, entry=entry))
    decode(line, StoredLine, where=f"{type(entry).__name__} entry")  # a record does not check itself when it is made
    return line


def line_hash(line: bytes) -> str:
    """Return the SHA-256 of a line's bytes without its newline: the `prev` of the next line."""
    return digest_bytes(line)


def parse(data: bytes, where: str, known: ParsedLedger | None = None) -> ParsedLedger:
    """Parse a ledger's bytes and check form, numbering and chain. Bytes after the last newline are returned as `torn`.

    Args:
        known: an earlier reading of the file. If its bytes are still the same, only what follows is read.

    Raises:
        LedgerForkedError: two lines continue the same one, or git left conflict marks.
        BankCorruptError: a complete line is damaged; the message names it.
    """
    end, start, lines = data.rfind(b"\n") + 1, 0, list[Line]()
    if known and known.lines and digest_bytes(data[: known.size]) == known.digest:
        start, lines = known.size, known.lines.copy()
    if end and not start:
        with suppress(RecordError):  # damaged rather than of another version
            first = decode(next(_raw_lines(data)), _FirstLine, where=where)
            check_version(bytes(first.entry), f"{where}: line 1")
    seen = {GENESIS: 0} | {line.hash: line.seq + 1 for line in lines}  # hash of a line -> its 1-based number
    for number, raw in enumerate(_raw_lines(data, start), start=len(lines) + 1):
        line = _parse_line(raw, number, seen, f"{where}: line {number}")
        seen[line.hash] = number
        lines.append(line)
    return ParsedLedger(lines, data[end:], end, digest_bytes(data[:end]))


def _raw_lines(data: bytes, start: int = 0) -> Iterator[bytes]:
    """Yield the complete lines from a place on, without their newlines. One at a time: a ledger may be large."""
    while (end := data.find(b"\n", start)) >= 0:
        yield data[start:end]
        start = end + 1


def last_line(data: bytes) -> tuple[int, str, str] | None:
    """Return (number, hash, the bank hash in it) of the last line.

    None if the file looks damaged: an incomplete end, or a wrong line number.
    """
    if not data.endswith(b"\n"):
        return None
    raw = data[data.rfind(b"\n", 0, -1) + 1 : -1]
    try:
        peek = decode(raw, _LastLineKeys, where="")
    except RecordError:
        return None
    if peek.seq + 1 != data.count(b"\n"):
        return None
    return peek.seq, line_hash(raw), peek.bank


def last_panel(data: bytes) -> Panel | None:
    """Return the last panel that was fixed, or None; of the ledger no other line is read.

    Raises:
        RecordError: its line is damaged.
    """
    found = data.rfind(b'"type":"panel_fixed"')  # a ledger is canonical JSON, in which texts escape their quotes
    if found < 0:
        return None
    raw = data[data.rfind(b"\n", 0, found) + 1 : data.find(b"\n", found)]
    entry = decode(raw, StoredLine, where=FILE_NAME).entry
    return entry.panel if isinstance(entry, PanelFixed) else None


def _parse_line(raw: bytes, number: int, seen: Mapping[str, int], where: str) -> Line:
    if raw.startswith(_CONFLICT):
        raise LedgerForkedError(f"{where}: conflict mark of git: {_FORK}")
    if len(raw) > _MAX_LINE:
        raise BankCorruptError(f"{where}: {len(raw)} bytes, expected at most {_MAX_LINE}; {RESTORE}")
    try:
        stored = decode(raw, StoredLine, where=where)
    except RecordError as e:
        raise BankCorruptError(f"{e}; {RESTORE}, or use the version of valve-plugin that wrote it") from e
    continues = seen.get(stored.prev)
    if continues is None:
        raise BankCorruptError(f"{where}: does not follow the line before it: one of the two was changed; {RESTORE}")
    if continues != number - 1:
        raise LedgerForkedError(f"{where}: follows line {continues}, as line {continues + 1} does: {_FORK}")
    if stored.seq != number - 1 or canonical(stored) != raw:
        raise BankCorruptError(f"{where}: its number, order of keys, spaces or line end was changed; {RESTORE}")
    return Line(stored.seq, line_hash(raw), stored.bank, stored.entry)


# What `valve` shows, from one pass that checks the chain and reads a few fields of each line


class Outline(NamedTuple):
    """Where a ledger stands."""

    epoch: EpochOpened | None
    """The open epoch."""
    queries: int
    """Gate queries of the open epoch."""
    waiting: tuple[str, ...]
    """Ids of the undecided proposals, oldest first, see `entries.undecided`."""
    verdict: Verdict | None
    """The last one."""
    types: frozenset[str]
    """Tags of all entries."""
    source_tasks: frozenset[str]
    """Ids of the tasks whose attempts proposals were learned from."""
    head: str
    """Hash of the last line."""


class _Verdict(msgspec.Struct):
    proposal_id: str
    decision: str
    query: int


class _Attempt(msgspec.Struct):
    task_id: str


class _Entry(msgspec.Struct):
    type: str
    proposal: msgspec.Raw = msgspec.Raw()
    attempts: tuple[_Attempt, ...] = ()
    verdict: _Verdict | None = None
    proposal_id: str = ""


class _Line(msgspec.Struct):
    prev: str
    entry: _Entry


def outline(data: bytes) -> Outline:
    """Return where the ledger of these bytes stands.

    Raises:
        RecordError: a line is damaged, or does not follow the one before it.
    """
    opened, judged, prev = b"", b"", GENESIS
    queries, waiting, types, sources = 0, dict[str, Proposal](), set[str](), set[str]()
    for raw in _raw_lines(data):
        line = decode(raw, _Line, where=FILE_NAME)
        if line.prev != prev:
            raise RecordError(f"{FILE_NAME}: a line does not follow the one before it; `valve bank verify` names it")
        entry, prev = line.entry, line_hash(raw)
        types.add(entry.type)
        decided = entry.proposal_id if entry.type == "taken" else ""
        if entry.type in ("panel_fixed", "owner_act", "epoch_opened"):
            opened, queries = raw if entry.type == "epoch_opened" else b"", 0
        elif entry.type == "proposed":
            proposal = decode(entry.proposal, Proposal, where=FILE_NAME)
            vars(proposal)["id"] = digest_bytes(entry.proposal)[:16]  # a ledger is canonical JSON
            waiting[proposal.task_id] = proposal
            sources.update(attempt.task_id for attempt in entry.attempts)
        elif entry.verdict:
            judged, queries = raw, entry.verdict.query
            decided = "" if entry.verdict.decision == "indecisive" else entry.verdict.proposal_id
        if decided:
            waiting = {task: proposal for task, proposal in waiting.items() if proposal.id != decided}
    epoch, last = (decode(raw, StoredLine, where=FILE_NAME).entry if raw else None for raw in (opened, judged))
    return Outline(
        epoch if isinstance(epoch, EpochOpened) else None,
        queries,
        tuple(proposal.id for proposal in waiting.values() if not proposal.empty),
        last.verdict if isinstance(last, Judged) else None,
        frozenset(types),
        frozenset(sources),
        prev,
    )
