"""A bank shared in git: branches, merges and line ends, with the real git."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bank import build
from tests.tools import git
from valve_plugin.bank.entries import Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.errors import LedgerForkedError
from valve_plugin.records import Proposal


@pytest.fixture
def project(tmp_path: Path, data_dir: Path) -> Path:
    """A repository whose bank went two ways on branches `main` and `side`; `main` is checked out."""
    path = tmp_path / "project"
    path.mkdir()
    git(path, "init", "--quiet")
    store = BankStore.create(path / ".valve", build.REPO)
    for entry in build.accepted()[1:]:
        store.append(entry)
    commit(path)
    git(path, "checkout", "--quiet", "-b", "side")
    for branch in ("side", "main"):
        git(path, "checkout", "--quiet", branch)
        store = BankStore.open(path / ".valve")
        for number in range(2):
            store.append(Proposed(proposal=Proposal(task_id=f"{branch}-{number}")))
        commit(path)
    return path


def commit(path: Path) -> None:
    git(path, "add", "--all")
    git(path, "commit", "--quiet", "--message", "bank")


def test_nothing_but_the_bank_is_committed(project: Path) -> None:
    shared = {"bank.json", "ledger.jsonl", "panel.json", "valve.toml", ".gitignore", ".gitattributes"}
    assert set(git(project, "ls-files").split()) == {f".valve/{name}" for name in shared}
    with BankStore.open(project / ".valve").lease():
        assert git(project, "status", "--porcelain") == ""


def test_a_merge_of_two_histories_is_a_conflict_and_one_side_can_be_kept(project: Path) -> None:
    said = git(project, "merge", "side", fails=True)
    assert "CONFLICT (content): Merge conflict in .valve/ledger.jsonl" in said
    assert verify(project / ".valve") == []  # in the middle of the conflict: ours
    git(project, "checkout", "--theirs", ".valve")
    assert verify(project / ".valve") == []
    assert list(BankStore.open(project / ".valve").entries())[-1].proposal.task_id == "side-1"  # type: ignore[union-attr]


@pytest.mark.parametrize("driver", ["text", "union"])
def test_a_ledger_merged_line_by_line_is_refused(driver: str, project: Path) -> None:
    """As by another tool, or where somebody took our attributes away."""
    (project / ".valve" / ".gitattributes").write_text(f"*.json* merge={driver}\n")
    git(project, "commit", "--quiet", "--all", "--message", "attributes")
    git(project, "merge", "--quiet", "side", fails=driver == "text")
    for look in (BankStore.open, lambda path: list(BankStore.open(path).entries())):
        with pytest.raises(LedgerForkedError, match=r"ledger\.jsonl: line \d+: .*keep the whole bank directory"):
            look(project / ".valve")
    assert any(f.file == "ledger.jsonl" for f in verify(project / ".valve"))


def test_line_ends_are_left_alone(project: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--config", "core.autocrlf=true", str(project), "windows")
    assert verify(tmp_path / "windows" / ".valve") == []
    assert BankStore.open(tmp_path / "windows" / ".valve").warnings == []
