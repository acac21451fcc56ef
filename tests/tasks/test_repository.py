"""Preparing a repository: once, whole, by one process at a time, also after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.rollouts import calc
from valve_plugin.errors import InfrastructureError, TaskError
from valve_plugin.tasks import environment
from valve_plugin.tasks.git import read_tree
from valve_plugin.tasks.repository import prepare, prepared, read

PREPARE = """
import sys
from pathlib import Path
from valve_plugin.tasks.repository import prepare, read
print("go", flush=True)
print(prepare(read(Path(sys.argv[1]))).base)
"""


def test_prepares_once(tmp_path: Path, data_dir: Path) -> None:
    repository = read(calc.write(tmp_path) / "repository.toml")
    said: list[str] = []
    first = prepare(repository, said.append)
    assert said == ["storing 8 files"]
    assert first.store.is_relative_to(data_dir)
    assert read_tree(first.store, first.base).keys() == calc.FILES.keys()
    assert prepare(repository, lambda _: pytest.fail("done again")) == first
    assert prepared("acme/calc") == first


def test_another_definition_is_prepared_anew(tmp_path: Path, data_dir: Path) -> None:
    repository = read(calc.write(tmp_path) / "repository.toml")
    first = prepare(repository)
    (tmp_path / "source/calc/ops.py").write_text("changed = True\n")
    assert prepare(replace(repository, cpu_seconds=7)).folder == first.folder  # only how tests are run
    second = prepare(replace(repository, sha256="0" * 64))
    assert second.base != first.base
    assert second.digest != first.digest
    assert first.store.exists()  # somebody may still be using it


def test_what_is_not_prepared_says_how(data_dir: Path) -> None:
    with pytest.raises(TaskError, match="repository 'acme/calc' is not prepared on this machine; `valve evolve"):
        prepared("acme/calc")
    with pytest.raises(TaskError, match="not of the form owner/name"):
        prepared("../../etc")


def test_a_damaged_note_is_made_again(tmp_path: Path, data_dir: Path) -> None:
    repository = read(calc.write(tmp_path) / "repository.toml")
    first = prepare(repository)
    note = data_dir / "repos/acme__calc/prepared.json"
    note.write_bytes(note.read_bytes()[:50])
    asked = [sys.executable, "-c", "from valve_plugin.tasks.repository import prepared; prepared('acme/calc')"]
    assert "is not prepared" in subprocess.run(asked, capture_output=True, text=True, check=False).stderr
    assert prepare(repository) == first


def test_a_run_stays_with_its_own_source_whatever_is_prepared_beside_it(tmp_path: Path, data_dir: Path) -> None:
    path = calc.write(tmp_path / "mine") / "repository.toml"
    mine = prepare(read(path))
    other = calc.write(tmp_path / "other") / "repository.toml"
    (other.parent / "source/calc/ops.py").write_text("changed = True\n")
    beside = subprocess.run([sys.executable, "-c", PREPARE, str(other)], capture_output=True, text=True, check=True)
    assert beside.stdout.split()[1] != mine.base
    assert prepared("acme/calc") == mine
    assert prepare(read(other)).base == beside.stdout.split()[1] == prepared("acme/calc").base


def test_many_processes_at_once_and_kills_in_between(tmp_path: Path, data_dir: Path) -> None:
    path = calc.write(tmp_path) / "repository.toml"
    command = [sys.executable, "-c", PREPARE, str(path)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for delay in (0.0, 0.01, 0.02, 0.04):
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as killed:
            assert killed.stdout is not None
            killed.stdout.readline()
            time.sleep(delay)
            killed.send_signal(signal.SIGKILL)
    running = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    bases = {process.communicate()[0].split()[-1] for process in running}
    assert len(bases) == 1
    assert read_tree(prepared("acme/calc").store, bases.pop()).keys() == calc.FILES.keys()


def test_an_environment_that_is_none_is_refused(tmp_path: Path, data_dir: Path) -> None:
    repository = read(calc.write(tmp_path) / "repository.toml")
    with pytest.raises(TaskError, match="must be an existing virtual environment"):
        prepare(replace(repository, environment=str(tmp_path)))
    with pytest.raises(TaskError, match="without requirements"):
        prepare(replace(repository, requirements=("pytest",)))


def test_finds_a_python_of_the_wanted_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = f"3.{sys.version_info.minor}"
    for wanted in ("", here, f"3.8-{here}", f"{here}-3.99"):
        assert environment.version(environment.find_python(wanted)).startswith(here)
    shim = tmp_path / "python3.8"
    shim.write_text("#!/bin/sh\necho 'version 3.8 is not installed' >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TaskError, match=r"the tests need Python 3\.8, this is 3\..*install one of them"):
        environment.find_python("3.8")
    shim.write_text("#!/bin/sh\necho 3.8.1\n")
    assert environment.find_python("3.6-3.8") == shim.resolve()


def test_a_package_index_that_fails_is_the_hosts_fault(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="cannot pip install"):
        environment.pip(Path(sys.executable), "install", "--no-index", "no-such-package-here")


@pytest.mark.heavy
def test_a_half_made_environment_is_made_again(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python").write_text("half")
    said: list[str] = []
    python = environment.create(venv, environment.find_python(""), [], said.append)
    assert environment.version(python).startswith("3.")
    environment.create(venv, environment.find_python(""), [], said.append)
    assert len(said) == 1
    assert environment.base_prefix(venv).is_dir()
