"""What lies on this disk, and runs that lost their bank."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from valve_plugin.bank.local import LocalStore, local_store
from valve_plugin.bank.store import BankStore
from valve_plugin.paths import data_dir, local_dir
from valve_plugin.records import Attempt
from valve_plugin.sandbox.scratch import scratch_folder


def _attempt(name: str) -> Attempt:
    return Attempt(id=name, task_id="t", ordinal=0, source="live", outcome="resolved")


@pytest.fixture
def used(bank: BankStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BankStore:
    """The sample bank with an attempt, beside an environment, a demo's folder and a cache."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    bank.local.add_attempt(_attempt("a"), b'{"messages": []}')
    for folder in (data_dir() / "repos" / "owner__name", data_dir() / "testruns", tmp_path / "valve-demo-x"):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x" * 100)
    return bank


def test_clean_shows_and_removes_only_what_is_named(used: BankStore, valve: Run) -> None:
    shown = valve("clean", "--json")
    assert [(f["kind"], f["repository"]) for f in shown["found"]] == [
        ("trajectories", "owner/name"),
        ("environments", "owner/name"),
        ("demos", ""),
        ("caches", ""),
    ]
    assert (shown["removed"], shown["bytes"]) == (False, sum(f["size"] for f in shown["found"]))
    valve("clean", "demos", code=2)
    assert "give --yes" in valve.err
    with scratch_folder():
        valve("clean", "environments", "--yes", code=2)
    assert "a run of valve is active" in valve.err
    assert valve("clean", "environments", "--repo", "other/name", "--yes", "--json")["found"] == []
    valve("clean", "trajectories", "demos", "--yes")
    assert {f["kind"] for f in valve("clean", "--json")["found"]} == {"environments", "caches"}
    (kept,) = used.local.attempts()
    assert kept.outcome == "resolved"
    valve("clean", "everything", code=2)


def test_runs_of_a_bank_that_is_gone(used: BankStore, valve: Run) -> None:
    shutil.rmtree(used.dir)
    (lost,) = (f for f in valve("clean", "--json")["found"] if f["kind"] == "lost")
    assert str(used.dir) in lost["repository"]
    valve("clean", "lost", "--yes")
    assert not Path(lost["path"]).exists()


def test_a_bank_is_given_the_runs_of_its_former_place(used: BankStore, tmp_path: Path, valve: Run) -> None:
    moved, copy = tmp_path / "moved", tmp_path / "copy"
    shutil.copytree(used.dir, copy)
    used.dir.rename(moved)
    for words, said in ((["nowhere"], "no run on this machine"), ([str(used.dir)], "is there; move that away")):
        LocalStore(local_dir(moved), moved).remember("about", "used before anybody looked for the old ones")
        valve("relink", *words, "--bank", str(moved), code=2)
        assert said in valve.err
    local_dir(moved).rename(local_dir(tmp_path / "another"))  # two that could be meant
    assert valve("relink", str(used.dir), "--bank", str(copy), "--json")["former"] == str(used.dir)
    assert [a.id for a in local_store(copy).attempts()] == ["a"]
