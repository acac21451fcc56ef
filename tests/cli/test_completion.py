"""Shell completion: the script that typer writes, run by a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import calc
from tests.tools import need
from valve_plugin.tasks import task_set

VALVE = Path(sys.executable).with_name("valve")


def complete(words: str, index: int) -> list[str]:
    """Ask what follows, as the shell's script does."""
    environ = {**os.environ, "_VALVE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(index)}
    done = subprocess.run([VALVE], env=environ, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert "Traceback" not in done.stderr
    return done.stdout.split()


def test_commands_and_options_complete() -> None:
    assert complete("valve ba", 1) == ["bank"]
    assert {"list", "log", "show", "verify"} <= set(complete("valve bank ", 2))
    assert complete("valve bank list --js", 3) == ["--json"]


def test_item_names_complete_to_nothing_without_a_bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert complete("valve bank show ", 3) == []


def test_task_sets_and_their_tasks_complete(project: Path) -> None:
    calc.write(task_set.default_folder("acme/calc"), [calc.row(instance_id="bug-a")])
    calc.write(task_set.default_folder("project"), [calc.row(instance_id="bug-b")])
    for words in ("evolve", "tasks list", "gate --tasks"):
        assert complete(f"valve {words} ac", len(words.split()) + 1) == ["acme/calc"], words
    assert complete("valve tasks show acme/calc ", 4) == ["bug-a"]
    assert complete("valve tasks show ", 3) == ["acme/calc", "project", "bug-b"]


def test_bash_takes_the_script() -> None:
    bash = need("bash")
    script = subprocess.run(
        [VALVE], env={**os.environ, "_VALVE_COMPLETE": "source_bash"}, capture_output=True, text=True, check=True
    ).stdout
    ask = 'COMP_WORDS=(valve ini); COMP_CWORD=1; _valve_completion valve; echo "${COMPREPLY[@]}"'
    environ = {**os.environ, "PATH": f"{VALVE.parent}{os.pathsep}{os.environ['PATH']}"}
    assert shutil.which("valve", path=environ["PATH"])
    done = subprocess.run([bash, "-c", f"{script}\n{ask}"], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["init"]
