"""Checking all that a bank directory claims, from its files alone.

This detects damage and mistakes. It is not a signature: whoever can write the directory can also write a
ledger that verifies.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from valve_plugin import config
from valve_plugin.bank import cache, files, ledger
from valve_plugin.bank.directory import Directory, belongs, cut_short, is_temporary, known
from valve_plugin.bank.entries import Judged
from valve_plugin.bank.replay import History, Replay, replayed
from valve_plugin.codec import decode, pretty
from valve_plugin.errors import BankCorruptError, BankError, BankNotFoundError, ConfigError, RecordError
from valve_plugin.records import Record
from valve_plugin.schemas import load as load_schema
from valve_plugin.theory.receipt import recompute

_REMADE = f"the next write makes it again from {ledger.FILE_NAME}"
_MOVED = "`valve bank verify --repair` moves it aside"
_MAX_PER_DOCUMENT = 5  # schema violations listed of one document


class Finding(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that does not hold."""

    level: Literal["error", "warning"]
    """`warning`: what a killed write leaves behind and the next write repairs; everything else is an `error`."""
    file: str
    """File name within the bank directory."""
    place: str
    """Line, or path inside the document; empty for the whole file."""
    message: str


def verify(path: Path) -> list[Finding]:
    """Return what does not hold in a bank directory; empty when all does. Nothing is written.

    Checks every document against its JSON Schema, the ledger's form and hash chain, that `bank.json` and
    `panel.json` are byte for byte what the ledger's replay gives, that `valve.toml` can be read, and that every
    verdict follows from its stored outcomes.

    Raises:
        BankNotFoundError: there is no bank.
    """
    try:
        data = Directory(path, warn=lambda message: None).read_ledger()
    except BankNotFoundError:
        raise
    except BankError as e:
        return [_error(ledger.FILE_NAME, "", e)]
    head = cache.named(path / cache.BANK_FILE)
    cut = list(_cut(head, data))
    # No write is made to a ledger that was cut.
    ways = {} if cut else {cache.PANEL_FILE: _REMADE, cache.BANK_FILE: _REMADE if head else _unnamed(data)}
    return [*_schemas(path, data, ways), *_ledger(path, data, cut, ways), *_settings(path), *_others(path)]


def _cut(head: cache.Head | None, data: bytes) -> Iterator[Finding]:
    """The ledger lacks the line that `bank.json` names, whatever else is wrong with that file."""
    lines = data.count(b"\n")
    if head and 0 < lines <= head.seq:
        yield _error(cache.BANK_FILE, "ledger", f"{ledger.FILE_NAME} {cut_short(lines, head.seq + 1)}")


def _unnamed(data: bytes) -> str:
    """The way out where no `bank.json` names a line: what it is made from may not be all there was."""
    lines = data.count(b"\n")
    return (
        f"{_REMADE} as that is, {lines} whole lines; whether its end was cut off cannot be told, as only "
        f"{cache.BANK_FILE} names its last line"
    )


def _ledger(path: Path, data: bytes, cut: list[Finding], ways: Mapping[str, str]) -> Iterator[Finding]:
    """The chain, its replay, and all that must agree with it."""
    try:
        reading = ledger.parse(data, ledger.FILE_NAME)
        history = replayed(reading.lines, ledger.FILE_NAME)
    except BankError as e:
        yield _error(ledger.FILE_NAME, "", e)
        return
    yield from cut  # what is wrong with a line would have said more
    bank = list(_bank_file(path, history, ways.get(cache.BANK_FILE, "")))
    if reading.torn and not cut:
        message = (
            f"{len(reading.torn)} bytes of an unfinished line, as a killed write leaves it; the next write tidies up"
        )
        yield Finding(level="warning", file=ledger.FILE_NAME, place="end", message=message)
    yield from _verdicts(reading.lines)
    yield from bank
    # panel.json is written before bank.json: where that one is current, this one must be too.
    level: Literal["error", "warning"] = "warning" if any(f.level == "warning" for f in bank) else "error"
    yield from _panel_file(path, history.state, level, ways.get(cache.PANEL_FILE, ""))


def _verdicts(lines: list[ledger.Line]) -> Iterator[Finding]:
    """Decide every verdict anew from the outcomes in the ledger."""
    state = Replay()
    for line in lines:
        if isinstance(line.entry, Judged):
            try:
                problems = recompute(line.entry.verdict, state.outcomes or ())
            except ConfigError as e:  # the panel's rho is no number
                problems = [str(e)]
            for problem in problems:
                yield _error(ledger.FILE_NAME, f"line {line.seq + 1}", problem, ledger.RESTORE)
        state.feed(line.entry)


