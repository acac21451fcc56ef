"""Ending a run of the whole suite as soon as the bug has broken too much of it to become a task.

Two thirds of what a run costs is saved for such bugs, and they are many. Only runs that are lost are ended: a test
whose failure is on record stays failed, whatever comes after it.
"""

from __future__ import annotations

import re

from valve_plugin import codec
from valve_plugin.errors import RecordError, TaskError
from valve_plugin.rollouts.glance import Glance, Tap
from valve_plugin.rollouts.verdicts import Message
from valve_plugin.tasks.follow import Now

MAX_BROKEN_SHARE = 0.1
"""Bugs that break more of the suite than this crash on import or nearly: nothing to reason about."""
FEW = 10
"""Never too many in a suite of more than twice as many tests, however small a share that allows."""
_LINE = re.compile(rb"^@valve(?P<now>-now|) (?:[0-9a-f]{128} )?(?P<said>\{[^\n]*\})$")
_LONGEST = 1 << 16  # bytes of a line


class BrokenError(TaskError):
    """A run was ended because the bug breaks too much."""


def most(suite: int) -> float:
    """Return how many tests of a suite a bug may break."""
    return max(MAX_BROKEN_SHARE * suite, min(FEW, suite / 2))


class Cut:
    """A tap that passes everything on to another, and ends a run that breaks too much.

    What a run says is read line by line, so that where it ends hangs neither on the clock nor on the machine. The
    lines' signatures are not checked: what could be forged is that a bug is not taken.

    Raises, as a tap:
        BrokenError: too many tests of the suite failed, or were not collected.
    """

    def __init__(self, suite: frozenset[str], tap: Tap) -> None:
        self._suite, self._tap = suite, tap
        self._failed, self._lost = set[str](), 0  # by name; not collected, at least
        self._rest = b""

    def __call__(self, glance: Glance) -> None:
        """Take note of a glance."""
        self._tap(glance)
        *lines, rest = (self._rest + glance.output).split(b"\n")
        self._rest = rest[:_LONGEST]
        for line in lines:
            self._read(line)

    def _read(self, line: bytes) -> None:
        match = _LINE.match(line)
        if not match or not (b'"tests":' in line or b'"outcome":"failed"' in line):
            return
        try:
            if match["now"]:
                collected = codec.decode(match["said"], Now, where="line").tests
                self._lost = max(0, len(self._suite) - collected) if collected else self._lost
            else:
                said = codec.decode(match["said"], Message, where="line")
                self._failed.update(self._suite.intersection([said.test] if said.outcome == "failed" else []))
        except RecordError:  # not one of ours
            return
        if (bad := self._lost + len(self._failed)) > most(len(self._suite)):
            raise BrokenError(reason(bad, len(self._suite), least=True))


def reason(failing: int, suite: int, *, least: bool = False) -> str:
    """Return why a bug that breaks so many is not taken; empty: it may be.

    Args:
        least: there may be more of them.
    """
    if failing <= most(suite):
        return ""
    share = "more than a tenth: " if MAX_BROKEN_SHARE * suite >= FEW else ""
    return f"breaks {share}{'at least ' if least else ''}{failing} of {suite} tests"
