"""The files of a bank directory: reading them whole, tidying after a kill, and making two of them from the ledger."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from valve_plugin import config
from valve_plugin.bank import cache, files, ledger
from valve_plugin.bank.cache import Head
from valve_plugin.bank.lock import locked
from valve_plugin.bank.paths import BANK_NAME
from valve_plugin.codec import digest_bytes, pretty
from valve_plugin.errors import BankCorruptError, BankError, BankNotFoundError, RecordError
from valve_plugin.shell_words import quote

if TYPE_CHECKING:
    from valve_plugin.bank.replay import History

_WAIT = 30.0  # seconds for the lock; a write takes milliseconds

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


FILES = frozenset(
    {ledger.FILE_NAME, cache.BANK_FILE, cache.PANEL_FILE, config.FILE_NAME, ".gitignore", ".gitattributes"}
    | {".lock", ".lease", ".lease-holder"}
)


class Directory:
    """One bank directory on disk. `warn` is told, in one line, whatever was found wrong and dealt with."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self.path = path
        self.ledger = path / ledger.FILE_NAME
        self.bank = path / cache.BANK_FILE
        self.panel = path / cache.PANEL_FILE
        self._lock = path / ".lock"
        self._warn = warn

    def locked(self, timeout: float = _WAIT) -> AbstractContextManager[None]:
        """Be the only writer."""
        return locked(self._lock, timeout, f"{self.path}: another process is writing this bank; try again")

    def read_ledger(self) -> bytes:
        """Return the ledger's bytes.

        Raises:
            BankNotFoundError: there is no bank here.
            BankError: the ledger is gone or cannot be read.
        """
        try:
            return files.read_limited(self.ledger, ledger.MAX_BYTES, "ledger")
        except BankNotFoundError as e:
            if os.path.lexists(self.bank):
                raise BankCorruptError(
                    f"{self.ledger}: missing, and {self.bank.name} alone proves nothing; {ledger.RESTORE}"
                ) from e
            named = "" if self.path.name == BANK_NAME else f" --bank {quote(str(self.path))}"
            raise BankNotFoundError(f"{self.path}: there is no bank here; make one with `valve init{named}`") from e
        except BankCorruptError as e:
            raise BankCorruptError(f"{e}; {ledger.RESTORE}") from e

    def read_cache(self) -> cache.State | None:
        """Return what `bank.json` says; None, with a warning, when it is missing or damaged.

        Raises:
            BankError: it cannot be read, or is of another version.
        """
        try:
            return cache.read(self.bank)
        except (BankNotFoundError, BankCorruptError, RecordError) as e:
            self._warn(f"{e}; {self.ledger.name} was used, and the next write makes the file again")
            return None

    def read_settled(self) -> tuple[cache.State | None, bytes]:
        """Return what `bank.json` says and the ledger's bytes, with no writer in between if that can be had.

        What looks half done may be about to be done by another process, so this waits for it; what still
        does is what a kill left, and an unfinished last line of the ledger is set aside.

        Raises:
            BankCorruptError: the ledger was cut; nothing was touched.
        """
        cached, head = self.read_cache(), cache.named(self.bank)
        data = self.read_ledger()  # in this order: writers write them in the other
        self.require_uncut(head, data)
        torn = b"\n" in data and not data.endswith(b"\n")
        if torn:
            ledger.parse(data, str(self.ledger))  # where more than the end is damaged, nothing is touched
        if torn or self._lock.exists():  # without a lock file there was never a writer
            try:
                with self.locked(timeout=1):
                    return self.read_cache(), self.tidy()
            except BankError as e:  # busy or read-only: reading goes on
                if torn:
                    self._warn(f"{self.ledger}: an unfinished last line was ignored, not set aside: {e}")
        return cached, data

    def tidy(self) -> bytes:
        """Under the lock: set aside what a killed write left after the last complete line; return the rest."""
        data = self.read_ledger()
        self.require_uncut(cache.named(self.bank), data)
        end = data.rfind(b"\n") + 1
        if 0 < end < len(data):
            ledger.parse(data, str(self.ledger))  # where more than the end is damaged, nothing is touched
            self._set_aside(self.ledger, data[end:], "ended in an unfinished line, as a killed write leaves it")
            files.cut(self.ledger, end)
        return data[:end] or data

    def compare(self, cached: cache.State | None, history: History) -> None:
        """Say how `bank.json` differs from the ledger, which wins."""
        if cached is None or cached.head == Head(seq=history.seq, hash=history.head):
            detail = "" if cached is None or known(cached, history) else "does not hold the bank its ledger line names"
        elif known(cached, history):
            detail = f"ends at line {cached.head.seq + 1} of {history.seq + 1}, as a killed write leaves it"
        else:
            detail = f"does not belong to {self.ledger.name}"
        if detail:
            self._warn(f"{self.bank}: {detail}; the ledger was used, and the next write makes the file again")

    def write_caches(self, history: History) -> None:
        """Under the lock: make `bank.json` and `panel.json` again. The ledger holds already: failing is a warning."""
        state, head = history.state, Head(seq=history.seq, hash=history.head)
        try:
            self._keep_foreign(history)
            if state.panel is not None:
                _write_changed(self.panel, pretty(state.panel))
            files.write_atomic(self.bank, cache.render(state.bank, head))  # last: it says that both are current
            for leftover in self.path.glob(".*.tmp"):
                if is_temporary(leftover.name):  # of killed writes
                    leftover.unlink(missing_ok=True)
        except OSError as e:
            self._warn(f"{e}; the ledger has the entry, and the next write makes the file again")

    def require_uncut(self, head: Head | None, data: bytes) -> None:
        """Refuse a ledger without the line `bank.json` names: that file is only written once the line is on disk."""
        lines = data.count(b"\n")
        if head and 0 < lines <= head.seq:  # without any line it is refused anyway
            ledger.parse(data, str(self.ledger))  # what is wrong with a line says more
            raise BankCorruptError(f"{self.ledger}: {cut_short(lines, head.seq + 1)}")

    def _keep_foreign(self, history: History) -> None:
        """Keep a copy of a `bank.json` that holds what no ledger line ever said."""
        try:
            data = files.read_limited(self.bank, cache.MAX_BYTES, "bank")
        except BankNotFoundError:
            return
        except BankCorruptError as e:  # too large to copy
            self.move_aside(self.bank, str(e))
            return
        try:
            ours = known(cache.parse(data, str(self.bank)), history)
        except RecordError:
            ours = False
        if not ours:
            self._set_aside(self.bank, data, f"held what {self.ledger.name} does not say")

    def keep_other(self, path: Path, wanted: bytes) -> None:
        """Keep a copy of a file that is about to be written with other bytes."""
        with suppress(BankNotFoundError):
            data = files.read_limited(path, cache.MAX_BYTES, path.name)
            if data != wanted:
                self._set_aside(path, data, f"was not what {self.ledger.name} gives")

    def move_aside(self, path: Path, why: str) -> None:
        """Rename what is no file of a bank, whatever it is."""
        side = path.with_name(f"{path.name}.aside-{os.urandom(6).hex()}")
        with files.naming(path, "rename"):
            os.rename(path, side)
        self._warn(f"{why}; it is kept as {side.name}")

    def _set_aside(self, path: Path, data: bytes, why: str) -> None:
        side = path.with_name(f"{path.name}.aside-{digest_bytes(data)[:12]}")
        if not files.write_new(side, data) and not _holds(side, data):  # somebody else's file has that name
            side = path.with_name(f"{path.name}.aside-{os.urandom(6).hex()}")
            files.write_atomic(side, data)
        self._warn(f"{path}: {why}; those {len(data)} bytes are kept in {side.name}")