def _bank_file(path: Path, history: History, remade: str) -> Iterator[Finding]:
    name = cache.BANK_FILE
    try:
        data = files.read_limited(path / name, cache.MAX_BYTES, "bank")
        state = cache.parse(data, name)
    except BankNotFoundError:
        yield Finding(level="warning", file=name, place="", message=f"missing; {remade}")
        return
    except (BankCorruptError, RecordError) as e:
        yield _error(name, "", e, remade)
        return
    except BankError as e:  # says itself what to do
        yield _error(name, "", e)
        return
    seq = state.head.seq
    if seq > history.seq:
        return  # reported as a cut
    if not known(state, history):
        yield _error(name, "", f"is not what {ledger.FILE_NAME} gives for the line it names, {seq + 1}", remade)
    elif data != cache.render(state.bank, state.head):
        yield _error(name, "", "holds the right bank in other bytes than were written", remade)
    elif seq < history.seq:
        message = f"ends at line {seq + 1} of {history.seq + 1}, as a killed write leaves it; the next write repairs it"
        yield Finding(level="warning", file=name, place="ledger", message=message)


def _panel_file(path: Path, state: Replay, level: Literal["error", "warning"], remade: str) -> Iterator[Finding]:
    name = cache.PANEL_FILE
    try:
        data = files.read_limited(path / name, cache.MAX_BYTES, "panel")
    except BankNotFoundError:
        if state.panel is not None:
            yield Finding(level="warning", file=name, place="", message="missing; the next write makes it again")
        return
    except BankError as e:
        yield _error(name, "", e, remade if isinstance(e, BankCorruptError) else "")
        return
    if state.panel is None:
        yield Finding(level=level, file=name, place="", message=f"{ledger.FILE_NAME} fixed no panel; {_MOVED}")
    elif data != pretty(state.panel):
        message = "; ".join(filter(None, [f"is not the panel that {ledger.FILE_NAME} fixed last", remade]))
        yield Finding(level=level, file=name, place="", message=message)


def _settings(path: Path) -> Iterator[Finding]:
    try:
        config.load(path)
    except ConfigError as e:
        yield _error(config.FILE_NAME, "", e, "correct the file, or restore it from git or a backup")


def _others(path: Path) -> Iterator[Finding]:
    """What killed writes left, and files of somebody else's: neither is read."""
    names = sorted(entry.name for entry in path.iterdir())
    for name in filter(is_temporary, names):
        yield Finding(level="warning", file=name, place="", message="left by a killed write; the next write removes it")
    strays = [name for name in names if not belongs(name)]
    if strays:
        more = f"and {len(strays) - 1} more are no files" if len(strays) > 1 else "is no file"
        message = f"{more} of a bank; nothing reads what is not, it may stay"
        yield Finding(level="warning", file=strays[0], place="", message=message)


def _schemas(path: Path, data: bytes, ways: Mapping[str, str]) -> Iterator[Finding]:
    """Every JSON document against its schema, which is independent of the code that reads it for use.

    What is no JSON is left to that code, which says it once.
    """
    violations = _validator("ledger")
    for number, raw in enumerate(data.split(b"\n")[:-1], start=1):
        for place, message in violations(raw):
            yield _error(ledger.FILE_NAME, f"line {number}: {place}", message, ledger.RESTORE)
    for name, schema in ((cache.BANK_FILE, "bank"), (cache.PANEL_FILE, "panel")):
        try:
            document = files.read_limited(path / name, cache.MAX_BYTES, schema)
        except BankError:
            continue  # reported where the file is compared with the ledger
        for place, message in _validator(schema)(document):
            yield _error(name, place, message, ways.get(name, ""))


def _validator(name: str) -> Callable[[bytes], Iterator[tuple[str, str]]]:
    """A function from a JSON document to (place, message) of its first few violations of a schema."""
    from jsonschema import Draft202012Validator  # 60 ms to import

    validator = Draft202012Validator(load_schema(name))

    def violations(document: bytes) -> Iterator[tuple[str, str]]:
        try:
            value: Any = decode(document, object, where="")
            found = list(islice(validator.iter_errors(value), _MAX_PER_DOCUMENT))
        except RecordError:
            return
        for error in found:
            yield error.json_path, f"{error.message:.300}"

    return violations


def _error(file: str, place: str, problem: object, way_out: str = "") -> Finding:
    message = str(problem)
    before, named, rest = message.partition(f"{file}: ")
    if named and (not before or before.endswith(os.sep)):  # the finding has the name already
        message = rest
    if way_out:
        message += f" {way_out}" if message.endswith("?") else f"; {way_out}"
    return Finding(level="error", file=file, place=place, message=message)
