"""The files of a bank directory: `bank.json` and `panel.json`, made from the ledger for people, tools and `git diff`.

This module reads them consistently, repairs what a killed write left, and writes them again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from valve_plugin import files
from valve_plugin.bank import ledger
from valve_plugin.bank.ledger import BANK_FILE, PANEL_FILE, check_version
from valve_plugin.codec import decode, pretty
from valve_plugin.errors import BankCorruptError, BankError, BankNotFoundError, RecordError
from valve_plugin.paths import BANK_NAME
from valve_plugin.records import Bank, Count, Hash, Item, LedgerVersion, Record
from valve_plugin.words import quote

if TYPE_CHECKING:
    from valve_plugin.bank.replay import History

MAX_BYTES = 1 << 26
"""Largest size of `bank.json` and `panel.json`."""
_LEFT = re.compile(r"\.(ledger\.jsonl(\.aside-[0-9a-f]+)?|(bank|panel)\.json)\.[0-9a-f]{12}\.tmp")
"""Names of temporary files that killed writes left."""
GITIGNORE = b"""\
.lock
.lease*
.*.tmp
*.aside-*
"""
GITATTRIBUTES = b"""\
# A hash chain can be neither merged nor re-encoded. When both sides of a merge changed it, keep one side's files.
ledger.jsonl -text -merge
bank.json -text -merge
panel.json -text -merge
"""
_WAIT = 30.0  # seconds for the lock; a write takes milliseconds


class Head(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place in the ledger."""

    seq: Count
    """Line number, from 0."""
    hash: Hash
    """SHA-256 of the line."""


