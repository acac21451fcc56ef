"""Making a bank directory whole again from its ledger. The ledger is not touched, and nothing is lost."""

from __future__ import annotations

from pathlib import Path

from valve_plugin.bank import cache, files, ledger
from valve_plugin.bank.directory import Directory
from valve_plugin.bank.replay import History, replayed
from valve_plugin.codec import pretty
from valve_plugin.errors import BankError, BankNotFoundError, RecordError


def repair(path: Path) -> list[str]:
    """Write `bank.json` and `panel.json` again from the ledger, keeping what was there under another name.

    A torn end of the ledger is set aside, what killed writes left is removed, and a `panel.json`, link or folder that
    does not belong there is renamed. Other people's files in the directory are left alone.

    Returns:
        What was done beyond writing the two, one line each.

    Raises:
        BankNotFoundError: there is no bank.
        BankError: the ledger is damaged or was cut, or the directory cannot be written; nothing was changed.
    """
    said: list[str] = []
    directory = Directory(path, said.append)
    _replayed(directory, directory.read_ledger())  # a damaged ledger is refused before even a lock file is made
    with directory.locked():
        directory.require_uncut(cache.named(directory.bank), directory.read_ledger())
        history = _replayed(directory, directory.tidy())
        for place, wanted in ((directory.bank, None), (directory.panel, history.state.panel)):
            _make_way(directory, place, needed=place == directory.bank or wanted is not None)
        if history.state.panel is not None:
            directory.keep_other(directory.panel, pretty(history.state.panel))
        directory.write_caches(history)
    return said


def _replayed(directory: Directory, data: bytes) -> History:
    return replayed(ledger.parse(data, str(directory.ledger)).lines, str(directory.ledger))


def _make_way(directory: Directory, place: Path, *, needed: bool) -> None:
    """Rename what stands where a file made from the ledger goes, unless it is such a file."""
    try:
        data = files.read_limited(place, cache.MAX_BYTES, place.name)
        if place == directory.bank:
            cache.parse(data, str(place))
    except (BankNotFoundError, RecordError):
        return
    except BankError as e:  # a link, a folder, somebody else's, too large, of another version
        directory.move_aside(place, str(e))
    else:
        if not needed:
            directory.move_aside(place, f"{place}: {directory.ledger.name} fixed no panel")
