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
"""Seconds of silence after which a line is due that stays."""
_CLEAR = "\r\x1b[2K"


class GoingOn:
    """Say a stage, before it begins, by calling this; as a context manager, it is told until the next one.

    One at a time. What `output` prints meanwhile stands above it.
    """

    def __init__(self, every: float = _EVERY, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self._drawn = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._text, self._since, self._said = "", clock(), clock()
        self._shown = False
        self._lock, self._over = threading.RLock(), threading.Event()  # stages are told by workers, too
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __call__(self, text: str) -> None:
        """Print a line about what begins now."""
        output.note(text)
        self.on(text)

    def on(self, text: str) -> None:
        """Begin a stage without a line, where lines come by themselves."""
        with self._lock:
            self._text, self._since = text, self._clock()

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
        spent = now - self._since
        if self._drawn and self._text and spent >= self._every:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"{_CLEAR}{f'{minutes(spent)}  {output.one_line(self._text)}'[:width]}")
            sys.stderr.flush()
            self._shown = True
        elif self._text and now - self._said >= _SELDOM:
            output.note(f"{self._text}: {minutes(spent)} so far")

    @contextmanager
    def _hidden(self) -> Iterator[None]:
        """Make room for a line."""
        with self._lock:
            if self._shown:
                sys.stderr.write(_CLEAR)
                sys.stderr.flush()
            self._shown, self._said = False, self._clock()
            yield
