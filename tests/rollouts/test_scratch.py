"""Private directories: kept while their process lives, removed by the next one when it was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from valve_plugin.rollouts import scratch

OWNER = """
import sys
from valve_plugin.rollouts.scratch import private
made = private("valve-kind-")
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
    with scratch.private("valve-kind-") as mine:
        found = {path.name for path in tmp_path.iterdir()}
    expected = {kept.name, Path(mine).name, newborn.name, "theirs", "valve-kind-file", "valve-kind-link", "valve-other"}
    assert found == expected
    assert not Path(mine).exists()
    alive.communicate()
    assert not kept.exists(), "it cleaned up by itself"
