"""A bank directory as the rest of the program uses it: `open`, `create`, `append`, and questions about its state."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valve_plugin import config, files
from valve_plugin.bank import ledger
from valve_plugin.bank.directory import GITATTRIBUTES, GITIGNORE, BankFile, Directory, Head
from valve_plugin.bank.entries import Entry, EpochOpened, Judged, Opened
from valve_plugin.bank.ledger import Outline, outline
from valve_plugin.bank.local import local_store
from valve_plugin.codec import digest_bytes
from valve_plugin.errors import BankError, BankNotFoundError, RecordError
from valve_plugin.paths import replayed_file, seen_file
from valve_plugin.records import Bank, Panel, PanelOutcome

if TYPE_CHECKING:
    from valve_plugin.bank.replay import History, Replay
    from valve_plugin.bank.verify import BankFinding


class LedgerState:
    """Questions about the state that a ledger's entries lead to: of a store, or of a ledger up to some line."""

    dir: Path

    @property
    def state(self) -> Replay:
        """What the entries lead to."""
        raise NotImplementedError

    @property
    def bank(self) -> Bank:
        """The accepted bank."""
        return self.state.bank

    def panel(self) -> Panel | None:
        """Return the current panel, or None."""
        return self.state.panel

    def epoch(self) -> EpochOpened | None:
        """Return the open epoch; None before the first, and between a new panel and its epoch."""
        return self.state.epoch

    def queries_used(self) -> int:
        """Return the number of gate queries in the open epoch."""
        return self.state.queries

    def current_outcomes(self) -> tuple[PanelOutcome, ...] | None:
        """Return the current bank's panel outcomes in panel order, or None where a task has none."""
        return self.state.outcomes


