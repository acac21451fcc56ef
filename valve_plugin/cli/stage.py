"""Progress of a long command on stderr: the current stage with its time, and how much of the work is done."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from valve_plugin.cli import output
from valve_plugin.words import clock

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

_EVERY = 1.0
"""Seconds between two drawings on a terminal; a shorter stage is not drawn."""
_SILENCE = 60.0
"""Seconds between two lines about the same stage, where stderr is not a terminal."""


class Stage:
    """Shows what is being done. A context manager; calling it starts the next stage.

    A terminal shows the stage and its time below the lines that `output` prints. Where stderr is not a terminal, a
    line is printed for each minute that a stage takes.
    """

    def __init__(self, every: float = _EVERY, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._clock = every, clock
        self._text: Callable[[], str] = str
        self._since, self._silence = clock(), _SILENCE
        self._live: Live | None = None
        self._over = threading.Event()

    def __call__(self, text: str) -> None:
        """Print a line and start the stage that it names; any thread may call this."""
        output.note(text)
        self.on(text)

    def on(self, text: str | Callable[[], str], silence: float = _SILENCE) -> None:
        """Begin a stage without printing a line.

        Args:
            text: what is done, or a function that returns the progress; it is called from another thread.
            silence: seconds between two lines about it, where stderr is not a terminal.
        """
        self._text = text if callable(text) else lambda: text
        self._since, self._silence = self._clock(), silence

    def __enter__(self) -> Stage:
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from rich.live import Live

            output.live = output.console(stderr=True)
            self._live = Live(
                get_renderable=self._drawn,
                console=output.live,
                refresh_per_second=1 / self._every,
                transient=True,
                redirect_stdout=False,  # workers inherit the streams
                redirect_stderr=False,
            )
            self._live.start()
        else:
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._text = str
        if self._live:
            self._live.stop()
            output.live = None

    def _drawn(self) -> RenderableType:
        from rich.text import Text

        spent, text = self._clock() - self._since, output.one_line(self._text())
        shown = f"{clock(spent)}  {text}" if text and spent >= self._every else ""
        return Text(shown, no_wrap=True, overflow="ellipsis", end="" if not shown else "\n")

    def _watch(self) -> None:
        last = self._clock()
        while not self._over.wait(self._every):
            now, text = self._clock(), self._text()
            if text and now - max(last, self._since) >= self._silence:
                last = now
                output.note(f"{text}: {clock(now - self._since)} so far")


class Meter:
    """Counts the steps of a command and estimates the time left from the pace so far.

    Args:
        total: how many steps are wanted.
        most: how many there are, if not all of them count.
    """

    def __init__(self, total: int, most: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._total, self._clock, self.most = total, clock, most
        self._start, self._done, self._ticks = clock(), 0, 0

    def tick(self, text: str, *, counts: bool = True, style: str = "") -> None:
        """Print one line, like `[ 3/20] 1:05, 6:08 left  TEXT`; `counts`: the step counts towards the total."""
        self._done += counts
        self._ticks += 1
        spent, rest = self._clock() - self._start, self._total - self._done
        ends = [spent / self._done * rest] if self._done and rest >= 0 else []
        ends += [spent / self._ticks * (self.most - self._ticks)] if self.most is not None and rest >= 0 else []
        left = f", {clock(min(ends))} left" if ends else ""
        done = f"{min(self._done, self._total):{len(str(self._total))}}"
        output.note(f"[{done}/{self._total}] {clock(spent)}{left}  {text}", style=style)
