"""Where in its ledger a run came to its end. What is written behind that is no part of it, and takes nothing away."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from valve_plugin.bank import ledger
from valve_plugin.bank.entries import Entry, Evaluated
from valve_plugin.bank.evaluated import points
from valve_plugin.bank.files import read_limited, write_atomic
from valve_plugin.codec import decode, pretty
from valve_plugin.errors import BankNotFoundError
from valve_plugin.experiment import bound
from valve_plugin.experiment.spec import Cell, Experiment

FILE = "ended.json"
"""The ledger line a run ended with: one that is under way has evaluations too, and is in no table."""


class Ending(NamedTuple):
    """How far a run is."""

    entries: Sequence[Entry]
    """The run's own; empty: it has not ended."""
    remark: str
    """Why it is in no table; or what came after it, if that is more than measuring."""


def write(folder: Path, head: str) -> None:
    """Note that a run has ended with this ledger line."""
    write_atomic(folder / FILE, pretty({"head": head}))


def reopen(folder: Path) -> None:
    """Note that a run goes on: its stream is longer now, or errored rollouts are tried again."""
    (folder / FILE).unlink(missing_ok=True)


def find(experiment: Experiment, cell: Cell, out: Path) -> Ending:
    """Return a run's own entries, if it has ended as the file asks."""
    folder = out / cell.path
    try:
        data = read_limited(folder / "bank" / ledger.FILE_NAME, ledger.MAX_BYTES, "ledger")
    except BankNotFoundError:
        return Ending((), "not begun")
    try:
        head = decode(read_limited(folder / FILE, 10_000, "end"), dict[str, Any], where=str(folder / FILE)).get("head")
    except BankNotFoundError:
        return Ending((), "begun and not ended")
    if more := bound.longer(experiment, cell, out):
        return Ending((), more)
    lines = ledger.parse(data, str(folder / "bank" / ledger.FILE_NAME)).lines
    last = next((n for n, line in enumerate(lines, start=1) if line.hash == head), 0)
    if not last:
        return Ending((), "its ledger no longer holds the line it ended with")
    return Ending([line.entry for line in lines[:last]], _after([line.entry for line in lines[last:]], last))


def done(experiment: Experiment, cell: Cell, out: Path) -> bool:
    """Whether nothing is left to run: it has ended, and errored rollouts leave no number open that it could still try.

    A bank that somebody went on with is left alone.
    """
    entries, remark = find(experiment, cell, out)
    final = all(point.entry.complete for point in points(list(entries), experiment.every))
    return bool(entries) and (bool(remark) or final)


def _after(later: Sequence[Entry], last: int) -> str:
    moved = [n for n, entry in enumerate(later, start=last + 1) if not isinstance(entry, Evaluated)]
    if not moved:
        return ""
    return f"its bank went on after the run, from ledger line {moved[0]}; the table is of the run, up to line {last}"
