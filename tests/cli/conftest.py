"""Running `valve` in this process, in a directory of its own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.banks import sample
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import app
from valve_plugin.sandbox import bubblewrap, engine

Run = Callable[..., Any]


@pytest.fixture
def project(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project folder that is the current directory; user data apart."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    return folder


@pytest.fixture
def bank(project: Path) -> BankStore:
    """The sample bank, in the project's `.valve`."""
    return sample(project / ".valve")


@pytest.fixture
def valve() -> Run:
    """`valve(*args, code=0)` runs a command, checks its exit code (None: any), and returns its stdout (JSON parsed)."""

    def run(*args: str, code: int | None = 0, stdin: str = "") -> Any:
        result = CliRunner().invoke(app, list(args), input=stdin, prog_name="valve")
        assert code is None or result.exit_code == code, (
            f"{args}: {result.exit_code}, {result.output} {result.exception!r}"
        )
        run.err, run.code = result.stderr, result.exit_code  # type: ignore[attr-defined]
        return json.loads(result.stdout) if "--json" in args else result.stdout

    return run


@pytest.fixture
def machine(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing but Python: an empty PATH, no user data, no settings of mini, no models."""
    (tmp_path / "bin").mkdir()
    for name, value in {"PATH": "bin", "MSWEA_GLOBAL_CONFIG_DIR": "mini", "HF_HOME": "models", "HOME": "home"}.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.delenv("MSWEA_MODEL_NAME", raising=False)
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    """Forget what this process found out about the machine's tools."""
    engine.engine_problem.cache_clear()
    bubblewrap.bubblewrap_problem.cache_clear()
