"""Check a bank directory from its files alone.

This detects damage and mistakes. It is not a signature: whoever can write to the directory can also write a ledger
that passes the check.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from valve_plugin import config, files
from valve_plugin.bank import ledger
from valve_plugin.bank.directory import (
    MAX_BYTES,
    Directory,
    parse_bank_file,
    read_head,
    render_bank_file,
    truncation,
)
from valve_plugin.bank.entries import Judged
from valve_plugin.bank.ledger import BANK_FILE, PANEL_FILE
from valve_plugin.bank.replay import History, Replay, replay
from valve_plugin.codec import pretty
from valve_plugin.errors import BankCorruptError, BankError, BankNotFoundError, ConfigError, RecordError
from valve_plugin.records import Record
from valve_plugin.theory.gate_rule import recompute

_REMADE = f"the next write makes it again from {ledger.FILE_NAME}"


class BankFinding(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A problem in a bank directory."""

    level: Literal["error", "warning"]
    """`warning`: left by a killed write and repaired by the next write, or harmless; else `error`."""
    file: str
    """File name within the bank directory."""
    place: str
    """Line, or path inside the document; empty for the whole file."""
    message: str


def verify(path: Path, known: ledger.ParsedLedger | None = None) -> list[BankFinding]:
    """Return the problems in a bank directory, an empty list if there are none. Nothing is written.

    Checks the ledger's form, as strictly as its JSON Schema, and its hash chain, that `bank.json` and
    `panel.json` are byte for byte what the ledger's replay gives, that `valve.toml` can be read, and that every
    verdict follows from its stored outcomes.

    Args:
        known: what this process has parsed of the ledger; bytes that are still the same are not parsed again.

    Raises:
        BankNotFoundError: there is no bank.
    """
    try:
        data = Directory(path, warn=lambda message: None).read_ledger()
    except BankNotFoundError:
        raise
    except BankError as e:
        return [_error(ledger.FILE_NAME, "", e)]
    head, lines = read_head(path / BANK_FILE), data.count(b"\n")
    unknown = "" if head else f"; without {BANK_FILE} nobody knows whether lines are missing at its end"
    cut = []
    if head and 0 < lines <= head.seq:
        cut.append(_error(BANK_FILE, "ledger", f"{ledger.FILE_NAME} {truncation(lines, head.seq + 1)}"))
    found = list(_ledger(path, data, known, cut, _REMADE + unknown))
    try:
        config.load(path)
    except ConfigError as e:
        found.append(_error(config.FILE_NAME, "", e, "correct the file, or restore it from git or a backup"))
    return found


def _ledger(
    path: Path, data: bytes, known: ledger.ParsedLedger | None, cut: list[BankFinding], remade: str
) -> Iterator[BankFinding]:
    """Check the hash chain, the replay, and the files that must match it."""
    try:
        reading = ledger.parse(data, ledger.FILE_NAME, known)
        verdicts: list[BankFinding] = []
        history = replay(
            reading.lines, ledger.FILE_NAME, before=lambda line, state: verdicts.extend(_verdict(line, state))
        )
    except BankError as e:
        yield _error(ledger.FILE_NAME, "", e)
        return
    yield from cut  # a damaged line, reported above, is the better message
    remade = "" if cut else remade  # a ledger without its end is never written to
    bank = list(_bank_file(path, history, remade))
    if reading.torn and not cut:
        message = f"{len(reading.torn)} bytes of an incomplete line from a killed write; the next write repairs this"
        yield BankFinding(level="warning", file=ledger.FILE_NAME, place="end", message=message)
    yield from verdicts
    yield from bank
    # panel.json is written before bank.json: where that one is current, this one must be too.
    level: Literal["error", "warning"] = "warning" if any(f.level == "warning" for f in bank) else "error"
    yield from _panel_file(path, history.state, level, remade)


def _verdict(line: ledger.Line, state: Replay) -> Iterator[BankFinding]:
    """Recompute a verdict from its outcomes and those of the current bank before it."""
    if isinstance(line.entry, Judged):
        try:
            problems = recompute(line.entry.verdict, state.outcomes or ())
        except ConfigError as e:  # the panel's rho is not a number
            problems = [str(e)]
        for problem in problems:
            yield _error(ledger.FILE_NAME, f"line {line.seq + 1}", problem, ledger.RESTORE)


def _bank_file(path: Path, history: History, remade: str) -> Iterator[BankFinding]:
    name = BANK_FILE
    try:
        data = files.read_limited(path / name, MAX_BYTES, "bank")
        cached = parse_bank_file(data, name)
    except BankNotFoundError:
        yield BankFinding(level="warning", file=name, place="", message=f"missing; {remade}")
        return
    except (BankCorruptError, RecordError) as e:
        yield _error(name, "", e, remade)
        return
    except BankError as e:  # its message says what to do
        yield _error(name, "", e)
        return
    seq = cached.ledger.seq
    if seq > history.seq:
        return  # reported by `verify`
    if not cached.matches(history):
        yield _error(name, "", f"differs from {ledger.FILE_NAME} at the line it names, {seq + 1}", remade)
    elif data != render_bank_file(cached.bank, cached.ledger):
        yield _error(name, "", "has the right bank, but not the bytes that were written", remade)
    elif seq < history.seq:
        message = f"ends at line {seq + 1} of {history.seq + 1} after a killed write; the next write repairs it"
        yield BankFinding(level="warning", file=name, place="ledger", message=message)


def _panel_file(path: Path, state: Replay, level: Literal["error", "warning"], remade: str) -> Iterator[BankFinding]:
    name = PANEL_FILE
    try:
        data = files.read_limited(path / name, MAX_BYTES, "panel")
    except BankNotFoundError:
        if state.panel is not None:
            yield BankFinding(level="warning", file=name, place="", message="missing; the next write makes it again")
        return
    except BankError as e:
        yield _error(name, "", e, remade if isinstance(e, BankCorruptError) else "")
        return
    if state.panel is None:
        message = f"{ledger.FILE_NAME} has no panel; `valve bank verify --repair` moves it aside"
        yield BankFinding(level=level, file=name, place="", message=message)
    elif data != pretty(state.panel):
        message = "; ".join(filter(None, [f"is not the last panel in {ledger.FILE_NAME}", remade]))
        yield BankFinding(level=level, file=name, place="", message=message)


def _error(file: str, place: str, problem: object, way_out: str = "") -> BankFinding:
    message = str(problem)
    before, named, rest = message.partition(f"{file}: ")
    if named and (not before or before.endswith(os.sep)):  # the finding already has the file's name
        message = rest
    if way_out:
        message += f" {way_out}" if message.endswith("?") else f"; {way_out}"
    return BankFinding(level="error", file=file, place=place, message=message)
