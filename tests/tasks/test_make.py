"""What a survey measures, and whose tasks a directory holds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.lean import lean
from tests.rollouts import calc
from valve_plugin.config import Settings
from valve_plugin.errors import TaskError
from valve_plugin.rollouts import workspace
from valve_plugin.rollouts.sandbox import Sandbox, UnsafeLocal, choose
from valve_plugin.tasks import make
from valve_plugin.tasks.define import read_source

BUSY = "import time\nwhile time.process_time() < 0.5: pass\nprint(input())\nraise SystemExit(3)"


@pytest.mark.parametrize("sandbox", [UnsafeLocal(), choose(Settings(unsafe_local=True))], ids=["plain", "chosen"])
def test_the_cpu_time_of_a_command_is_noted(data_dir: Path, sandbox: Sandbox) -> None:
    timed = make.Timed(sandbox)
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() and sandbox.root else sys.executable
    with workspace.empty() as place:
        done = timed.run([python, "-c", BUSY], place, stdin=b"said\n")
        timed.run("true", place)
    assert (done.returncode, done.output) == (3, b"said\n")
    assert 0.4 < timed.seconds[0] < 5
    assert timed.seconds[1] < 0.4


def test_changed_source_drops_rows_about_the_old(tmp_path: Path, data_dir: Path) -> None:
    files, out = read_source(str(calc.write(tmp_path) / "source")), tmp_path / "out"
    venv = str(lean())

    def define(command: str, more: str = "") -> str:
        every = [*files, ("new.py", "100644", more.encode())]
        made = make.define_in(
            out, "acme/calc", every, command, python=venv, requirements=[], say=lambda _: None, wanted=1
        )
        return made.source

    first = define("valve tasks generate")
    (out / "tasks.jsonl").write_text("{}\n")
    assert define("valve tasks generate") == first
    assert (out / "tasks.jsonl").exists()
    with pytest.raises(TaskError, match="valve tasks mine does not replace them"):
        define("valve tasks mine")
    assert define("valve tasks generate", "x = 1\n") != first
    assert not (out / "tasks.jsonl").exists()
