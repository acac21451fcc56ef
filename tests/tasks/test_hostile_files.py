"""Files that somebody else may have put there: a device has no end, and a pipe waits for ever."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tools import git
from valve_plugin.errors import BankError, InfrastructureError, TaskError
from valve_plugin.redact import Redactor
from valve_plugin.sandbox import environment
from valve_plugin.sandbox.git import find_git_dir, read_files
from valve_plugin.tasks import verify
from valve_plugin.tasks.make import generate

READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "an environment of the person's": ("pyvenv.cfg", lambda path: environment.base_prefix(path.parent)),
    "a file of the test environment": ("ops.py", lambda path: verify._holds(path, b"x" * 100) or refused()),
    "what was tried before": ("tried.jsonl", generate._read_journal),
    "keys": (".env", lambda path: Redactor.of({}, path.parent) and refused()),
}
PLANTS: dict[str, Callable[[Path], None]] = {"device": lambda path: path.symlink_to("/dev/zero"), "pipe": os.mkfifo}


def refused() -> None:
    raise TaskError("passed over")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("plant", PLANTS)
def test_it_is_refused_at_once(reader: str, plant: str, tmp_path: Path) -> None:
    name, read = READERS[reader]
    PLANTS[plant](tmp_path / name)
    with pytest.raises((TaskError, BankError, InfrastructureError)):
        read(tmp_path / name)


def test_a_journal_that_cannot_be_looked_for(tmp_path: Path) -> None:
    assert generate._read_journal(tmp_path / "none") == {}
    with pytest.raises(BankError, match="cannot read journal"):
        generate._read_journal(tmp_path / ("x" * 300))


def test_a_tree_larger_than_source_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "large").write_bytes(bytes(2000))
    (tmp_path / "link").symlink_to("large")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-q", "-m", "x")
    repository = find_git_dir(tmp_path)
    assert len(read_files(repository, "HEAD")) == 2
    monkeypatch.setattr("valve_plugin.sandbox.git.MAX_SOURCE_BYTES", 2000)
    with pytest.raises(TaskError, match="2,005 bytes in HEAD, expected at most 2,000"):
        read_files(repository, "HEAD")


def test_a_repository_of_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".git/config").unlink()
    os.mkfifo(tmp_path / ".git/config")
    monkeypatch.setattr("valve_plugin.sandbox.git.ANSWER_SECONDS", 1.0)
    with pytest.raises(TaskError):
        find_git_dir(tmp_path)
