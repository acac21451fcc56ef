"""A bank directory as the rest of the program sees it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valve_plugin import config
from valve_plugin.bank import files, ledger
from valve_plugin.bank.cache import Head, State
from valve_plugin.bank.directory import GITATTRIBUTES, GITIGNORE, Directory
from valve_plugin.bank.entries import Entry, EpochOpened, Judged, Opened
from valve_plugin.bank.local import LocalStore
from valve_plugin.bank.lock import locked
from valve_plugin.bank.paths import local_dir
from valve_plugin.errors import BankError, BankNotFoundError, RecordError
from valve_plugin.records import Bank, Panel, PanelOutcome

if TYPE_CHECKING:
    from valve_plugin.bank.replay import History, Replay


class BankStore:
    """One bank. What it shows is as of the last read or write; `refresh` reads again. Not for sharing by threads."""

    def __init__(self, path: Path) -> None:
        """Use `open` or `create` instead."""
        self.dir = path
        self.local = LocalStore(local_dir(path))
        self.warnings: list[str] = []
        """What was found wrong and dealt with, one line each, for the person to see."""
        self._files = Directory(path, self._warn)
        self._bank = Bank(repo="")
        self._head = Head(seq=0, hash=ledger.GENESIS)
        self._history: History | None = None  # read only when more than the bank is asked for

    @classmethod
    def create(cls, path: Path, repo: str, settings: Mapping[str, Any] | None = None) -> BankStore:
        """Make an empty bank; one whose making was interrupted is completed.

        Args:
            path: its directory.
            repo: owner/name.
            settings: written to `valve.toml`, unless there is one: that is kept as it is.

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
            if aside := store.local.start_over():
                store._warn(f"an earlier bank was here; its attempts, journal and queue were moved to {aside}")
            files.write_new(path / ".gitignore", GITIGNORE)
            files.write_new(path / ".gitattributes", GITATTRIBUTES)
            if not files.write_new(path / config.FILE_NAME, toml.encode()) and settings:
                store._warn(f"{path / config.FILE_NAME}: was there already and is kept; check it against what you gave")
            files.write_atomic(store._files.ledger, first + b"\n")  # from here on there is a bank
            store._load(first + b"\n")
            store._files.write_caches(store._known())
        return store

    @classmethod
    def open(cls, path: Path) -> BankStore:
        """Open a bank for reading and writing. Writes nothing, but for setting aside what a killed write left.

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

        When `bank.json` agrees with the ledger's last line that is all that is read closely: a few
        milliseconds, however long the ledger. Else, and before anything is written, the whole is replayed.
        """
        if self._take(self._files.read_cache(), self._files.read_ledger()):
            return
        cached, data = self._files.read_settled()
        if not self._take(cached, data):
            self._load(data)
            self._files.compare(cached, self._known())

    def entries(self) -> Iterator[Entry]:
        """Every entry from the first, as they are on disk now."""
        for line in ledger.parse(self._files.read_ledger(), str(self._files.ledger)).lines:
            yield line.entry

    def append(self, entry: Entry) -> None:
        """Write one entry durably, if it may come now; then the files made from it.

        Raises:
            StaleVerdictError: the bank changed since it was judged or measured.
            HorizonError: the epoch's queries are used up.
            RecordError: the entry may not come now, or its verdict does not follow from its outcomes.
            BankError: the directory cannot be written; the entry is not in the ledger.
        """
        self._known()  # a damaged ledger is refused before even a lock file is made
        with self._files.locked():
            self._catch_up()
            history = self._known()
            outcomes = history.state.outcomes
            try:
                history.state.feed(entry)
                if isinstance(entry, Judged):
                    _require_sound(entry, outcomes)
                bank = history.state.bank
                line = ledger.encode(history.seq + 1, self.head, bank.hash, entry)
                files.append_durable(self._files.ledger, line + b"\n")
            except BaseException:
                self._history = None  # it may be one entry ahead of the file
                raise
            self._bank, self._head = bank, Head(seq=history.seq + 1, hash=ledger.hash_of(line))
            history.chain.append((self.head, bank.hash))
            self._files.write_caches(history)

    def at(self, version: int) -> Bank:
        """Return the bank as it was after `version` accepts, replayed from the ledger.

        Raises:
            BankNotFoundError: there is no such version.
        """
        banks = self._state.banks
        if not 0 <= version < len(banks):
            raise BankNotFoundError(f"{self.dir}: no version {version}; the bank has versions 0 to {len(banks) - 1}")
        return banks[version]

    def panel(self) -> Panel | None:
        """The fixed panel, if one is."""
        return self._state.panel

    def epoch(self) -> EpochOpened | None:
        """The open epoch; None before the first, and between a new panel and its epoch."""
        return self._state.epoch

    def queries_used(self) -> int:
        """Gate queries of the open epoch."""
        return self._state.queries

    def current_outcomes(self) -> tuple[PanelOutcome, ...] | None:
        """The current bank's panel outcomes, in panel order; None until this epoch's baseline is recorded."""
        return self._state.outcomes

    def remeasured(self) -> int:
        """How often the current bank was measured again in the open epoch, for its own sake."""
        return self._state.remeasured

    def ordinals(self, task_id: str, context_hash: str) -> int:
        """The first ordinal that no rollout in the ledger has for this task under this block."""
        return self._state.ordinals.get((task_id, context_hash), 0)

    def sealed(self) -> Mapping[str, str]:
        """Every holdout task this bank was evaluated on: id -> content hash."""
        return self._state.holdout

    def sources(self) -> Set[str]:
        """Ids of all tasks that proposals were learned from."""
        return self._state.sources

    def settings(self, overrides: Mapping[str, Any] | None = None) -> config.Settings:
        """Defaults, then this bank's `valve.toml`, then `overrides`."""
        return config.load(self.dir, overrides)

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Be the only one to evolve or judge this bank; it ends with the process at the latest.

        Raises:
            BankBusyError: somebody else is.
        """
        note = self.dir / ".lease-holder"
        busy = f"{self.dir}: {_holder(note)} is evolving or judging this bank; wait for it, "
        busy += "stop it, or watch it with `valve evolve --attach`"
        with locked(self.dir / ".lease", 0, busy):
            files.write_atomic(note, str(os.getpid()).encode())
            try:
                yield
            finally:
                note.unlink(missing_ok=True)

    @property
    def _state(self) -> Replay:
        return self._known().state

    def _known(self) -> History:
        if self._history is None:
            self._load(self._files.read_settled()[1])
        assert self._history is not None
        return self._history

    def _take(self, cached: State | None, data: bytes) -> bool:
        """Show what `bank.json` says, if the ledger's last line agrees."""
        tail = ledger.tail(data)
        if not cached or not tail or cached.head != Head(seq=tail.seq, hash=tail.hash) or cached.bank.hash != tail.bank:
            return False
        self._bank, self._head, self._history = cached.bank, cached.head, None
        return True

    def _load(self, data: bytes) -> None:
        from valve_plugin.bank.replay import replayed  # a run that only reads the bank does without

        history = replayed(ledger.parse(data, str(self._files.ledger)).lines, str(self._files.ledger))
        self._history, self._bank = history, history.state.bank
        self._head = Head(seq=history.seq, hash=history.head)

    def _catch_up(self) -> None:
        """Under the lock: tidy, and read what other processes wrote since."""
        data = self._files.tidy()
        tail = ledger.tail(data)
        if self._history is None or tail is None or (tail.seq, tail.hash) != (self._head.seq, self._head.hash):
            self._load(data)

    def _warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)


def _holder(note: Path) -> str:
    """Who left the note; only for a message, so anything unexpected is passed over."""
    try:
        return f"process {int(files.read_limited(note, 20, 'note'))}"
    except (BankError, ValueError):
        return "another process"


def _require_sound(entry: Judged, current: tuple[PanelOutcome, ...] | None) -> None:
    """Refuse to record a verdict that `verify` would reject."""
    from valve_plugin.theory.receipt import recompute

    problems = recompute(entry.verdict, current or ())
    if problems:
        raise RecordError(f"verdict on proposal {entry.verdict.proposal_id} is not sound: {'; '.join(problems)}")
