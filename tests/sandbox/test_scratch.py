"""Private directories: kept while their process lives, removed by the next one when it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.sandbox.support import dig
from tests.tools import need
from valve_plugin.paths import data_dir
from valve_plugin.sandbox import scratch
from valve_plugin.sandbox.scratch import scratch_folder
from valve_plugin.sandbox.trees import remove_tree

OWNER = """
import sys
from valve_plugin.sandbox.scratch import private_folder
made = private_folder("valve-kind-")
print(made.name, flush=True)
sys.stdin.read()
"""


def test_only_what_dead_processes_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    alive, killed = [subprocess.Popen([sys.executable, "-c", OWNER], env=environ, **pipes) for _ in range(2)]  # type: ignore[call-overload]
    kept, left = [Path(process.stdout.readline().decode().strip()) for process in (alive, killed)]
    killed.kill()
    killed.wait()
    (left / "index").write_text("of the person's repository")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "valve-kind-file").write_text("no directory")
    (tmp_path / "valve-kind-link").symlink_to(tmp_path / "theirs")
    (tmp_path / "valve-other").mkdir()
    for path in (kept, left, tmp_path / "valve-other"):
        os.utime(path, (0, 0))
    newborn = tmp_path / "valve-kind-newborn"
    newborn.mkdir()
    with scratch.private_folder("valve-kind-") as mine:
        found = {path.name for path in tmp_path.iterdir()}
    expected = {kept.name, Path(mine).name, newborn.name, "theirs", "valve-kind-file", "valve-kind-link", "valve-other"}
    assert found == expected
    assert not Path(mine).exists()
    alive.communicate()
    assert not kept.exists(), "it cleaned up by itself"


def test_what_a_killed_run_left_is_removed_however_deep(pit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALVE_DATA", str(pit))
    left = data_dir() / "workspaces" / "0"
    left.mkdir(parents=True)
    dig(left)
    with scratch_folder() as folder:
        assert folder.name == "0"
    assert not left.exists()


def test_a_waiting_bwrap_of_a_killed_run_is_killed_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("bwrap")
    monkeypatch.setenv("VALVE_DATA", str(tmp_path))
    left, other = (data_dir() / "workspaces" / name for name in ("0", "00"))
    left.mkdir(parents=True)
    waiting, running = [
        subprocess.Popen(["bwrap", "--ro-bind", "/", "/", "--setenv", "X", f"{folder}/home", "sleep", "60"])
        for folder in (left, other)
    ]
    try:
        while "bwrap" not in Path(f"/proc/{waiting.pid}/comm").read_text():
            time.sleep(0.01)
        with scratch_folder():
            pass
        assert waiting.wait(60) == -signal.SIGKILL
        assert running.poll() is None
    finally:
        running.kill()
        waiting.kill()
        running.wait()


def test_a_folder_that_cannot_be_emptied_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALVE_DATA", str(tmp_path))
    (tmp_path / "workspaces/0").mkdir(parents=True)
    monkeypatch.setattr(scratch, "remove_tree", lambda path: path.name == "0" or remove_tree(path))
    with scratch_folder() as folder:
        assert folder.name == "1"
