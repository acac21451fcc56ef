"""Preparing a repository: once, whole, by one process at a time, also after a kill."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests import calc
from tests.sandbox.support import dig
from tests.tools import put
from valve_plugin.config import Settings
from valve_plugin.errors import InfrastructureError, TaskError
from valve_plugin.records import Task
from valve_plugin.sandbox import environment
from valve_plugin.sandbox.git import read_tree
from valve_plugin.sandbox.trees import remove_tree
from valve_plugin.tasks import repository
from valve_plugin.tasks.grading.grade import grade
from valve_plugin.tasks.repository import find_prepared, prepare, read_definition
from valve_plugin.tasks.states import gold_patch

PREPARE = """
import sys
from pathlib import Path
from valve_plugin.tasks.repository import prepare, read_definition
print("go", flush=True)
print(prepare(read_definition(Path(sys.argv[1]))).base)
"""


def test_prepares_once(tmp_path: Path, data_dir: Path) -> None:
    repository = read_definition(calc.write(tmp_path) / "repository.toml")
    said: list[str] = []
    first = prepare(repository, said.append)
    assert said == ["storing 8 files"]
    assert first.store.is_relative_to(data_dir)
    assert read_tree(first.store, first.base).keys() == calc.FILES.keys()
    assert prepare(repository, lambda _: pytest.fail("done again")) == first
    assert find_prepared("acme/calc") == first


def test_what_is_not_prepared_says_how(data_dir: Path) -> None:
    with pytest.raises(TaskError, match="repository 'acme/calc' is not prepared on this machine; run `valve evolve"):
        find_prepared("acme/calc")
    with pytest.raises(TaskError, match="not of the form owner/name"):
        find_prepared("../../etc")


def test_a_damaged_note_is_made_again(tmp_path: Path, data_dir: Path) -> None:
    repository = read_definition(calc.write(tmp_path) / "repository.toml")
    first = prepare(repository)
    note = data_dir / "repos/acme__calc/prepared.json"
    note.write_bytes(note.read_bytes()[:50])
    asked = [
        sys.executable,
        "-c",
        "from valve_plugin.tasks.repository import find_prepared; find_prepared('acme/calc')",
    ]
    assert "is not prepared" in subprocess.run(asked, capture_output=True, text=True, check=False).stderr
    assert prepare(repository) == first


def test_a_run_stays_with_its_own_source_whatever_is_prepared_beside_it(tmp_path: Path, data_dir: Path) -> None:
    path = calc.write(tmp_path / "mine") / "repository.toml"
    mine = prepare(read_definition(path))
    other = calc.write(tmp_path / "other") / "repository.toml"
    (other.parent / "source/calc/ops.py").write_text("changed = True\n")
    beside = subprocess.run([sys.executable, "-c", PREPARE, str(other)], capture_output=True, text=True, check=True)
    assert beside.stdout.split()[1] != mine.base
    assert find_prepared("acme/calc") == mine
    assert prepare(read_definition(other)).base == beside.stdout.split()[1] == find_prepared("acme/calc").base


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
    assert read_tree(find_prepared("acme/calc").store, bases.pop()).keys() == calc.FILES.keys()


def test_an_environment_that_is_none_is_refused(tmp_path: Path, data_dir: Path) -> None:
    repository = read_definition(calc.write(tmp_path) / "repository.toml")
    with pytest.raises(TaskError, match="must be an existing virtual environment"):
        prepare(replace(repository, environment=str(tmp_path)))
    with pytest.raises(TaskError, match="without requirements"):
        prepare(replace(repository, requirements=("pytest",)))


def test_a_named_environment_is_not_run_outside_the_sandbox(tmp_path: Path, data_dir: Path) -> None:
    """It may have come with the task set, and be any program."""
    python = put(tmp_path / "venv", {"pyvenv.cfg": f"home = {tmp_path}\nversion = 3.11.9\n"}) / "bin/python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\necho 3.11.9 > {tmp_path}/ran\n")
    python.chmod(0o755)
    prepared = prepare(
        replace(read_definition(calc.write(tmp_path) / "repository.toml"), environment=str(tmp_path / "venv"))
    )
    assert prepared.base_python == "3.11.9"
    assert not (tmp_path / "ran").exists()


def test_finds_a_python_of_the_wanted_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = f"3.{sys.version_info.minor}"
    for wanted in ("", here, f"3.8-{here}", f"{here}-3.99"):
        assert environment.version(environment.find_python(wanted)).startswith(here)
    shim = tmp_path / "python3.8"
    shim.write_text("#!/bin/sh\necho 'version 3.8 is not installed' >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TaskError, match=r"the tests need Python 3\.8, but this is 3\..*install one"):
        environment.find_python("3.8")
    shim.write_text("#!/bin/sh\necho 3.8.1\n")
    assert environment.find_python("3.6-3.8") == shim.resolve()


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


def archive(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    """Write a .tar.gz."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mode = 0o755 if name.endswith(".sh") else 0o644
            tar.addfile(info, io.BytesIO(content))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return path


def test_an_archive_loses_its_top_directory(tmp_path: Path) -> None:
    path = archive(tmp_path / "x-1.tar.gz", {"x-1/a.py": b"a", "x-1/b/run.sh": b"b"}, {"x-1/link": "a.py"})
    assert sorted(repository.read_archive(path)) == [
        ("a.py", "100644", b"a"),
        ("b/run.sh", "100755", b"b"),
        ("link", "120000", b"a.py"),
    ]


