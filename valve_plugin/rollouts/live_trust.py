"""A bank that changed while a run could reach it is not trusted until it was verified.

Every run leaves a note of the bank it started with and takes it away when the bank is still that one. A note that
stays behind, because the bank changed or the run was killed, makes the next run verify the bank before using it.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from valve_plugin.bank import files

_MAX_BYTES = 1 << 30
COVERED = ("bank.json", "ledger.jsonl", "panel.json", "valve.toml")


def fingerprint(bank_dir: Path) -> str:
    """Return a hash of all that a run takes from a bank directory; absent and unreadable files count as such."""
    whole = hashlib.sha256()
    for name in COVERED:
        content = b"absent"
        with suppress(OSError):
            content = hashlib.sha256(files.read_limited(bank_dir / name, _MAX_BYTES, "part of a bank")).digest()
        whole.update(content)
    return whole.hexdigest()


class Witness:
    """One run's note of the bank it started with."""

    def __init__(self, local_dir: Path, bank_dir: Path) -> None:
        self._notes, self._bank_dir = local_dir / "runs", bank_dir
        self._note = self._notes / f"{os.getpid()}-{os.urandom(6).hex()}"
        self.before = fingerprint(bank_dir)

    def doubts(self) -> bool:
        """Tell whether some run started with another bank than this one and never saw it verified."""
        return any(_read(note) != self.before for note in self._all())

    def settle(self) -> None:
        """Call after verifying: forget the notes of other banks."""
        for note in self._all():
            if _read(note) != self.before:
                note.unlink(missing_ok=True)

    def arrive(self) -> None:
        """Leave the note."""
        files.make_dir(self._notes)
        files.write_atomic(self._note, self.before.encode())

    def leave(self) -> bool:
        """Take the note away and return True if the bank is as it was; else see that the note is there."""
        if fingerprint(self._bank_dir) == self.before:
            self._note.unlink(missing_ok=True)
            return True
        self.arrive()
        return False

    def _all(self) -> list[Path]:
        return [note for note in self._notes.iterdir() if not note.name.startswith(".")] if self._notes.is_dir() else []


def _read(note: Path) -> str:
    try:
        return note.read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return "unreadable"
