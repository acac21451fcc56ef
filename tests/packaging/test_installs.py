"""Every way to install, used and undone: pip and uv, wheel and editable, uv tool, uvx, pipx, other Pythons."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.host.harness import PROBE, Mini, add_distribution
from tests.packaging.conftest import ROOT, Tools, run

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1200)]

BLOCK = "{{ block }} {% raw %} \\ "
CONFIG = ("-c", "mini.yaml", "-c", "model.yaml")


def check_works(mini: Mini, env: Path, *, valve: bool = True) -> None:
    """Run mini from that directory with a plugin, and `valve mini`, which every installation puts beside it."""
    mini.bin = env
    (mini.directory / "block").write_text(BLOCK)
    programs = [("mini",)] + ([("valve", "mini")] if valve else [])
    (mini.directory / "probe.jsonl").unlink(missing_ok=True)
    for program in programs:
        done = mini.task(*CONFIG, "--plugin", "probe", program=program, env={"PROBE_BLOCK": "block"})
        assert done.returncode == 0, done.stderr
        assert mini.system_message().endswith(f"\n\n{BLOCK}")
    assert len(mini.events("post_run")) == len(programs)


def check_stock(mini: Mini, env: Path) -> None:
    """Check that mini works and knows nothing of plugins."""
    mini.bin = env
    done = mini.task(*CONFIG)
    assert done.returncode == 0, done.stderr
    assert not re.search("valve|plugin", done.stderr)
    refused = mini.task(*CONFIG, "--plugin", "valve")
    assert refused.returncode == 2
    assert "No such option" in refused.stderr


def traces(directory: Path) -> list[str]:
    """Return the files in an environment that came with us."""
    ours = re.compile(r"valve_plugin|minisweagent_valve|/valve$")
    return [str(p) for p in directory.rglob("*") if ours.search(str(p.relative_to(directory)))]


def test_archives_hold_what_they_should(tools: Tools) -> None:
    names = set(zipfile.ZipFile(tools.wheel).namelist())
    for top in ("hooks", "schemas"):
        for file in (ROOT / top).iterdir():
            if file.suffix in (".py", ".json"):
                assert f"valve_plugin/{top}/{file.name}" in names
    assert {"minisweagent_valve.pth", "minisweagent_valve.start", "valve_plugin/py.typed"} <= names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {
        "minisweagent_valve.pth",
        "minisweagent_valve.start",
        "valve_plugin",
    }
    with tarfile.open(tools.sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("pyproject.toml", "README.md", "LICENSE", "hooks/__init__.py", "tests/host/test_boot.py"):
        assert needed in inside
    assert not [name for name in inside if name.startswith((".ci", ".git/"))]


def test_pip_install_and_uninstall(tools: Tools, mini: Mini, tmp_path: Path) -> None:
    env = tools.venv(tmp_path / "env")
    tools.install(env, "mini-swe-agent", "pip")
    mini.bin = env
    before = mini("--help")
    for what in ([tools.wheel], [tools.sdist], ["-e", ROOT]):
        run(env / "python", "-m", "pip", "install", "--quiet", *what)
        check_works(mini, env)
        run(env / "python", "-m", "pip", "uninstall", "--quiet", "--yes", "valve-plugin")
        check_stock(mini, env)
        assert mini("--help").stdout == before.stdout
        assert traces(tmp_path / "env") == []


def find_python(tools: Tools, version: str) -> str:
    """Return an interpreter of that version, found by uv or among pyenv's; empty: there is none."""
    command = [tools.uv, "python", "find", "--no-python-downloads", version]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return found or next(map(str, pyenv.glob(f"versions/{version}.*/bin/python")), "")


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14", "3.15"])
def test_every_python_found_here(tools: Tools, mini: Mini, tmp_path: Path, version: str) -> None:
    python = find_python(tools, version)
    if not python:
        pytest.skip(f"there is no Python {version} on this machine")
    env = tools.venv(tmp_path / "env", python)
    tools.install(env, tools.wheel)
    check_works(mini, env)


def test_uv_tool_with(tools: Tools, mini: Mini, tmp_path: Path) -> None:
    env = {**os.environ, "UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    install = (tools.uv, "tool", "install", "--quiet", "--python", sys.executable, "mini-swe-agent")
    run(*install, "--with", tools.wheel, "--with-executables-from", "valve-plugin", env=env)
    check_works(mini, tmp_path / "bin")
    run(*install, "--reinstall", env=env)
    check_stock(mini, tmp_path / "bin")
    assert traces(tmp_path / "tools") == []


def test_uvx_with(tools: Tools, mini: Mini, tmp_path: Path) -> None:
    wrapper = tmp_path / "bin" / "mini"
    wrapper.parent.mkdir()
    uvx = f"{tools.bin / 'uvx'} --python {sys.executable} --with {tools.wheel} --from mini-swe-agent mini"
    wrapper.write_text(f'#!/bin/sh\nexec {uvx} "$@"\n')
    wrapper.chmod(0o755)
    check_works(mini, wrapper.parent, valve=False)  # one program is what uvx runs


def test_pipx_inject(tools: Tools, mini: Mini, tmp_path: Path) -> None:
    env = {**os.environ, "PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    pipx = tools.bin / "pipx"
    run(pipx, "install", "--python", sys.executable, "mini-swe-agent", env=env)
    check_stock(mini, tmp_path / "bin")
    run(pipx, "inject", "--include-apps", "mini-swe-agent", tools.wheel, env=env)
    # pipx's scripts run with -E, so PYTHONPATH does not bring the probe in.
    (site_packages,) = (tmp_path / "pipx" / "venvs").glob("mini-swe-agent/lib/python*/site-packages")
    add_distribution(site_packages, "probe", PROBE)
    check_works(mini, tmp_path / "bin")
    run(pipx, "uninject", "mini-swe-agent", "valve-plugin", env=env)
    check_stock(mini, tmp_path / "bin")
    assert traces(tmp_path / "pipx" / "venvs") == []