class BankStore(LedgerState):
    """One bank, in its state at the last read or write; `refresh` reads again. Threads must not share it."""

    def __init__(self, path: Path) -> None:
        """Use `open` or `create` instead."""
        self.dir = path
        self.local = local_store(path)
        self.warnings: list[str] = []
        """Problems that were repaired, one line each, to show to the user."""
        self._files = Directory(path, self._warn)
        self._bank = Bank(repo="")
        self._head = Head(seq=0, hash=ledger.GENESIS)
        self._history: History | None = None  # read only when more than bank and panel is needed
        self._at_head: tuple[str, Panel | None] = "", None  # the panel at this head, read without a replay
        self._parsed: ledger.ParsedLedger | None = None
        self._stamp: object = None
        self._whole = ""  # SHA-256 of the ledger's bytes that the history is of

    @classmethod
    def create(cls, path: Path, repo: str, settings: Mapping[str, Any] | None = None) -> BankStore:
        """Create an empty bank, or complete a creation that was interrupted.

        Args:
            settings: written to `valve.toml`; an existing file is kept unchanged.

        Raises:
            ConfigError: a setting is unknown or out of range; nothing was written.
            BankError: there is a bank already, or the directory cannot be written.
        """
        config.resolve(settings or {}, where="settings")
        toml = config.to_toml(settings or {})
        bank = Bank(repo=repo)
        first = ledger.encode(0, ledger.GENESIS, bank.hash, Opened(repo=repo))
        files.make_dir(path)
        store = cls(path)
        with store._files.locked():
            if os.path.lexists(store._files.ledger):
                raise BankError(f"{path}: there is a bank already; use it, or choose another place with --bank")
            if aside := store.local.move_away():
                store._warn(f"an earlier bank was here; its attempts, journal and queue were moved to {aside}")
            files.write_new(path / ".gitignore", GITIGNORE)
            files.write_new(path / ".gitattributes", GITATTRIBUTES)
            if not files.write_new(path / config.FILE_NAME, toml.encode()) and settings:
                store._warn(f"{path / config.FILE_NAME}: was there already and is kept; check it against what you gave")
            with suppress(BankError):  # a bank that came with a clone is asked about; user data may be read-only
                files.make_dir(seen_file(path).parent, mode=0o700)
                files.write_atomic(seen_file(path), b"made here")
            files.write_atomic(store._files.ledger, first + b"\n")  # from here on the bank exists
            store._load(first + b"\n")
            store._files.write_caches(store._known())
        return store

    @classmethod
    def open_or_create(cls, path: Path, repo: str, settings: Mapping[str, Any] | None = None) -> tuple[BankStore, bool]:
        """Return the bank and whether this call created it: of several processes at once, one does.

        Raises:
            ConfigError: a setting is unknown or out of range; nothing was written.
            BankError: there is a damaged bank, or the directory cannot be written.
        """
        try:
            return cls.open(path), False
        except BankNotFoundError:
            pass
        try:
            return cls.create(path, repo, settings), True
        except BankError:
            if not os.path.lexists(path / ledger.FILE_NAME):
                raise
            return cls.open(path), False

    @classmethod
    def open(cls, path: Path) -> BankStore:
        """Open a bank for reading and writing. Nothing is written, except to repair what a killed write left.

        Raises:
            BankNotFoundError: there is no bank.
            BankError: it cannot be used; the message names the file, the place and the way out.
        """
        store = cls(path)
        store.refresh()
        return store

    @property
    def bank(self) -> Bank:
        """The accepted bank."""
        return self._bank

    @property
    def head(self) -> str:
        """Hash of the last ledger line."""
        return self._head.hash

    def refresh(self) -> None:
        """Read the directory again.

        If this machine has replayed or written exactly this ledger, and `bank.json` is of its last line, only that file
        and the panel are parsed. Otherwise the whole ledger is replayed, so that no note is used on another's word.
        """
        if not self._take(self._files.read_bank(), self._files.read_ledger()):
            cached, data = self._files.read_consistent()
            if not self._take(cached, data):
                self._load(data)
                self._files.compare(cached, self._known())
        for item in self._bank.items:
            if item.hidden:
                self._warn(
                    f"{item.kind} {item.name} hides what it says ({', '.join(item.hidden[:5])}) and is not injected; "
                    "see `valve bank lint`, then edit or remove it"
                )

    def panel(self) -> Panel | None:
        """Return the current panel, or None."""
        head, panel = self._at_head
        return panel if head == self.head else self.state.panel

    def outline(self) -> Outline:
        """Return where the ledger on disk stands, without a replay. Bank and panel are of the same moment afterwards.

        Raises:
            BankCorruptError: a line is damaged; the message names it.
        """
        while True:
            data = self._files.read_ledger()
            try:
                found = outline(data)
            except RecordError:
                ledger.parse(data, str(self._files.ledger))
                raise
            if found.head == self.head:
                return found
            self.refresh()  # another process has written

    def entries(self) -> Iterator[Entry]:
        """Yield every entry on disk, oldest first."""
        stamp = self._files.stamp()  # before it is read: what comes meanwhile is read the next time
        if self._parsed is None or stamp is None or stamp != self._stamp:
            self._parse(self._files.read_ledger())
            self._stamp = stamp  # not of a ledger that was refused
        assert self._parsed is not None
        for line in self._parsed.lines:
            yield line.entry

    def verify(self) -> list[BankFinding]:
        """Return the problems in the directory, see `verify.verify`; lines that were parsed are not parsed again."""
        from valve_plugin.bank.verify import verify  # not needed to read the bank

        return verify(self.dir, self._parsed)

    def append(self, entry: Entry) -> None:
        """Write one entry durably, if it is allowed now; then update the other files.

        Raises:
            StaleVerdictError: the bank changed since it was judged or measured.
            HorizonError: the epoch's queries are used up.
            RecordError: the entry may not come now, or its verdict does not follow from its outcomes.
            BankError: the directory cannot be written; the entry is not in the ledger.
        """
        from valve_plugin.theory.gate_rule import recompute  # not needed to read the bank

        self._known()  # a damaged ledger is refused before even a lock file is made
        with self._files.locked():
            data = self._files.remove_torn_line()
            whole = hashlib.sha256(data)
            if self._history is None or whole.hexdigest() != self._whole:  # others wrote
                self._load(data)
            history = self._known()
            outcomes = history.state.outcomes
            try:
                history.state.feed(entry)
                if isinstance(entry, Judged) and (problems := recompute(entry.verdict, outcomes or ())):
                    why = "; ".join(problems)  # as `verify` would say
                    raise RecordError(f"verdict on proposal {entry.verdict.proposal_id} is not sound: {why}")
                bank = history.state.bank
                line = ledger.encode(history.seq + 1, self.head, bank.hash, entry)
                files.append_durable(self._files.ledger, line + b"\n")
                history.chain.append((ledger.line_hash(line), bank.hash))
                self._bank, self._head = bank, Head(seq=history.seq, hash=history.head)
            except BaseException:
                self._history = None  # its state may already include the entry
                raise
            whole.update(line + b"\n")
            self._files.write_caches(history)
            self._note_replayed(whole.hexdigest())

    def at(self, version: int) -> Bank:
        """Return the bank as it was after `version` accepts, replayed from the ledger.

        Raises:
            BankNotFoundError: there is no such version.
        """
        banks = self.state.banks
        if not 0 <= version < len(banks):
            raise BankNotFoundError(f"{self.dir}: no version {version}; the bank has versions 0 to {len(banks) - 1}")
        return banks[version]

    def settings(self, overrides: Mapping[str, Any] | None = None) -> config.Settings:
        """Return the settings: defaults, then this bank's `valve.toml`, then `overrides`; items ranked as judged."""
        return config.as_judged(config.load(self.dir, overrides), self.panel())

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Hold the lease: only one process at a time may evolve or judge this bank.

        Raises:
            BankBusyError: another process holds it.
        """
        note = self.dir / ".lease-holder"
        try:
            holder = f"process {int(files.read_limited(note, 20, 'note'))}"
        except (BankError, ValueError):
            holder = "another process"
        busy = (
            f"{self.dir}: {holder} is evolving or judging this bank; wait for it, stop it, or watch it "
            "with `valve evolve --attach`"
        )
        with files.hold_lock(self.dir / ".lease", 0, busy):
            files.write_atomic(note, str(os.getpid()).encode())
            try:
                yield
            finally:
                note.unlink(missing_ok=True)

    @property
    def state(self) -> Replay:
        """What the entries lead to; replayed when it is asked for."""
        return self._known().state

    def _known(self) -> History:
        if self._history is None or self._history.head != self.head:
            self._load(self._files.read_consistent()[1])
        assert self._history is not None
        return self._history

    def _take(self, cached: BankFile | None, data: bytes) -> bool:
        """Use the bank of `bank.json` if it matches the last line of a replayed ledger; return whether it does."""
        tail = ledger.last_line(data)
        if cached is None or tail is None or cached.ledger != Head(seq=tail[0], hash=tail[1]):
            return False
        bank = cached.bank
        if bank.hash != tail[2] or files.read_text(replayed_file(self.dir), 100) != digest_bytes(data):
            return False
        try:
            self._at_head = tail[1], ledger.last_panel(data)
        except RecordError:
            return False
        self._bank, self._head = bank, cached.ledger
        return True

    def _load(self, data: bytes) -> None:
        """Replay the ledger's bytes; only what follows, where they go on from what is known."""
        from valve_plugin.bank.replay import replay  # not needed to read the bank

        lines, (known, self._history) = self._parse(data).lines, (self._history, None)
        if known and not (known.seq < len(lines) and lines[known.seq].hash == known.head):
            known = None
        new = lines[known.seq + 1 :] if known else lines
        self._history = history = replay(new, str(self._files.ledger), trusting=True, known=known)
        self._bank, self._head = history.state.bank, Head(seq=history.seq, hash=history.head)
        assert self._parsed is not None
        self._note_replayed(self._parsed.digest)

    def _note_replayed(self, whole: str) -> None:
        """Keep on this machine the SHA-256 of a ledger that was replayed, or written after a replay."""
        self._whole, note = whole, replayed_file(self.dir)
        with suppress(BankError):  # user data may be read-only; then every command replays
            if files.read_text(note, 100) != whole:
                files.make_dir(note.parent, mode=0o700)
                files.write_atomic(note, whole.encode())

    def _parse(self, data: bytes) -> ledger.ParsedLedger:
        """Parse the ledger's bytes; of lines that this store has parsed before, none again."""
        self._parsed = ledger.parse(data, str(self._files.ledger), self._parsed)
        return self._parsed

    def _warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)
