"""Progress of a long command: one line per step on stderr, with what is left of the time."""

from __future__ import annotations

import time
from collections.abc import Callable

from valve_plugin.cli import output


class Meter:
    """Counts towards a total and says how long the rest takes at the pace so far."""

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._clock = clock
        self._start = clock()
        self._done = 0

    def tick(self, text: str, *, counts: bool = True, style: str = "") -> None:
        """Print one line; `counts` says whether it brought the total nearer."""
        self._done += counts
        output.note(f"{self.shown()}  {text}", style=style)

    def shown(self, done: int | None = None) -> str:
        """Return how far it is, and the time spent and left; `done` sets how far."""
        self._done = self._done if done is None else done
        spent = self._clock() - self._start
        left = f", {minutes(spent / self._done * (self._total - self._done))} left" if self._done else ""
        width = len(str(self._total))
        return f"[{self._done:{width}}/{self._total}] {minutes(spent)}{left}"


def minutes(seconds: float) -> str:
    """Return seconds as m:ss."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
