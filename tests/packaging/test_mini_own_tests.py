"""mini-SWE-agent's own tests, as far as its source archive carries them: the same results with us and without."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import minisweagent
import pytest

from tests.packaging.conftest import run


@pytest.mark.heavy
def test_same_results_with_and_without(tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", tmp_path)
    run(*pip, f"mini-swe-agent=={minisweagent.__version__}")
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(tmp_path / "minisweagent")  # with this name among the arguments, the guard is active
    (tests,) = (tmp_path / "minisweagent").glob("*/tests")
    pytest_ = [sys.executable, "-m", "pytest", tests, "-v", "-c", os.devnull, "--rootdir", tests]
    seen = []
    for switch in ("0", "1"):
        env = {**os.environ, "VALVE_STARTUP": switch}
        done = subprocess.run(pytest_, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout
        seen.append(sorted(re.findall(r"(\S+::\S+) (PASSED|SKIPPED)", done.stdout)))
    assert seen[0] == seen[1]
    assert "PASSED" in dict(seen[1]).values()
