"""Long runs of a suite, followed: how far they are, what they wait for, and when waiting has no end.

What tested code prints can make these lines wrong. No verdict rests on them; a candidate bug that makes tests wait is
dropped the later for it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from functools import cache

from valve_plugin import codec
from valve_plugin.errors import RecordError, TaskError
from valve_plugin.records import Record
from valve_plugin.rollouts.glance import Glance
from valve_plugin.shell_words import quote
from valve_plugin.words import plural

EVERY = 30.0
"""Seconds from one line to the next."""
WAITING = 60.0
"""Seconds without CPU time after which a run is said to wait."""
ENDLESS = 300.0
"""Seconds after which such a run is ended, where it may be: a test that only sleeps is slow, not broken."""
_IDLE_SHARE, _IDLE_SECONDS = 0.02, 0.5
_LOOK_AFTER = 10.0  # seconds; who is idle for less is not looked at more closely
_BUSY_SHARE = 0.125  # of the closer looks
_LONG, _MOST_FILES = 10.0, 5  # seconds in a file, and files, to be named
_LINE = re.compile(rb"^@valve-now (\{[^\n]*\})\n", re.MULTILINE)
_LONGEST_LINE = 8192  # bytes
_LONGEST = 200  # characters of a name or of what a test printed


class Now(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of `now.py`; which field is set tells what it says."""

    collect: str = ""
    tests: int = 0
    test: str = ""
    ended: bool = False


class EndlessError(TaskError):
    """A run was ended because it waits without end."""


class Idle:
    """Since when a run has used hardly any CPU time. Threads that wait for a busy machine are not idle. Pure."""

    def __init__(self, now: float, cpu: float = 0.0) -> None:
        self.start(now, cpu)

    def start(self, now: float, cpu: float) -> None:
        """Begin again."""
        self._since, self._cpu, self._looks, self._busy = now, cpu, 0, 0

    def look(self, now: float, cpu: float, wants_cpu: Callable[[], bool]) -> float:
        """Return the seconds it has been idle."""
        idle = now - self._since
        if cpu - self._cpu > _IDLE_SECONDS + _IDLE_SHARE * idle:
            self.start(now, cpu)
        elif idle > _LOOK_AFTER:
            self._looks += 1
            self._busy += wants_cpu()
            if self._busy > 1 + _BUSY_SHARE * self._looks:
                self.start(now, cpu)
        return now - self._since


class Following:
    """What the runs of one command share: where their lines go, what is advised, and that all of them stop.

    Args:
        again: the command as it was typed, for advice that can be copied; empty: it is not one that makes tasks.
        gives_up: end a run that waits without end.
        patience: seconds after which it does; None: ENDLESS.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        again: str = "",
        gives_up: bool = False,
        patience: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.say, self.clock, self.gives_up = say, clock, gives_up
        self.patience = ENDLESS if patience is None else patience
        self._again = again
        self._advised: set[str] = set()
        self.stopped = False
        """Set where one run's failure makes the others useless."""

    def run(self, label: str, before: Sequence[float] = ()) -> Follow:
        """Follow one run.

        Args:
            before: `Follow.ends` of an earlier run of the same tests.
        """
        return Follow(self, label, before)

    def advise(self, files: Sequence[str]) -> str:
        """Return what to do about files, unless that was said of all of them."""
        if self._advised.issuperset(files):
            return ""
        self._advised.update(files)
        return self.advice(files)

    def advice(self, files: Sequence[str]) -> str:
        """Return what to do about test files that wait; none: it is not known which."""
        ignore = " ".join(f"--ignore {quote(file)}" for file in files) or "--ignore FILE"
        what = "them" if len(files) > 1 else "the file"
        more = "" if self._again else ", said to the command that makes the tasks"
        repeat = f"{self._again} {ignore}".strip()
        return (
            f"Tests never get a network here; `{repeat}` leaves {what} out, `--with PACKAGE` adds a requirement that "
            f"is missing{more}"
        )