class BankFile(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`bank.json`: the accepted bank, and the last ledger line that it includes."""

    schema_version: LedgerVersion = 2
    ledger: Head
    repo: str
    version: Count
    principles: tuple[Item, ...]
    skills: tuple[Item, ...]

    @property
    def bank(self) -> Bank:
        """The bank alone."""
        return Bank(**{name: getattr(self, name) for name in Bank.__struct_fields__})

    def matches(self, history: History) -> bool:
        """Whether it has the bank of the ledger line it names."""
        seq = self.ledger.seq
        return seq <= history.seq and (self.ledger.hash, self.bank.hash) == history.chain[seq]


class _HeadOnly(msgspec.Struct):
    ledger: Head


def render_bank_file(bank: Bank, head: Head) -> bytes:
    """Return the exact bytes of `bank.json` for a bank at a ledger head."""
    return pretty(BankFile(ledger=head, **{name: getattr(bank, name) for name in Bank.__struct_fields__}))


def parse_bank_file(data: bytes, where: str) -> BankFile:
    """Read the bytes of a `bank.json`.

    Raises:
        BankError: it is of another version.
        RecordError: it is damaged; the message names the place in the file.
    """
    check_version(data, where)
    return decode(data, BankFile, where=where)


def read_head(path: Path) -> Head | None:
    """Return the ledger line that a `bank.json` names, even if the rest is damaged; None if it names none."""
    try:
        return decode(files.read_limited(path, MAX_BYTES, "bank"), _HeadOnly, where=str(path)).ledger
    except (BankError, RecordError):
        return None


class Directory:
    """One bank directory on disk. `warn` is called with one line for each problem that was repaired."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path = path
        self.ledger = path / ledger.FILE_NAME
        self.bank = path / BANK_FILE
        self.panel = path / PANEL_FILE
        self._lock = path / ".lock"
        self._warn = warn

    def locked(self, timeout: float = _WAIT) -> AbstractContextManager[None]:
        """Return a context manager that holds the write lock."""
        return files.hold_lock(self._lock, timeout, f"{self.path}: another process is writing this bank; try again")

    def read_ledger(self) -> bytes:
        """Return the ledger's bytes.

        Raises:
            BankNotFoundError: there is no bank here.
            BankError: the ledger is gone or cannot be read.
        """
        try:
            return files.read_limited(self.ledger, ledger.MAX_BYTES, "ledger")
        except BankNotFoundError as e:
            if os.path.lexists(self.bank) and not self.ledger.exists():  # else another process has just made it
                raise BankCorruptError(
                    f"{self.ledger}: missing, and {self.bank.name} alone proves nothing; {ledger.RESTORE}"
                ) from e
            if self.ledger.exists():
                return files.read_limited(self.ledger, ledger.MAX_BYTES, "ledger")
            if (inside := self.path / BANK_NAME / ledger.FILE_NAME).is_file():
                raise BankNotFoundError(f"{self.path}: there is no bank here; did you mean {inside.parent}?") from e
            option = "" if self.path.name == BANK_NAME else f" --bank {quote(str(self.path))}"
            raise BankNotFoundError(f"{self.path}: there is no bank here; make one with `valve init{option}`") from e
        except BankCorruptError as e:
            raise BankCorruptError(f"{e}; {ledger.RESTORE}") from e

    def stamp(self) -> object:
        """Return what differs whenever the ledger was written; None if it cannot be told."""
        try:
            stat = os.stat(self.ledger)
        except OSError:
            return None
        return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns

    def read_bank(self) -> BankFile | None:
        """Return `bank.json`; None, with a warning, when it is missing or damaged.

        Raises:
            BankError: it cannot be read, or is of another version.
        """
        try:
            return parse_bank_file(files.read_limited(self.bank, MAX_BYTES, "bank"), str(self.bank))
        except (BankNotFoundError, BankCorruptError, RecordError) as e:
            self._warn(f"{e}; {self.ledger.name} was used, and the next write makes the file again")
            return None

    def read_consistent(self) -> tuple[BankFile | None, bytes]:
        """Return `bank.json` and the ledger's bytes, from the same moment if possible.

        If a write looks incomplete, another process may be about to finish it, so this waits for the lock. If it is
        still incomplete then, the writer was killed: the incomplete last line of the ledger is moved to another file.

        Raises:
            BankCorruptError: the end of the ledger was cut off; nothing was changed.
        """
        cached, head = self.read_bank(), read_head(self.bank)
        data = self.read_ledger()  # in this order: writers write the ledger first
        self.require_whole_ledger(head, data)
        torn = b"\n" in data and not data.endswith(b"\n")
        if torn:
            ledger.parse(data, str(self.ledger))  # where more than the end is damaged, nothing is changed
        if torn or self._lock.exists():  # without a lock file there was never a writer
            try:
                with self.locked(timeout=1):
                    return self.read_bank(), self.remove_torn_line()
            except BankError as e:  # busy or read-only: reading goes on
                if torn:
                    self._warn(f"{self.ledger}: an incomplete last line was ignored and left in place: {e}")
        return cached, data

    def remove_torn_line(self) -> bytes:
        """Under the lock: move bytes after the last complete line to another file; return the remaining bytes."""
        data = self.read_ledger()
        self.require_whole_ledger(read_head(self.bank), data)
        end = data.rfind(b"\n") + 1
        if 0 < end < len(data):
            ledger.parse(data, str(self.ledger))  # where more than the end is damaged, nothing is changed
            side = _aside(self.ledger)
            files.write_atomic(side, data[end:])
            self._warn(
                f"{self.ledger}: ended in an incomplete line after a killed write; those {len(data) - end} bytes are "
                f"kept in {side.name}"
            )
            files.truncate(self.ledger, end)
        return data[:end] or data

    def require_whole_ledger(self, head: Head | None, data: bytes) -> None:
        """Refuse a ledger without the line that `bank.json` names, which was on disk before that file was written."""
        lines = data.count(b"\n")
        if head and 0 < lines <= head.seq:  # an empty ledger is refused anyway
            ledger.parse(data, str(self.ledger))  # damage inside a line is the better message
            raise BankCorruptError(f"{self.ledger}: {truncation(lines, head.seq + 1)}")

    def compare(self, cached: BankFile | None, history: History) -> None:
        """Warn about a `bank.json` that differs from the ledger. The ledger is used."""
        current = Head(seq=history.seq, hash=history.head)
        if cached is None or (cached.ledger == current and cached.matches(history)):
            return
        old = f"; it is of line {cached.ledger.seq + 1} of {history.seq + 1}" if cached.matches(history) else ""
        self._warn(
            f"{self.bank}: is not what {self.ledger.name} gives{old}; the ledger was used, and the next write makes "
            "the file again"
        )

    def write_caches(self, history: History) -> None:
        """Under the lock: write `bank.json` and `panel.json`. A failure is a warning, as the ledger is complete."""
        panel = history.state.panel
        try:
            if panel is not None and _content(self.panel) != pretty(panel):
                files.write_atomic(self.panel, pretty(panel))
            # Last, since it says that both files are current.
            head = Head(seq=history.seq, hash=history.head)
            files.write_atomic(self.bank, render_bank_file(history.state.bank, head))
            for leftover in self.path.glob(".*.tmp"):
                if _LEFT.fullmatch(leftover.name):
                    leftover.unlink(missing_ok=True)
        except OSError as e:
            self._warn(f"{e}; the ledger has the entry, and the next write makes the file again")


def repair(path: Path) -> list[str]:
    """Write `bank.json` and `panel.json` again from the ledger; what stood there instead is kept under another name.

    The ledger is not changed, except that an incomplete last line is moved to another file. Temporary files of killed
    writes are removed. Other files in the directory stay.

    Returns:
        One line for each change besides writing the two files.

    Raises:
        BankNotFoundError: there is no bank.
        BankError: the ledger is damaged or was cut, or the directory cannot be written; nothing was changed.
    """
    from valve_plugin.bank.replay import read_history

    messages: list[str] = []
    directory = Directory(path, messages.append)
    where = str(directory.ledger)
    read_history(directory.read_ledger(), where)  # a damaged ledger is refused before even a lock file is made
    with directory.locked():
        history = read_history(directory.remove_torn_line(), where)
        panel, head = history.state.panel, Head(seq=history.seq, hash=history.head)
        right = {directory.bank: render_bank_file(history.state.bank, head), directory.panel: panel and pretty(panel)}
        for file, data in right.items():
            if os.path.lexists(file) and _content(file) != data:
                side = _aside(file)
                with files.bank_errors(file, "rename"):
                    os.rename(file, side)
                messages.append(f"{file}: is not what {directory.ledger.name} gives; it is kept as {side.name}")
        directory.write_caches(history)
    return messages


def truncation(lines: int, named: int) -> str:
    """Return the message that `bank.json` names a line the ledger does not have."""
    return (
        f"has {lines} whole lines, and {BANK_FILE} names line {named}, so the end was cut off; restore "
        f"{ledger.FILE_NAME} from git or a backup, or remove {BANK_FILE} to go on with "
        f"what {ledger.FILE_NAME} still holds"
    )


def _aside(path: Path) -> Path:
    """Return a name of its own beside a file."""
    return path.with_name(f"{path.name}.aside-{os.urandom(6).hex()}")


def _content(path: Path) -> bytes | None:
    """Return a file's bytes; None: it is missing, unreadable or too large."""
    with suppress(BankError):
        return files.read_limited(path, MAX_BYTES, path.name)
    return None
