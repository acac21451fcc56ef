"""What a person sees while nothing else is printed: on a real pseudo-terminal, and where nobody watches."""

from __future__ import annotations

import os
import pty
import re
import sys
import threading
import time
from pathlib import Path

import pytest

from valve_plugin.cli import output
from valve_plugin.cli.going_on import GoingOn

SCRIPT = """
import time
from valve_plugin.cli import output
from valve_plugin.cli.going_on import GoingOn
with GoingOn(every=0.1) as going:
    going("making\\x1b[31m it")
    time.sleep(0.5)
    output.note("a line", style="")
    going.on("trying")
    time.sleep(0.5)
output.say("done")
"""


def seen(script: str, *, term: str = "xterm") -> list[str]:
    """Run a script on a terminal; return each write as it came, in order, one per drawing."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(TERM=term, NO_COLOR="1", PYTHONPATH=str(Path(__file__).parents[2]))
        os.execv(sys.executable, [sys.executable, "-c", script])
    said = b""
    try:
        while chunk := os.read(fd, 1 << 16):
            said += chunk
    except OSError:  # Linux says so when the other end is gone
        pass
    finally:
        os.close(fd)
    assert os.waitpid(pid, 0)[1] == 0, said
    return [
        part
        for part in re.split(r"(?=\r\x1b\[2K)|\r\n", said.decode().replace("\x1b[2m", "").replace("\x1b[0m", ""))
        if part
    ]


def test_a_terminal_shows_the_stage_and_its_time_below_the_lines() -> None:
    clear = "\r\x1b[2K"
    parts = seen(SCRIPT)
    assert parts[0] == "making it"
    first = [part for part in parts if part == f"{clear}0:00  making it"]
    second = [part for part in parts if part == f"{clear}0:00  trying"]
    assert len(first) >= 2
    assert len(second) >= 2
    assert parts.index(first[0]) < parts.index(f"{clear}a line") < parts.index(second[0])
    assert parts[-1] == f"{clear}done"  # nothing of it is left


def test_a_terminal_that_cannot_draw_gets_lines_alone() -> None:
    assert seen(SCRIPT, term="dumb") == ["making it", "a line", "done"]


def test_where_nobody_watches_a_silence_is_told_once_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now, asked = [0.0], threading.Event()

    def clock() -> float:
        asked.set()
        return now[0]

    with GoingOn(every=0.01, clock=clock) as going:
        going("making it")
        for now[0] in (59.0, 60.0, 119.0, 121.0):
            asked.clear()
            time.sleep(0.1)
            assert asked.wait(5)
        output.note("something else")
    assert capsys.readouterr().err.splitlines() == [
        "making it", "making it: 1:00 so far", "making it: 2:01 so far", "something else"
    ]  # fmt: skip
    assert output.above is output.nothing


def test_a_stage_may_say_how_far_it_is_and_how_often_that_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    now, asked, tried = [0.0], threading.Event(), iter(range(99))

    def clock() -> float:
        asked.set()
        return now[0]

    with GoingOn(every=0.01, clock=clock) as going:
        going.on(lambda: f"{min(next(tried, 9), 9)} tried", 30.0)
        time.sleep(0.3)
        for now[0] in (29.0, 31.0, 60.0):
            asked.clear()
            time.sleep(0.1)
            assert asked.wait(5)
    assert capsys.readouterr().err.splitlines() == ["9 tried: 0:31 so far"]
