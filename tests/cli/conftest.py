"""Running `valve` in this process, in a directory of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.banks import sample
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import app

Run = Callable[..., Any]


@pytest.fixture
def project(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project folder that is the current directory; user data apart."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("")
    monkeypatch.chdir(folder)
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
        run.err = result.stderr  # type: ignore[attr-defined]
        return json.loads(result.stdout) if "--json" in args else result.stdout

    return run
