"""The command: what it writes where, what it refuses, and its JSON output."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.banks import sample
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import app


def valve(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "valve_plugin", *args], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--out", "bank/ledger.jsonl"], "name a file ending in .html"),
        (["--out", "folder.html"], "can be written to"),
        (["--out", "notes.html/x.html"], "is no folder"),
        (["--out", "x" * 300 + ".html"], "can be written to"),
        (["--compare", "bank", "link"], "both are the same bank"),
        (["--compare", "bank"], "--compare takes two bank directories, got 1"),
        (["bank"], "name one bank with --bank"),
        (["--bank", "none"], "none: there is no bank here"),
    ],
)
def test_wrong_use_is_one_line(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    sample(Path("bank"))
    Path("link").symlink_to("bank")
    Path("folder.html").mkdir()
    Path("notes.html").write_text("mine")
    ledger = Path("bank/ledger.jsonl").read_bytes()
    done = CliRunner().invoke(app, ["report", *(["--bank", "bank"] if "--out" in args else []), *args])
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert Path("bank/ledger.jsonl").read_bytes() == ledger


def test_a_page_without_a_place_has_one_of_its_bank(tmp_path: Path, data_dir: Path) -> None:
    banks = [str(sample(tmp_path / name).dir) for name in "ab"]

    def told(*args: str) -> list[Path]:
        return [Path(CliRunner().invoke(app, ["report", *args]).stdout.strip()) for _ in range(2)]

    places = [told("--bank", banks[0]), told("--bank", banks[1]), told("--compare", *banks)]
    assert all(first == again and first.read_text().startswith("<!doctype html>") for first, again in places)
    assert len({first for first, _ in places}) == 3
    assert all(data_dir in first.parents and first.parent.stat().st_mode & 0o77 == 0 for first, _ in places)
    assert not BankStore.open(Path(banks[0])).local.exists, "a page is no rollout that this machine keeps"


def test_a_page_is_private_under_any_umask(tmp_path: Path, data_dir: Path) -> None:
    bank, before = str(sample(tmp_path / "a").dir), os.umask(0)
    try:
        page = Path(valve("report", "--bank", bank).stdout.strip())
    finally:
        os.umask(before)
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in list(page.parents)[:2]} == {0o700}


def test_the_numbers_are_json(tmp_path: Path, data_dir: Path) -> None:
    banks = [str(sample(tmp_path / name).dir) for name in "ab"]
    told = json.loads(valve("report", "--bank", banks[0], "--json").stdout)
    assert set(told) == {"runs", "said", "saved"}
    (run,), (said,) = told["runs"], told["said"]
    assert {"gates", "items", "certificates"} == set(said)
    assert {"stream", "gates", "sizes", "columns", "items", "spent", "certificate", "ledger"} <= set(run)
    both = json.loads(valve("report", "--compare", *banks, "--json").stdout)
    assert set(both) == {*told, "versus"}
    assert {"question", "answer", "why", "tone", "streams", "holdouts"} == set(both["versus"])
    assert both["versus"]["streams"]["state"] == "unknown"
