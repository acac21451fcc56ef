"""A bank that changed while a run could reach it is not trusted until it was verified.

Every run leaves a note of the bank it started with and takes it away when the bank is still that one. A note that
stays behind, because the bank changed or the run was killed, makes the next run verify the bank before using it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from valve_plugin.bank import files

COVERED = ("bank.json", "ledger.jsonl", "panel.json", "valve.toml")


def state(bank_dir: Path) -> str:
    """Return what tells whether any file of a bank was written, without reading them: their times and places.

    The time of the last status change is among them, which no program can set. A file that was written anew with the
    same content counts as changed; that costs one verification.
    """
    found: list[list[str | int]] = []
    for name in COVERED:
        try:
            info = os.lstat(bank_dir / name)
        except OSError:
            found.append([name])
        else:
            found.append([name, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino])
    return json.dumps(found)


class Witness:
    """One run's note of the bank it started with."""

    def __init__(self, local_dir: Path, bank_dir: Path) -> None:
        self._notes, self._bank_dir = local_dir / "runs", bank_dir
        self._note = self._notes / f"{os.getpid()}-{os.urandom(6).hex()}"
        self.before = state(bank_dir)

    def doubts(self) -> bool:
        """Tell whether some run started with another bank than this one and never saw it verified."""
        return any(_read(note) != self.before for note in self._all())

    def settle(self) -> None:
        """Call after verifying: forget the notes of other banks."""
        for note in self._all():
            if _read(note) != self.before:
                note.unlink(missing_ok=True)

    def arrive(self) -> None:
        """Leave the note: from here on the bank must stay as it is."""
        self.before = state(self._bank_dir)
        self._leave_note()

    def leave(self) -> bool:
        """Take the note away and return True if the bank is as it was; else see that the note is there."""
        if state(self._bank_dir) == self.before:
            self._note.unlink(missing_ok=True)
            return True
        self._leave_note()
        return False

    def _leave_note(self) -> None:
        files.make_dir(self._notes)
        files.write_atomic(self._note, self.before.encode())

    def _all(self) -> list[Path]:
        return [note for note in self._notes.iterdir() if not note.name.startswith(".")] if self._notes.is_dir() else []


def _read(note: Path) -> str:
    try:
        return note.read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return "unreadable"
