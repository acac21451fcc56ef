"""Watchers of test runs: they report progress, and end runs that hang or in which too many tests fail.

Tested code can print lines that mislead them. No grade depends on a watcher: at worst, a candidate bug is dropped.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from threading import Event
from typing import TYPE_CHECKING

from valve_plugin import codec
from valve_plugin.errors import RecordError, TaskError
from valve_plugin.records import Record
from valve_plugin.sandbox.bubblewrap import Sandbox
from valve_plugin.sandbox.git import read_tree
from valve_plugin.sandbox.supervisor import CommandResult, ProcessLimits, Sample, Watcher
from valve_plugin.sandbox.workspace import Workspace
from valve_plugin.tasks.grading.testrun import Message, TestRun
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.words import plural, quote

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from valve_plugin.sandbox.supervisor import RunOptions

REPORT_SECONDS = 30.0
"""Seconds from one progress line to the next."""
IDLE_SECONDS = 60.0
"""Seconds without CPU time after which a run is reported as waiting."""
HANG_SECONDS = 300.0
"""Seconds without CPU time after which a run of the untouched source is ended."""
CANDIDATE_HANG_SECONDS = 90.0
"""The same for candidates, of which there are many."""
MAX_BROKEN_SHARE = 0.1
"""A bug with a larger share of failing tests is refused: it breaks imports or nearly everything."""
MIN_FAILURES = 10
"""This many failing tests are always accepted, if they are at most half of the suite."""
HANG_REASON = "its tests wait without end"
WALL_LIMIT_REASON = "the tests hit the wall limit"
"""The machine was too busy. The next run tries the candidate again."""
KILLED_REASON = "a signal from outside ended the tests"
"""As when memory runs out. The next run tries the candidate again."""
TRY_AGAIN = frozenset({WALL_LIMIT_REASON, KILLED_REASON})
"""Reasons that say nothing about a candidate."""
_WALL_PER_CPU = 8  # wall seconds per CPU second of the limit, if that is more than the default wall limit
_LINE = re.compile(rb"^@valve(?P<progress>-now|) (?:[0-9a-f]{128} )?(?P<json>\{[^\n]*\})$")
_LONGEST_LINE = 8192  # bytes
_LONGEST_NAME = 200  # characters that are shown of a test's name or output


class PytestProgress(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the harness's `Progress`; exactly one field is set."""

    collect: str = ""
    tests: int = 0
    test: str = ""
    ended: bool = False


class HangError(TaskError):
    """A run was ended because it hangs."""


class WallLimitError(TaskError):
    """A run hit the wall limit, or was killed from outside."""


class TooManyFailuresError(TaskError):
    """A run was ended because the bug breaks too many tests."""


class LineReader:
    """Splits a stream of output into the records of the harness and of the progress plugin."""

    def __init__(self) -> None:
        self._rest = b""

    def read(self, output: bytes) -> list[PytestProgress | Message]:
        """Return the records of the lines that `output` completes; other lines are ignored.

        Signatures are not checked, because no grade depends on these records.
        """
        *lines, rest = (self._rest + output).split(b"\n")
        self._rest = rest[:_LONGEST_LINE]
        records: list[PytestProgress | Message] = []
        for match in filter(None, map(_LINE.match, lines)):
            try:
                if match["progress"]:
                    records.append(codec.decode(match["json"], PytestProgress, where="line"))
                else:
                    records.append(codec.decode(match["json"], Message, where="line"))
            except RecordError:  # printed by a test
                continue
        return records


