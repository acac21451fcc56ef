"""Files that somebody else may have put there: a device has no end, and a pipe waits for ever."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from valve_plugin.bank.redact import Redactor
from valve_plugin.config import Settings
from valve_plugin.errors import BankError, InfrastructureError, TaskError
from valve_plugin.rollouts import workspace
from valve_plugin.rollouts.sandbox import choose
from valve_plugin.tasks import environment, generate, history, issue_model, make, scan, screen, verify

pytestmark = pytest.mark.timeout(60)
READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "an environment of the person's": ("pyvenv.cfg", lambda path: environment.base_prefix(path.parent)),
    "a file of the test environment": ("ops.py", lambda path: verify._holds(path, b"x" * 100) or refused()),
    "what was tried before": ("tried.jsonl", generate._read_journal),
    "what was found before": ("candidates.json", lambda path: scan.kept(path, "") or refused()),
    "texts paid for": ("issues.jsonl", issue_model._read),
    "keys": (".env", lambda path: Redactor.of({}, path.parent) and refused()),
}
PLANTS: dict[str, Callable[[Path], None]] = {
    "device": lambda path: path.symlink_to("/dev/zero"),
    "pipe": os.mkfifo,
}


def refused() -> None:
    raise TaskError("passed over")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("plant", PLANTS)
def test_it_is_refused_at_once(reader: str, plant: str, tmp_path: Path) -> None:
    name, read = READERS[reader]
    PLANTS[plant](tmp_path / name)
    with pytest.raises((TaskError, BankError, InfrastructureError)):
        read(tmp_path / name)


def test_what_a_command_leaves_for_us(data_dir: Path) -> None:
    timed = make.Timed(choose(Settings(unsafe_local=True)))
    with workspace.empty() as place:
        timed.run('ln -s /dev/zero "$TMPDIR/times"', place)
    assert timed.seconds == [0]


@pytest.mark.parametrize("plant", PLANTS)
def test_what_a_watched_run_leaves_for_us(plant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = SimpleNamespace(path=tmp_path, tmp=tmp_path)
    monkeypatch.setattr(workspace, "at_commit", lambda *given: nullcontext(place))
    box = SimpleNamespace(root="", run=lambda *words, **more: PLANTS[plant](tmp_path / "reached.json"))
    repository = SimpleNamespace(cpu_seconds=1, source_roots=(), pytest_args=(), whole=())
    prepared = SimpleNamespace(repository=repository, base="", python=Path("python"))
    assert screen.watch(cast(Any, prepared), cast(Any, box)) is None


def test_a_tree_larger_than_source_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "large").write_bytes(bytes(2000))
    (tmp_path / "link").symlink_to("large")
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "x"], check=True)
    repository = history.git_dir(tmp_path)
    assert len(history.files_at(repository, "HEAD")) == 2
    monkeypatch.setattr(history, "MAX_BYTES", 2000)
    with pytest.raises(TaskError, match="2,005 bytes in HEAD, expected at most 2,000"):
        history.files_at(repository, "HEAD")


def test_a_repository_of_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".git/config").unlink()
    os.mkfifo(tmp_path / ".git/config")
    monkeypatch.setattr(history, "ANSWERS", 1.0)
    with pytest.raises(TaskError):
        history.git_dir(tmp_path)