class Follow:
    """A tap for one run: a line each 30 seconds, and a word about what it waits for.

    Raises, as a tap:
        EndlessError: it waits without end, and may be ended.
        TaskError: what it was for has failed.
    """

    def __init__(self, following: Following, label: str, before: Sequence[float]) -> None:
        self._all, self._label, self._before = following, label, before
        self._began: float | None = None  # it may have to wait for a worker
        self._said, self._next_wait, self._slow_said = 0.0, WAITING, False
        self._last, self._waited = 0.0, dict[str, float]()  # seconds by file, since anything happened
        self._rest = b""
        self.place, self.tests, self.running = "", 0, False
        self.ends: list[float] = []
        """Seconds from the beginning after which each test ended, in order."""

    def __call__(self, glance: Glance) -> None:
        """Take note of a glance."""
        if self._all.stopped:
            raise TaskError("another run of the same tests has failed")
        now, before, wants_cpu = self._all.clock(), len(self.ends), cache(glance.wants_cpu)
        if self._began is None:
            self._began = self._said = self._last = now
            self._still, self._slow = Idle(now), Idle(now)
        self._waited[self.file] = self._waited.get(self.file, 0.0) + now - self._last
        self._last = now
        self.read(glance.output, now - self._began)
        if len(self.ends) > before:
            self._still.start(now, glance.cpu_seconds)
            self._next_wait = WAITING
        idle = self._still.look(now, glance.cpu_seconds, wants_cpu)
        if not idle:
            self._waited.clear()
        slow = self._slow.look(now, glance.cpu_seconds, wants_cpu)
        if self._all.gives_up and idle >= self._all.patience:
            raise EndlessError(self._endless(idle, glance))
        if idle >= self._next_wait:
            self._next_wait = 2 * idle
            self._tell(now, f"no CPU time used for {minutes(idle)}, waiting {self._where()}{_quoted(glance)}", True)
        elif slow >= 2 * WAITING and not self._slow_said and idle < WAITING:
            self._slow_said = True
            self._tell(now, f"its tests wait more than they compute, now {self._where()}{_quoted(glance)}", True)
        elif now - self._said >= EVERY:
            self._tell(now, self._far(now - self._began))

    def read(self, output: bytes, spent: float) -> None:
        """Take note of what the run says of itself; the rest of its output is not looked at.

        Args:
            spent: seconds since its beginning.
        """
        text = self._rest + output
        end = text.rfind(b"\n") + 1
        self._rest = text[end:][-_LONGEST_LINE:]
        for match in _LINE.finditer(text, 0, end):
            try:
                said = codec.decode(match[1], Now, where="line")
            except RecordError:  # not one of ours
                continue
            self.place = cleaned(said.test or said.collect) or self.place
            self.tests = said.tests or self.tests
            self.running |= bool(said.test or said.tests)
            if said.ended:
                self.ends.append(spent)

    def _tell(self, now: float, text: str, advises: bool = False) -> None:
        self._said = now
        self._all.say(f"{self._label}: {text}")
        if advises and (advice := self._all.advise(self._files())):
            self._all.say(f"  {advice}")

    def _far(self, spent: float) -> str:
        if not self.running:
            return f"collecting{' ' if self.place else ''}{self.place}, {minutes(spent)}"
        of = f" of {self.tests}" if self.tests else ""
        return f"{len(self.ends)}{of} tests ended, {minutes(spent)}{self._left(spent)}"

    def _left(self, spent: float) -> str:
        """Return how long the rest takes at the pace so far, were it as the earlier run; nothing when that is over."""
        done, earlier = len(self.ends), self._before
        if not 0 < done < len(earlier) or earlier[done - 1] <= 0:
            return ""
        pace = self.ends[-1] / earlier[done - 1]
        left = pace * (earlier[-1] - earlier[done - 1]) - (spent - self.ends[-1])
        return f", {minutes(left)} left" if left > 0 else ""

    @property
    def file(self) -> str:
        """The file of the test that runs, or that is collected."""
        return self.place.partition("::")[0]

    def _files(self) -> list[str]:
        """Return the files it waited in for long, the present one last."""
        before = [file for file, seconds in self._waited.items() if seconds >= _LONG and file not in ("", self.file)]
        return [*before[-_MOST_FILES:], *([self.file] if self.place else [])]

    def _where(self) -> str:
        if not self.place:
            return "before any test file was read"
        *before, _ = self._files()
        more = f", before that in {', '.join(before)}" if before else ""
        return f"in {self.place}{more}" if self.running else f"while {self.place} is collected{more}"

    def _endless(self, idle: float, glance: Glance) -> str:
        done = f"{plural(len(self.ends), 'test')} had ended"
        waits = f"waited {idle:.0f} s {self._where()}, using no CPU time{_quoted(glance)}"
        return f"{self._label}: ended, because it {waits}; {done}. {self._all.advice(self._files())}"


def cleaned(text: str) -> str:
    """Return a name, or what a test printed, as one short line of characters that can be seen."""
    seen = "".join(char if char.isprintable() else " " for char in text[: 2 * _LONGEST])
    line = " ".join(seen.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"


def minutes(seconds: float) -> str:
    """Return seconds as m:ss."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _quoted(glance: Glance) -> str:
    said = cleaned(glance.last_words())
    return f"; the last line it printed: {said}" if said else ""
