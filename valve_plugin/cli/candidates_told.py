"""What is said of candidate bugs while they are tried."""

from __future__ import annotations

from valve_plugin.cli import output
from valve_plugin.cli.meter import Meter
from valve_plugin.tasks.alike import like
from valve_plugin.tasks.generate import NOT_REACHED, Tried
from valve_plugin.tasks.load import Row


class CandidatesTold:
    """Says a line of each candidate by being called with it; keeps them.

    Args:
        wanted: how many tasks there should be.
        alike: whether bugs count with which the same tests fail as with an earlier one.
    """

    def __init__(self, wanted: int, meter: Meter, *, alike: bool) -> None:
        self.tried: list[Tried] = []
        self._wanted, self._meter, self._alike = wanted, meter, alike
        self._seen: list[Row] = []
        self._more = ""

    def __call__(self, tried: Tried) -> None:
        """Say what became of a candidate."""
        if len(self._seen) >= self._wanted and not self._more:  # enough, and one more: there will be others
            self._more = f"{self._wanted} of {self._wanted}; looking for bugs that fail other tests"
            output.note(self._more)
        self.tried.append(tried)
        if tried.reason == NOT_REACHED:
            return  # nothing was run for it
        said = output.plural(len(tried.row.fail_to_pass), "test fails", "tests fail") if tried.row else tried.reason
        known = tried.row is not None and not self._alike and any(like(tried.row, other) for other in self._seen)
        good = tried.row is not None and not known
        self._seen.extend([tried.row] if tried.row and good else [])
        text = f"{tried.candidate.modifier} {tried.candidate.file}: {said}{', as with an earlier bug' if known else ''}"
        self._meter.tick(text, counts=good, style="green" if good else "")

    def far(self) -> str:
        """Return how far it is, for whoever waits for the next line."""
        count = len(self.tried)
        dropped = sum(tried.row is None for tried in self.tried[:count])
        rest = self._more or f"{len(self._seen)} of {self._wanted} verified{self._meter.left()}"
        return f"{output.plural(count, 'candidate bug')} tried, {dropped} dropped, {rest}"