class WatchGroup:
    """What the watchers of one command share.

    Args:
        command: the command as it was typed, for advice; empty if it has no option --ignore.
        gives_up: whether a run that hangs is ended.
        patience: seconds without CPU time after which a run hangs; HANG_SECONDS if None.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        command: str = "",
        gives_up: bool = False,
        patience: float | None = None,
    ) -> None:
        self.say, self.gives_up, self._command = say, gives_up, command
        self.patience = HANG_SECONDS if patience is None else patience
        self.advised: set[str] = set()
        """Test files of which was told what to do."""
        self.runs: list[Watch] = []

    def run(self, label: str) -> Watch:
        """Return the watcher of one run."""
        self.runs.append(Watch(self, label))
        return self.runs[-1]

    def advice(self, file: str) -> str:
        """Return what to do about a test file that hangs or ends the process; `file` is empty if it is not known."""
        ignore = f"{self._command} --ignore {quote(file) if file else 'FILE'}".strip()
        where = "" if self._command else " (options of the command that makes the tasks)"
        return (
            f"Tests run without network. `{ignore}` ignores the file, `--with PACKAGE` adds a missing "
            f"requirement{where}"
        )


class Watch:
    """The watcher of one test run.

    As a `Watcher` it raises:
        HangError: the run hangs, and the group gives up.
    """

    def __init__(self, group: WatchGroup, label: str) -> None:
        self._group, self._label, self._lines = group, label, LineReader()
        self._reported, self._next_wait, self._last_end = 0.0, IDLE_SECONDS, 0.0
        self.place = ""
        """The test that is running, or the file that pytest is collecting."""
        self.tests, self.ended, self.running = 0, 0, False
        self.cpu_seconds = 0.0

    def __call__(self, sample: Sample) -> None:
        """Read one sample of the run."""
        self.cpu_seconds, now, before = sample.cpu_seconds, sample.wall_seconds, self.ended
        self.read(sample.output)
        if self.ended > before:
            self._last_end, self._next_wait = now, IDLE_SECONDS
        idle = min(sample.idle_seconds, now - self._last_end)
        if self._group.gives_up and idle >= self._group.patience:
            waits = f"waited {idle:.0f} s {self._where()}, using no CPU time{_last_line(sample)}"
            ended = f"{plural(self.ended, 'test')} had ended"
            raise HangError(f"{self._label}: stopped because it {waits}; {ended}. {self.advice()}")
        if idle >= self._next_wait:
            self._next_wait = 2 * idle
            self._report(now, f"no CPU time used for {clock_time(idle)}, waiting {self._where()}{_last_line(sample)}")
            if self.file not in self._group.advised:
                self._group.advised.add(self.file)
                self._group.say(f"  {self.advice()}")
        elif now - self._reported >= REPORT_SECONDS:
            self._report(now, self._progress(now))

    def read(self, output: bytes) -> None:
        """Update the progress from the lines in a piece of output."""
        for record in self._lines.read(output):
            if isinstance(record, PytestProgress):
                self.place = clean_line(record.test or record.collect) or self.place
                self.tests = record.tests or self.tests
                self.running |= bool(record.test or record.tests)
                self.ended += record.ended

    @property
    def file(self) -> str:
        """The file of the current test, or that pytest is collecting; empty before the first file."""
        return self.place.partition("::")[0]

    def advice(self) -> str:
        """Return what to do about the current test file."""
        return self._group.advice(self.file)

    def _report(self, now: float, text: str) -> None:
        self._reported = now
        self._group.say(f"{self._label}: {text}")

    def _progress(self, now: float) -> str:
        if not self.running:
            return f"collecting{' ' if self.place else ''}{self.place}, {clock_time(now)}"
        of = f" of {self.tests}" if self.tests else ""
        left = now * (self.tests - self.ended) / self.ended if 0 < self.ended < self.tests else 0
        remaining = f", about {clock_time(left)} left" if left else ""
        return f"{self.ended}{of} tests ended, {clock_time(now)}{remaining}"

    def _where(self) -> str:
        if not self.place:
            return "before any test file was read"
        return f"in {self.place}" if self.running else f"while {self.place} is collected"


class FailureWatch:
    """A watcher that ends a run of the whole suite once too many tests have failed; it also calls another watcher.

    This saves two thirds of the time of such runs. A failed test stays failed, so the result would be the same. Output
    is read line by line, so the end of the run does not depend on the machine.

    As a `Watcher` it raises:
        TooManyFailuresError: too many tests of the suite failed, or were not collected.
    """

    def __init__(self, suite: frozenset[str], watcher: Watcher) -> None:
        self._suite, self._watcher, self._lines = suite, watcher, LineReader()
        self._failed = set[str]()
        self._missing = 0

    def __call__(self, sample: Sample) -> None:
        """Read one sample of the run."""
        self._watcher(sample)
        for record in self._lines.read(sample.output):
            if isinstance(record, PytestProgress):
                self._missing = max(0, len(self._suite) - record.tests) if record.tests > 0 else self._missing
            elif record.outcome == "failed" and record.test in self._suite:
                self._failed.add(record.test)
            if why := too_many_failures(self._missing + len(self._failed), len(self._suite), least=True):
                raise TooManyFailuresError(why)


class CandidateSandbox:
    """A sandbox for candidate bugs.

    Beside the errors of a sandbox, `run` raises:
        CancelledError: the event `over` was set.
        HangError: the command hangs.
        WallLimitError: it hit the wall limit.
    """

    def __init__(self, sandbox: Sandbox, over: Event) -> None:
        self._sandbox, self._over = sandbox, over
        self.name, self.root, self.isolates = sandbox.name, sandbox.root, sandbox.isolates

    def run(self, command: str | Sequence[str], workspace: Workspace, **options: Unpack[RunOptions]) -> CommandResult:
        """See `Sandbox.run`."""
        watcher = options.get("watcher") or candidate_watch()

        def watched(sample: Sample) -> None:
            if self._over.is_set():
                raise CancelledError
            watcher(sample)

        options["watcher"] = watched
        done = self._sandbox.run(command, workspace, **options)
        if done.limit == "wall":
            raise WallLimitError(WALL_LIMIT_REASON)
        return done


def candidate_watch() -> Watch:
    """Return a silent watcher that ends runs that hang."""
    return WatchGroup(lambda _: None, gives_up=True, patience=CANDIDATE_HANG_SECONDS).run("its tests")


def run_limits(prepared: PreparedRepository) -> ProcessLimits:
    """Return the limits of one run of a repository's tests."""
    cpu = prepared.repository.cpu_seconds
    return ProcessLimits(cpu_seconds=cpu, wall_seconds=max(ProcessLimits().wall_seconds, _WALL_PER_CPU * cpu))