def _holds(path: Path, data: bytes) -> bool:
    with suppress(BankError):
        return files.read_limited(path, len(data), path.name) == data
    return False


def is_temporary(name: str) -> bool:
    """Whether `files` names what it is about to rename to a file of a bank like this."""
    found = re.fullmatch(r"\.(.+)\.[0-9a-f]{12}\.tmp", name)
    return found is not None and (found[1] in FILES or ".aside-" in found[1])


def belongs(name: str) -> bool:
    """Whether a bank directory has, or keeps, a file of this name."""
    return name in FILES or is_temporary(name) or ".aside-" in name


def cut_short(lines: int, named: int) -> str:
    """Say that `bank.json` names a line the ledger does not have."""
    return (
        f"has {lines} whole lines, and {cache.BANK_FILE} names line {named}, so the end was cut off; restore "
        f"{ledger.FILE_NAME} from git or a backup, or remove {cache.BANK_FILE} to go on with "
        f"what {ledger.FILE_NAME} still holds"
    )


def known(cached: cache.State, history: History) -> bool:
    """Whether `bank.json` holds the bank of the ledger line it names."""
    if cached.head.seq > history.seq:
        return False
    return (cached.head.hash, cached.bank.hash) == history.chain[cached.head.seq]


def _write_changed(path: Path, data: bytes) -> None:
    try:
        if files.read_limited(path, len(data), "panel") == data:
            return
    except BankError:
        pass  # missing, larger or unreadable: written anew
    files.write_atomic(path, data)
