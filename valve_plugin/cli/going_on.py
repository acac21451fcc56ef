"""Saying what goes on while nothing else is said: below the lines of a terminal, with the time it took so far.

Where nobody watches, a line of its own, seldom.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

from valve_plugin.cli import output
from valve_plugin.cli.meter import minutes

_EVERY = 1.0
"""Seconds from one drawing of the line to the next; what is over sooner shows none."""
_SELDOM = 60.0
"""Seconds of silence after which a line is due that stays, where a stage does not say otherwise."""
_CLEAR = "\r\x1b[2K"


class GoingOn:
    """Say a stage, before it begins, by calling this; as a context manager, it is told until the next one.

    One at a time. What `output` prints meanwhile stands above it.
    """

    def __init__(self, every: float = _EVERY, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self._drawn = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._text: Callable[[], str] = str
        self._since, self._said, self._seldom = clock(), clock(), _SELDOM
        self._shown = False
        self._lock, self._over = threading.RLock(), threading.Event()  # stages are told by workers, too
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __call__(self, text: str) -> None:
        """Print a line about what begins now."""
        output.note(text)
        self.on(text)

    def on(self, text: str | Callable[[], str], seldom: float = _SELDOM) -> None:
        """Begin a stage without a line, where lines come by themselves.

        Args:
            text: what it is, or what says how far it is; called from another thread.
            seldom: seconds of silence after which it is told where nobody watches.
        """
        with self._lock:
            self._text = text if callable(text) else lambda: text
            self._since, self._seldom = self._clock(), seldom

    def __enter__(self) -> GoingOn:
        output.above = self._hidden
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        with self._hidden():
            output.above = output.nothing

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            with self._lock:
                self._tell(self._clock())

    def _tell(self, now: float) -> None:
        spent, text = now - self._since, self._text()
        if self._drawn and text and spent >= self._every:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"{_CLEAR}{f'{minutes(spent)}  {output.one_line(text)}'[:width]}")
            sys.stderr.flush()
            self._shown = True
        elif text and now - self._said >= self._seldom:
            output.note(f"{text}: {minutes(spent)} so far")

    @contextmanager
    def _hidden(self) -> Iterator[None]:
        """Make room for a line."""
        with self._lock:
            if self._shown:
                sys.stderr.write(_CLEAR)
                sys.stderr.flush()
            self._shown, self._said = False, self._clock()
            yield
