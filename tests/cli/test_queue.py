"""`valve evolve --all`: every bank ends as it would alone, whatever happens to the others."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.evolve import library
from tests.evolve.library import toy_site
from tests.lean import lean
from tests.tools import lives, until
from valve_plugin.cli import evolve

RUN = (*library.TOY, "--limit", "4")


@pytest.fixture
def sets(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three task sets, one of them damaged; the agent is the toy."""
    monkeypatch.setenv("PYTHONPATH", str(site := toy_site(tmp_path / "site")))
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("TOY_SECONDS", "0")
    monkeypatch.setenv("TOY_STARTED", str(tmp_path / "started"))
    folder = tmp_path / "sets"
    library.write(folder / "first", lean())
    for name in ("second", "torn"):
        shutil.copytree(folder / "first", folder / name)
    rows = (folder / "second" / "tasks.jsonl").read_text().splitlines()
    (folder / "second" / "tasks.jsonl").write_text("\n".join(reversed(rows)))
    (folder / "torn" / "tasks.jsonl").write_text("{")
    return folder


def ledgers(banks: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in sorted(banks.glob("*/ledger.jsonl"))}


def kill_midway(command: list[str], started: Path) -> None:
    """Start a command, kill -9 its process when the runs that it started are at work, and wait until none is left."""
    before = started.read_text().count("\n")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as parent:
        until(lambda: started.read_text().count("\n") > before + 2 or parent.poll() is not None, 300)
        children = psutil.Process(parent.pid).children(recursive=True)
        parent.kill()
    assert children
    until(lambda: not any(map(lives, children)), 300)


@pytest.mark.heavy
def test_each_bank_is_as_if_alone_and_one_that_fails_stops_none(sets: Path, tmp_path: Path) -> None:
    for name in ("first", "second"):
        library.valve("evolve", sets / name, "--bank", tmp_path / "alone" / name, *RUN)
    expected = ledgers(tmp_path / "alone")
    assert len(set(expected.values())) == 2
    alone = len((tmp_path / "started").read_text().splitlines())
    asked = ("evolve", "--all", sets, "--bank", tmp_path / "banks", *RUN, "--workers", "3", "--json")
    poor = library.valve(*asked, "--max-rollouts", "24", check=False)
    found = json.loads(poor.stdout)["banks"]
    assert poor.returncode == 2, poor.stderr
    assert [found[name]["code"] for name in ("first", "second", "torn")] == [0, 0, 2]
    assert "that all runs share" in found["first"]["ended"] + found["second"]["ended"]
    assert len((tmp_path / "started").read_text().splitlines()) - alone <= 24, "the budget is one for all"
    kill_midway([sys.executable, "-m", "valve_plugin", *map(str, asked)], tmp_path / "started")
    done = library.valve(*asked, check=False)
    assert ledgers(tmp_path / "banks") == expected, done.stderr
    found = json.loads(done.stdout)["banks"]
    assert [found[name]["ended"] for name in ("first", "second")] == ["done", "done"]
    assert "torn    valve: " in done.stderr
    shutil.rmtree(sets / "torn")
    text = library.valve("evolve", "--all", sets, "--bank", tmp_path / "banks", *RUN).stdout
    assert text.endswith("2 banks: 0 rollouts in this run\n")


def test_sets_that_would_share_a_bank_are_refused(sets: Path, tmp_path: Path, valve: Any) -> None:
    valve("evolve", "--all", str(sets), code=2)
    assert "first and second would use one bank" in valve.err
    valve("evolve", "--all", str(sets / "first"), code=2)
    assert "leave --all out" in valve.err
    valve("evolve", "--all", str(tmp_path), code=2)
    assert "no folder in it is a task set" in valve.err
    valve("evolve", "set", "--all", str(sets), code=2)
    found = evolve.find_queue(str(sets), str(tmp_path / "banks"), simulate=False)
    assert [(one.name, one.bank.name) for one in found] == [(name, name) for name in ("first", "second", "torn")]
