"""Requirements, and the commands that install them and find our own."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import machine as machine
from tests.cli.conftest import project as project
from valve_plugin.extras import own_command


def test_a_command_of_ours_is_found_where_it_is_pasted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "valve").touch(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "")
    path = shlex.quote(str(tmp_path / "valve"))
    assert own_command("valve", "tasks", "a && valve b") == f"{path} tasks 'a && valve b'"
    assert own_command("hf", "download", "x") == "hf download x", "it is not there either"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert own_command("valve", "init") == "valve init"


@pytest.mark.parametrize(("module", "command"), [("msgspec", "doctor"), ("typer", "doctor"), ("numpy", "plan")])
def test_a_package_that_is_not_there_is_one_line(module: str, command: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None; sys.argv = ['valve', {command!r}]; import valve_plugin.cli"
    done = subprocess.run([sys.executable, "-c", f"{code}; valve_plugin.cli.main()"], capture_output=True, text=True)
    assert done.returncode == 3, done
    (line,) = done.stderr.splitlines()
    assert f"{module} is not installed" in line
    assert " -m pip " in line