def test_what_git_takes_for_its_own_is_left_out(tmp_path: Path) -> None:
    path = archive(tmp_path / "x-1.tar.gz", {"x-1/a.py": b"a", "x-1/data/.git": b"gitdir: ..", "x-1/.GIT/config": b""})
    assert repository.read_archive(path) == [("a.py", "100644", b"a")]


@pytest.mark.parametrize("name", ["/etc/x", "x-1/../../y"])
def test_hostile_paths_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TaskError, match="hostile path"):
        repository.read_archive(archive(tmp_path / "x-1.tar.gz", {name: b""}))


def test_too_much_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "MAX_SOURCE_BYTES", 10)
    with pytest.raises(TaskError, match="more than 10 bytes"):
        repository.read_archive(archive(tmp_path / "x.tar.gz", {"x/a": b"a" * 11}))
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree/a").write_bytes(b"a" * 11)
    with pytest.raises(TaskError, match="more than 10 bytes"):
        repository.read_directory(tmp_path / "tree")


def test_a_directory_without_what_is_not_source(tmp_path: Path) -> None:
    names = ".git/config pkg/__pycache__/a.pyc env/pyvenv.cfg env/lib/x.py pkg/a.py b.pyc sub/.git"
    put(tmp_path, dict.fromkeys(names.split(), "x"))
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "pkg/a.py").chmod(0o755)
    assert repository.read_directory(tmp_path) == [("loop", "120000", b"."), ("pkg/a.py", "100755", b"x")]


@pytest.fixture
def pit(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed by us: pytest recurses over what tests leave."""
    (tmp_path / "pit").mkdir()
    yield tmp_path / "pit"
    remove_tree(tmp_path / "pit")


def test_a_directory_may_be_deep_and_links_stay_links(pit: Path) -> None:
    dig(pit, 1500)
    (pit / "link").symlink_to("a")
    found = repository.read_directory(pit)
    assert [(name[-5:], mode, len(content)) for name, mode, content in found] == [
        ("link", "120000", 1),
        ("/x.py", "100644", 65_536),
    ]
    dig(pit, 30, "b" * 200)
    with pytest.raises(TaskError, match=r"b{80}: File name too long"):
        repository.read_directory(pit)


BACKEND = """
from pathlib import Path
def prepare_metadata_for_build_wheel(folder, settings=None):
    Path({trace!r}).touch()
    info = Path(folder, "x-1.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: x\\nVersion: 1\\n")
    return info.name
def build_wheel(*_): raise NotImplementedError
"""
PROJECT = b'[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str, Path]:
    """A package index with x 1; return (its archive, the archive's hash, the file that code of it makes)."""
    trace, index = tmp_path / "trace", tmp_path / "index"
    index.mkdir()
    backend = BACKEND.format(trace=str(trace)).encode()
    path = archive(index / "x-1.tar.gz", {"x-1/pyproject.toml": PROJECT, "x-1/backend.py": backend})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return path, hashlib.sha256(path.read_bytes()).hexdigest(), trace


def test_nothing_of_an_archive_runs_before_its_hash_is_checked(release: tuple[Path, str, Path], tmp_path: Path) -> None:
    _, wanted, trace = release
    with pytest.raises(TaskError, match="made from other source"):
        repository.download(Path(sys.executable), "x==1", tmp_path / "into", "0" * 64)
    assert repository.archive_hash("x==1", lambda _: None) == wanted
    assert not trace.exists()
    assert repository.download(Path(sys.executable), "x==1", tmp_path / "into", wanted).name == "x-1.tar.gz"
    assert trace.exists(), "pip runs code of the archive to ask it for its metadata"


def test_an_archive_without_a_hash_is_refused_with_the_line_that_is_missing(
    release: tuple[Path, str, Path], data_dir: Path
) -> None:
    path, wanted, trace = release
    unsure = repository.Repository(name="acme/x", source="pypi:x==1", environment=str(calc.lean()))
    for make in (prepare, repository.prepare_source):
        with pytest.raises(TaskError, match=f'add to repository.toml: sha256 = "{wanted}"'):
            make(unsure)
    assert not trace.exists()
    assert repository.prepare_source(replace(unsure, sha256=wanted)).base
    path.unlink()
    with pytest.raises(InfrastructureError, match="cannot pip download"):
        prepare(unsure)


def test_what_holds_fixes_and_hidden_tests_is_private(
    calc_task: tuple[repository.PreparedRepository, Task], tmp_path: Path, data_dir: Path
) -> None:
    for name in ("repos", "testruns"):
        (data_dir / name).mkdir(parents=True)
        (data_dir / name).chmod(0o755)  # by an earlier version
    before = os.umask(0)
    try:
        prepared = prepare(read_definition(calc.write(tmp_path) / "repository.toml"))
        assert grade(*calc_task, gold_patch(*calc_task), Settings(unsafe_local=True)).outcome == "resolved"
    finally:
        os.umask(before)
    runs = [path for path in (data_dir / "testruns").rglob("*") if path.name != ".lock"]
    assert runs
    for path in (data_dir / "repos", data_dir / "testruns", *runs, prepared.store, *prepared.store.rglob("*.pack")):
        assert not path.stat().st_mode & 0o077, path