def too_many_failures(failing: int, suite: int, *, least: bool = False) -> str:
    """Return why a bug with this many failing tests is refused, or an empty string if it is not.

    Args:
        least: whether more tests may fail later.
    """
    if failing <= max(MAX_BROKEN_SHARE * suite, min(MIN_FAILURES, suite / 2)):
        return ""
    share = "more than a tenth: " if MAX_BROKEN_SHARE * suite >= MIN_FAILURES else ""
    return f"breaks {share}{'at least ' if least else ''}{failing} of {suite} tests"


def run_error(prepared: PreparedRepository, run: TestRun, watch: Watch | None) -> TaskError:
    """Return the error of a failed run of the untouched source; it names a test file that ended the process."""
    message = f"{prepared.name}: its test suite does not run to the end: {run.trouble}"
    # SIGKILL comes from outside, for example if memory runs out; it is not the fault of the running test.
    if run.died in (None, -signal.SIGKILL, 128 + signal.SIGKILL) or watch is None:
        return TaskError(message)
    if watch.file not in read_tree(prepared.store, prepared.base):  # tests may print anything
        return TaskError(message)
    return TaskError(f"{message}; {watch.file} ends the process. {watch.advice()}")


def clean_line(text: str) -> str:
    """Return text as one short line of printable characters."""
    printable = "".join(char if char.isprintable() else " " for char in text[: 2 * _LONGEST_NAME])
    line = " ".join(printable.split())
    return line if len(line) <= _LONGEST_NAME else f"{line[: _LONGEST_NAME - 1]}…"


def clock_time(seconds: float) -> str:
    """Return seconds as m:ss."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def _last_line(sample: Sample) -> str:
    line = clean_line(sample.last_line())
    return f"; the last line it printed: {line}" if line else ""
