"""The run of mini that Getting started shows works as it says there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import need

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorial/getting-started.md"


def test_the_run_without_a_key_is_resolved(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("bwrap")
    need("git")
    shown = re.search(r"^cd \.\./scripted-run\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert shown
    shutil.copytree(ROOT / "examples/scripted-run", tmp_path / "scripted-run")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path / "mini"))
    script = f"set -e\n{shown[1]}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path / "scripted-run", capture_output=True, text=True, check=False, timeout=300,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^attempt \w+, resolved$", done.stdout, re.MULTILINE), done.stdout
    assert "return (page - 1) * size" in (tmp_path / "scripted-run/pages.py").read_text()
