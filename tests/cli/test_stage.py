"""Progress: what a terminal draws, what is printed where there is none, and the time that is left."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest

from tests.tools import until
from valve_plugin.cli import output
from valve_plugin.cli.stage import Meter, Stage
from valve_plugin.words import clock

SCRIPT = """
import time
from valve_plugin.cli import output
from valve_plugin.cli.stage import Stage
now, looks = 0.0, 0
def clock():
    global looks
    looks += 1
    return now
def some_drawings():
    global now
    now, seen = now + 0.5, looks
    while looks < seen + 6:
        time.sleep(0.01)
with Stage(every=0.1, clock=clock) as stage:
    stage("making\\x1b[31m it")
    some_drawings()
    output.note("a line", style="")
    output.say("a result")
    stage.on("trying")
    some_drawings()
output.say("done")
"""


def on_terminal(script: str, *, term: str, columns: int = 80) -> list[str]:
    """Run a script on a pseudo-terminal; return what it wrote, split at line ends, without escape sequences."""
    pid, fd = pty.fork()
    if pid == 0:
        own = {"TERM": term, "NO_COLOR": "1", "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": str(columns)}
        os.execve(sys.executable, [sys.executable, "-c", script], {**os.environ, **own})
    written = b""
    try:
        while chunk := os.read(fd, 1 << 16):
            written += chunk
    except OSError:  # Linux ends the stream of a terminal so
        pass
    finally:
        os.close(fd)
    assert os.waitpid(pid, 0)[1] == 0, written
    return [part for part in output.clean(written.decode().replace("\r", "\n")).split("\n") if part]


def test_a_terminal_shows_the_stage_and_its_time_below_the_lines() -> None:
    parts = on_terminal(SCRIPT, term="xterm")
    first, second = parts.index("0:00  making it"), parts.index("0:00  trying")
    assert parts[0] == "making it"
    assert parts.count("0:00  making it") >= 2
    assert first < parts.index("a line") < parts.index("a result") < second
    assert parts[-1] == "done"
    assert output.live is None


class Clock:
    """A clock that stands still; a stage is given time to look at it."""

    def __init__(self) -> None:
        self.now, self.looks = 0.0, 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now

    def at(self, *times: float) -> None:
        """Go through times in seconds."""
        for self.now in times:
            enough = self.looks + 3  # the first may be of before
            until(lambda: self.looks >= enough)  # noqa: B023


def test_a_minute_of_silence_is_told_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Stage(every=0.01, clock=clock) as stage:
        stage("making it")
        clock.at(0.0, 59.0, 60.0, 119.0, 121.0)
        output.note("something else")
        clock.at(130.0)
    assert capsys.readouterr().err.splitlines() == [
        "making it", "making it: 1:00 so far", "making it: 2:01 so far", "something else"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("total", "most", "times", "steps", "lines"),
    [
        (4, None, [0.0, 30.0, 60.0], [0, 1], ["[0/4] 0:30", "[1/4] 1:00, 3:00 left"]),
        (1, None, [0.0, 30.0, 60.0, 90.0], [1, 0, 1], ["[1/1] 0:30, 0:00 left", "[1/1] 1:00, 0:00 left", "[1/1] 1:30"]),
        (4, 3, [0.0, 30.0, 60.0], [0, 1], ["[0/4] 0:30, 1:00 left", "[1/4] 1:00, 0:30 left"]),
        (4, 90, [0.0, 30.0, 60.0], [0, 1], ["[0/4] 0:30, 44:30 left", "[1/4] 1:00, 3:00 left"]),
    ],
)
def test_the_time_that_is_left(
    total: int,
    most: int | None,
    times: list[float],
    steps: list[int],
    lines: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    seconds = iter(times)
    meter = Meter(total, most, lambda: next(seconds))
    for step in steps:
        meter.tick("step", counts=bool(step))
    assert capsys.readouterr().err.splitlines() == [f"{line}  step" for line in lines]
    assert (clock(3599.9), clock(3601)) == ("59:59", "1:00:01")
