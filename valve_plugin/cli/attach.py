"""Watching a run from another terminal: the events it writes to its bank's telemetry, folded as it folds them."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from valve_plugin.cli import output
from valve_plugin.cli.lines import line
from valve_plugin.cli.progress import EVENTS
from valve_plugin.cli.screen import live, rows
from valve_plugin.cli.view import SIMULATION, View, fold

if TYPE_CHECKING:
    from valve_plugin.bank.store import BankStore

_POLL_SECONDS = 0.5
_HEAD_BYTES = 200


class Event(NamedTuple):
    """One line of the events file."""

    name: str
    data: dict[str, Any]
    at: float


class Tail:
    """Reads a growing file of events; a run that starts anew begins another file, and is read from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._head, self._offset, self._rest = b"", 0, b""

    def new(self) -> Iterator[Event]:
        """Yield what was written since the last call; half a line waits for its other half."""
        try:
            with self._path.open("rb") as file:
                head = file.read(_HEAD_BYTES)  # the first event's time is in it; inode numbers are given again
                if not head.startswith(self._head):
                    self._offset, self._rest = 0, b""
                self._head = head
                file.seek(self._offset)
                read = file.read()
        except OSError:
            return
        self._offset += len(read)
        *lines, self._rest = (self._rest + read).split(b"\n")
        yield from filter(None, map(_event, lines))


def attach(store: BankStore, *, json: bool = False) -> bool:
    """Follow the bank's run until it ends or Ctrl-C; False when none was going on, and the last is shown as it ended.

    With `json`, print what the screen would show now, once.
    """
    tail = Tail(store.local.telemetry_path(EVENTS))
    view, process, alive = _read(tail)
    if json:
        shown = {**dict(rows(view, time.time())), **({"note": view.note} if view.note else {})}
        simulation, ended = view.note == SIMULATION, "" if alive else how(view)
        output.emit_json({"running": alive, "simulation": simulation, "shown": shown, "ended": ended})
        return alive
    if not alive:
        _tell_last(store, view)
        return False
    try:
        _follow(tail, view, process or (0, 0.0))
    except KeyboardInterrupt:
        output.say("stopped watching; the run goes on")
    return True


def last(store: BankStore) -> tuple[View, bool]:
    """Return what the bank's last run on this machine came to, and whether it goes on; it did not start: none did."""
    view, _, alive = _read(Tail(store.local.telemetry_path(EVENTS)))
    return view, alive


def _read(tail: Tail) -> tuple[View, tuple[int, float] | None, bool]:
    view, process = View(), None
    for event in tail.new():
        view, process = fold(view, *event), _process(event) or process
    return view, process, process is not None and not view.ended and _alive(process)


def _follow(tail: Tail, view: View, process: tuple[int, float]) -> None:
    if not sys.stdout.isatty():
        _rows(view, time.time())
        while _alive(process) and not view.ended:
            time.sleep(_POLL_SECONDS)
            for event in tail.new():
                view = fold(view, *event)
                _say(event)
        _last(tail, view)
        return
    with live(lambda: view, stderr=False, transient=False):
        while _alive(process) and not view.ended:
            time.sleep(_POLL_SECONDS)
            for event in tail.new():
                view = fold(view, *event)
    _last(tail, view)


def _last(tail: Tail, view: View) -> None:
    """Say how the run ended: what it wrote last, or that it was killed."""
    for event in tail.new():
        view = fold(view, *event)
    output.say(f"ended: {view.ended}" if view.ended else f"the run was killed; {_again(view)}")


def how(view: View) -> str:
    """How a run that is over ended; empty: there was none."""
    return view.ended or ("it was killed" if view.started else "")


def _again(view: View) -> str:
    return f"start it again to go on: {view.command}" if view.command else "start it again to go on"


def _say(event: Event) -> None:
    try:
        text = line(event.name, event.data)
    except (KeyError, TypeError, ValueError):  # written by another version
        return
    if text:
        output.say(text)


def _tell_last(store: BankStore, view: View) -> None:
    if not view.started:
        output.say(f"no run of this bank is going on, and none is on record here: {store.dir}")
        return
    output.say(f"no run of this bank is going on; the last one on this machine ended: {how(view)}")
    _rows(view, view.started, without=("ended", "left"))


def _rows(view: View, now: float, without: Collection[str] = ()) -> None:
    for label, text in [("note", view.note)] * bool(view.note) + rows(view, now):
        if label not in without:
            output.say(f"{label:<9} {text}")


def _event(raw: bytes) -> Event | None:
    """One event; None for a line torn by a kill, or of another shape."""
    from valve_plugin.codec import decode
    from valve_plugin.errors import RecordError

    try:
        noted = decode(raw, dict[str, Any], where=EVENTS)
        return Event(str(noted["data"]["event"]), dict(noted["data"]["data"]), float(noted["at"]))
    except (RecordError, KeyError, TypeError, ValueError):
        return None


def _process(event: Event) -> tuple[int, float] | None:
    """The process that runs, by number and start: numbers are given again."""
    if event.name != "run_started":
        return None
    return int(event.data.get("pid", 0)), float(event.data.get("created", 0.0))


def _alive(process: tuple[int, float]) -> bool:
    import psutil

    try:
        return abs(psutil.Process(process[0]).create_time() - process[1]) < 1.0
    except (psutil.Error, ValueError):
        return False
