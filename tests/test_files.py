"""Reading that refuses surprises and writing that survives."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin import files
from valve_plugin.errors import BankError

FORK = get_context("fork")


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_the_last_write_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, first: bytes, second: bytes) -> None:
    path = tmp_path_factory.mktemp("files") / "file"
    for data in (first, second):
        files.write_atomic(path, data)
        assert files.read_limited(path, 300, "file") == data
    assert not files.write_new(path, b"third")
    assert [p.name for p in path.parent.iterdir()] == ["file"]
    assert path.read_bytes() == second


def test_short_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may take less than it was given."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:7]))
    files.write_atomic(tmp_path / "file", b"0123456789" * 10)
    files.append_durable(tmp_path / "file", b"abcdefghijk\n")
    assert (tmp_path / "file").read_bytes() == b"0123456789" * 10 + b"abcdefghijk\n"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The system calls that make data durable, as they come; of fsync, whether it was a directory's."""
    seen: list[str] = []

    def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watch(*args: Any) -> Any:
            folder = name == "fsync" and stat.S_ISDIR(os.fstat(args[0]).st_mode)
            seen.append("fsync folder" if folder else name)
            return call(*args)

        return watch

    for name in ("write", "fsync", "replace", "link"):
        monkeypatch.setattr(os, name, watched(name, getattr(os, name)))
    return seen


def test_data_is_durable_before_its_name_and_the_name_before_returning(tmp_path: Path, calls: list[str]) -> None:
    path = tmp_path / "file"
    files.write_atomic(path, b"data")
    assert calls == ["write", "fsync", "replace", "fsync folder"]
    calls.clear()
    files.append_durable(path, b"line\n")
    assert calls == ["write", "fsync"]
    calls.clear()
    files.write_new(tmp_path / "new", b"data")
    assert calls == ["write", "fsync", "link", "fsync folder"]
    calls.clear()
    files.make_dir(tmp_path / "a" / "b")
    assert calls == ["fsync folder"] * 2


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_failed_replacement_leaves_the_old_file_and_nothing_else(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, _no_space)
        with pytest.raises(BankError, match=r"file: cannot write: No space left on device; free some disk space"):
            files.write_atomic(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_a_failed_append_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old\n")
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, data[:2]) if len(data) > 5 else _no_space())
        with pytest.raises(BankError, match="cannot append"):
            files.append_durable(path, b"new line\n")
    assert path.read_bytes() == b"old\n"


def _no_space(*_: object) -> int:
    raise OSError(28, "No space left on device")


class TestRead:
    def test_symbolic_link(self, tmp_path: Path) -> None:
        """A directory from elsewhere must not make us read, or append to, a file outside it."""
        (tmp_path / "secret").write_bytes(b"secret")
        (tmp_path / "x").symlink_to(tmp_path / "secret")
        for use in (lambda p: files.read_limited(p, 10, "ledger"), lambda p: files.append_durable(p, b"line\n")):
            with pytest.raises(BankError, match="it is a symbolic link: put the file itself there"):
                use(tmp_path / "x")
        assert (tmp_path / "secret").read_bytes() == b"secret"

    def test_what_is_no_file(self, tmp_path: Path) -> None:
        """Opening a pipe would wait for its other end for ever."""
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "folder").mkdir()
        for name in ("pipe", "folder"):
            with pytest.raises(BankError, match="not a regular file"):
                files.read_limited(tmp_path / name, 10, "ledger")


def _log(path: Path, worker: int, count: int) -> None:
    for number in range(count):
        files.append_shared(path, f"{worker}:{number}:".encode() + b"x" * 5000)


def test_a_shared_log_keeps_the_lines_of_all_processes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    workers = [FORK.Process(target=_log, args=(path, worker, 50)) for worker in range(6)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
    lines = [line for line in path.read_bytes().split(b"\n") if line]
    assert sorted(lines) == sorted(
        f"{worker}:{number}:".encode() + b"x" * 5000 for worker in range(6) for number in range(50)
    )


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o277, 0o777])
def test_what_is_private_is_so_from_the_first_moment(tmp_path: Path, umask: int) -> None:
    there = tmp_path / "there"
    (there / "old").mkdir(parents=True)
    for folder in (there, there / "old"):
        folder.chmod(0o755)
    before = os.umask(umask)
    try:
        for folder in (there / "old", there / "new" / "below"):
            files.make_private_dir(folder)
            files.write_atomic(folder / "a", b"a")
            files.write_new(folder / "b", b"b")
            files.append_shared(folder / "c", b"c")
    finally:
        os.umask(before)
    for folder in (there / "old", there / "new" / "below"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in folder.iterdir()} == {0}
    assert stat.S_IMODE((there / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE(there.stat().st_mode) == 0o755, "a folder that a person made keeps its rights"
