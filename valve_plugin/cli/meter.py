"""Progress of a long command: one line per step on stderr, with what is left of the time."""

from __future__ import annotations

import time
from collections.abc import Callable

from valve_plugin.cli import output

_INSTANT = 0.05  # seconds; what comes faster was done by an earlier run
_PATIENCE = 2.0  # seconds


class Meter:
    """Counts towards a total and says how long the rest takes at the pace so far.

    What a run that was started again only reads back, at its beginning, says nothing about the pace.
    """

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._clock = clock
        self._start = self._last = self._since = clock()
        self._done = self._known = 0
        self._working = False

    def tick(self, text: str, *, counts: bool = True, style: str = "") -> None:
        """Print one line; `counts` says whether it brought the total nearer."""
        output.note(f"{self.shown(self._done + counts)}  {text}", style=style)

    def shown(self, done: int | None = None) -> str:
        """Return how far it is, and the time spent and left; `done` sets how far."""
        now = self._clock()
        self._done = self._done if done is None else done
        self._working |= now - self._last >= _INSTANT
        if not self._working:
            self._known, self._since = self._done, now
        self._last = now
        width = len(str(self._total))
        return f"[{min(self._done, self._total):{width}}/{self._total}] {minutes(now - self._start)}{self._left(now)}"

    def left(self) -> str:
        """Return how much longer it takes at the pace so far, behind a comma; empty: nobody knows."""
        return self._left(self._clock())

    def _left(self, now: float) -> str:
        new, rest = self._done - self._known, self._total - self._done
        return f", {minutes((now - self._since) / new * rest)} left" if new and rest >= 0 else ""


class Slow:
    """Says how far a computation is, when it takes longer than a person waits without wondering: every two seconds."""

    def __init__(self, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._what = what
        self._clock = clock
        self._start = self._said = clock()

    def __call__(self, share: float) -> None:
        """Note that so much of it is done, in (0, 1]."""
        now = self._clock()
        if now - self._said >= _PATIENCE and share < 1:
            self._said = now
            spent = now - self._start
            left = minutes(spent * (1 - share) / share)
            output.note(f"{self._what}  {100 * share:.0f} % after {minutes(spent)}, {left} left")


def minutes(seconds: float) -> str:
    """Return seconds as m:ss."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
