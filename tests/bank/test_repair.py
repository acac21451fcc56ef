"""`repair`: whatever stands where a file made from the ledger goes, the bank is whole again and nothing is lost."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.bank import build
from valve_plugin.bank.directory import repair
from valve_plugin.bank.entries import Entry
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.codec import pretty
from valve_plugin.errors import BankCorruptError

Spoil = Callable[[Path], object]


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("kept")


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere.aside-x"))
    path.symlink_to("elsewhere.aside-x")


WRONG: dict[str, Spoil] = {
    "empty": lambda p: p.write_bytes(b""),
    "edited": lambda p: p.write_bytes(p.read_bytes().replace(b'"', b'" ', 1)),
    "no UTF-8": lambda p: p.write_bytes(b"\xff"),
    "of another version": lambda p: p.write_bytes(
        re.sub(rb'"schema_version": \d', b'"schema_version": 9', p.read_bytes())
    ),
    "a folder": folder,
    "a link": link,
    "a pipe": lambda p: (p.unlink(), os.mkfifo(p)),
    "gone": lambda p: p.unlink(),
}


@pytest.mark.parametrize("name", ["bank.json", "panel.json"])
@pytest.mark.parametrize("how", WRONG)
def test_what_is_made_from_the_ledger_is_made_again(name: str, how: str, bank_dir: Path) -> None:
    path, ledger = bank_dir / name, (bank_dir / "ledger.jsonl").read_bytes()
    good = path.read_bytes()
    WRONG[how](path)
    wrong = path.read_bytes() if path.is_file() and not path.is_symlink() else None
    assert verify(bank_dir)
    said = repair(bank_dir)
    assert verify(bank_dir) == []
    assert (path.read_bytes(), (bank_dir / "ledger.jsonl").read_bytes()) == (good, ledger)
    kept = list(bank_dir.glob(f"{name}.aside-*"))
    assert len(kept) == (how != "gone"), said
    if wrong is not None and kept:
        assert kept[0].read_bytes() == wrong
    assert all(p.name in "".join(said) for p in kept), said
    assert repair(bank_dir) == [], "there is nothing left to do"


def test_a_panel_nobody_fixed_is_moved_aside(tmp_path: Path, data_dir: Path) -> None:
    bank = tmp_path / "bank"
    BankStore.create(bank, build.REPO)
    stray = pretty(build.PANEL)
    (bank / "panel.json").write_bytes(stray)
    assert "`valve bank verify --repair` moves it aside" in verify(bank)[0].message
    (said,) = repair(bank)
    (kept,) = bank.glob("panel.json.aside-*")
    assert kept.read_bytes() == stray
    assert kept.name in said
    assert verify(bank) == []


def test_what_a_killed_write_left_goes_and_what_is_somebody_s_stays(bank_dir: Path) -> None:
    left, mine = bank_dir / ".bank.json.0123456789ab.tmp", [bank_dir / "notes.txt", bank_dir / ".mine.tmp"]
    for path in (left, *mine):
        path.write_text("x")
    with (bank_dir / "ledger.jsonl").open("ab") as file:
        file.write(b'{"half')
    (said,) = repair(bank_dir)
    assert "incomplete line" in said
    assert [path.exists() for path in (left, *mine)] == [False, True, True]
    assert verify(bank_dir) == []


def test_a_cut_or_damaged_ledger_is_refused_and_nothing_changes(bank_dir: Path) -> None:
    path = bank_dir / "ledger.jsonl"
    whole = path.read_bytes()
    for damaged in (b"".join(whole.splitlines(keepends=True)[:3]), whole.replace(b"first", b"First"), b""):
        path.write_bytes(damaged)
        before = {p: p.read_bytes() for p in bank_dir.iterdir()}
        with pytest.raises(BankCorruptError, match="restore"):
            repair(bank_dir)
        assert {p: p.read_bytes() for p in bank_dir.iterdir() if p.name != ".lock"} | {
            p: b for p, b in before.items() if p.name == ".lock"
        } == before


@given(data=st.binary(max_size=40), cut=st.floats(0, 1))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_repaired(data: bytes, cut: float, bank_dir: Path, accept: list[Entry]) -> None:
    for name in ("bank.json", "panel.json"):
        good = (bank_dir / name).read_bytes()
        (bank_dir / name).write_bytes(good[: int(cut * len(good))] + data)
    repair(bank_dir)
    assert verify(bank_dir) == []
