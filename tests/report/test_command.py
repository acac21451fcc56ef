"""The command: what it writes where, what it refuses, and its JSON output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.banks import sample
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import app
from valve_plugin.cli.report import _labels


def valve(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "valve_plugin", *args], capture_output=True, text=True, timeout=120)


def test_the_command_writes_page_and_figures(tmp_path: Path, data_dir: Path) -> None:
    sample(tmp_path / "bank")
    done = valve(
        "report", "--bank", str(tmp_path / "bank"), "--out", str(tmp_path / "r.html"), "--figures", str(tmp_path / "f")
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'r.html'}\n"
    assert sorted(p.name for p in (tmp_path / "f").iterdir()) == ["gates.svg", "stream.svg"]
    alone = (tmp_path / "f/gates.svg").read_text()
    assert "Gate verdicts" in alone, "a file that travels says what it shows"
    assert "Panel gain of each proposal" in alone


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--out", "bank/ledger.jsonl"], "name a file ending in .html"),
        (["--out", "bank/new.html"], "inside a bank or its local data"),
        (["--out", "link/new.html"], "inside a bank or its local data"),
        (["--out", "other/new.html"], "inside a bank or its local data"),
        (["--out", "notes.html"], "exists and is no HTML page"),
        (["--out", "folder.html"], "can be written to"),
        (["--out", "notes.html/x.html"], "is no folder"),
        (["--out", "x" * 300 + ".html"], "can be written to"),
        (["--out", "new/r.html", "--figures", "notes.html"], "is no folder"),
        (["--out", "new/r.html", "--figures", "bank/new"], "inside a bank or its local data"),
        (["--out", "new/r.html", "--figures", "new/r.html"], "names the same place"),
        (["--out", "new/r.html", "--figures", "pictures"], "exists and is not a figure of valve's"),
        (["--compare", "bank", "link"], "both are the same bank"),
        (["--compare", "bank"], "--compare takes two bank directories, got 1"),
        (["bank"], "name one bank with --bank"),
        (["--bank", "none"], "none: there is no bank here"),
    ],
)
def test_nothing_is_written_where_it_may_not_be(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("bank", "other"):
        sample(Path(name))
    Path("link").symlink_to("bank")
    Path("folder.html").mkdir()
    Path("notes.html").write_text("mine")
    Path("pictures").mkdir()
    Path("pictures/gates.svg").write_text("<svg>mine</svg>")
    ledger = Path("bank/ledger.jsonl").read_bytes()
    done = CliRunner().invoke(app, ["report", *(["--bank", "bank"] if "--out" in args else []), *args])
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert Path("bank/ledger.jsonl").read_bytes() == ledger
    assert Path("notes.html").read_text() == "mine"
    assert [(p.name, p.read_text()) for p in Path("pictures").iterdir()] == [("gates.svg", "<svg>mine</svg>")]
    assert not Path("new").exists()
    assert not Path("bank/new").exists()


def test_a_page_may_be_written_again(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sample(Path("bank"))
    Path("r.HTM").touch()
    Path("f").mkdir()
    Path("f/gates.svg").touch()
    for _ in range(2):
        done = CliRunner().invoke(app, ["report", "--bank", "bank", "--out", "r.HTM", "--figures", "f"])
        assert done.exit_code == 0, done.stderr
    assert Path("f/gates.svg").stat().st_size
    assert Path("r.HTM").read_text().startswith("<!doctype html>")


def test_a_page_without_a_place_has_one_of_its_bank(tmp_path: Path, data_dir: Path) -> None:
    banks = [str(sample(tmp_path / name).dir) for name in "ab"]

    def told(*args: str) -> list[Path]:
        return [Path(CliRunner().invoke(app, ["report", *args]).stdout.strip()) for _ in range(2)]

    places = [told("--bank", banks[0]), told("--bank", banks[1]), told("--compare", *banks)]
    assert all(first == again and first.read_text().startswith("<!doctype html>") for first, again in places)
    assert len({first for first, _ in places}) == 3
    assert all(data_dir in first.parents and first.parent.stat().st_mode & 0o77 == 0 for first, _ in places)
    assert not BankStore.open(Path(banks[0])).local.exists, "a page is no rollout that this machine keeps"


def test_json_writes_files_too(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown: list[Path] = []
    monkeypatch.setattr("valve_plugin.cli.report._open", shown.append)
    sample(Path("bank"))
    done = CliRunner().invoke(
        app, ["report", "--bank", "bank", "--json", "--out", "r.html", "--figures", "f", "--open"]
    )
    assert done.exit_code == 0, done.stderr
    assert len(json.loads(done.stdout)["runs"]) == 1
    assert (done.stderr, shown) == ("r.html\n", [tmp_path / "r.html"])
    assert {p.suffix for p in Path("f").iterdir()} == {".svg"}


def test_banks_are_called_by_what_tells_them_apart() -> None:
    assert _labels([Path("/runs/gated/bank"), Path("/runs/ungated/bank")]) == ["A, gated", "B, ungated"]
    assert _labels([Path("/runs/x/.valve"), Path("/runs/x/other")]) == ["A, .valve", "B, other"]


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
