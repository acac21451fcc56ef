"""Every changed byte is found, every verdict is decided anew, and a sound bank has no finding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.bank import build
from tests.tools import TEST_ALL
from valve_plugin.bank import directory, ledger
from valve_plugin.bank.entries import Entry, Judged, Proposed
from valve_plugin.bank.replay import Replay
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import BankFinding, verify
from valve_plugin.codec import pretty
from valve_plugin.errors import BankNotFoundError
from valve_plugin.records import Proposal

COVERED = ("bank.json", "ledger.jsonl", "panel.json")


def errors(path: Path) -> list[BankFinding]:
    return [f for f in verify(path) if f.level == "error"]


def forge(path: Path, entries: list[Entry]) -> None:
    """Write a whole directory that belongs together, as somebody would who knows how, sound or not."""
    state, prev, data = Replay(), ledger.GENESIS, b""
    for seq, entry in enumerate(entries):
        state.feed(entry)
        line = ledger.encode(seq, prev, state.bank.hash, entry)
        prev, data = ledger.line_hash(line), data + line + b"\n"
    (path / "ledger.jsonl").write_bytes(data)
    head = directory.Head(seq=len(entries) - 1, hash=prev)
    (path / "bank.json").write_bytes(directory.render_bank_file(state.bank, head))
    if state.panel:
        (path / "panel.json").write_bytes(pretty(state.panel))


def test_a_sound_bank_has_no_finding(bank_dir: Path) -> None:
    before = {p: p.read_bytes() for p in bank_dir.iterdir()}
    assert verify(bank_dir) == []
    assert {p: p.read_bytes() for p in bank_dir.iterdir()} == before


def test_where_there_is_no_bank(tmp_path: Path) -> None:
    with pytest.raises(BankNotFoundError, match="make one with `valve init"):
        verify(tmp_path)


@pytest.mark.parametrize("name", COVERED)
@given(where=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
@settings(max_examples=60 if TEST_ALL else 20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_byte_is_found(name: str, where: float, change: int, bank_dir: Path) -> None:
    path = bank_dir / name
    original = path.read_bytes()
    data = bytearray(original)
    data[int(where * len(data))] ^= change
    path.write_bytes(data)
    try:
        found = errors(bank_dir)
        assert found
        assert {f.file for f in found} <= {name, "bank.json"}  # a last ledger line shows by what bank.json says of it
        assert all(f.message for f in found)
    finally:
        path.write_bytes(original)


@pytest.mark.heavy
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", COVERED)
def test_every_changed_byte_is_found(name: str, bank_dir: Path) -> None:
    path = bank_dir / name
    original = path.read_bytes()
    for at in range(len(original)):
        change = (0x01, 0x20, 0x80)[at % 3]  # which bit makes no difference: `test_a_changed_byte_is_found` draws it
        data = bytearray(original)
        data[at] ^= change
        path.write_bytes(data)
        assert errors(bank_dir), (at, change)


@pytest.mark.parametrize("name", COVERED)
@given(cut=st.floats(0, 1, exclude_max=True), extra=st.binary(min_size=1, max_size=20))
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_cut_or_longer_file_is_found(name: str, cut: float, extra: bytes, bank_dir: Path) -> None:
    path = bank_dir / name
    original = path.read_bytes()
    try:
        path.write_bytes(original[: int(cut * len(original))])
        assert errors(bank_dir)
        path.write_bytes(original + extra)
        assert verify(bank_dir)  # after the ledger it may be what a killed write leaves: a warning
    finally:
        path.write_bytes(original)


def _change(entry: Entry, **changes: object) -> Entry:
    assert isinstance(entry, Judged)
    return replace(entry, verdict=replace(entry.verdict, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"needed": 0}, "needed is 0, its outcomes give 1"),
        ({"candidate_passes": 3}, "candidate_passes is 3, its outcomes give 4"),
        ({"current_passes": 1}, "current_passes is 1, its outcomes give 0"),
        ({"unknown": 1}, "unknown is 1, its outcomes give 0"),
        ({"order": ("bug-b", "bug-a")}, "canonical order"),
        ({"outcomes": build.rollouts("x", "unresolved")}, "decision is 'accept', its outcomes give 'reject'"),
        ({"outcomes": build.rollouts("x", "resolved", first=5)[::-1]}, "canonical order"),
    ],
)
def test_a_verdict_that_does_not_follow_is_found(
    changes: dict[str, object], message: str, bank_dir: Path, accept: list[Entry]
) -> None:
    """The chain is intact and all files agree: only deciding anew can tell."""
    forge(bank_dir, [*accept[:-1], _change(accept[-1], **changes)])
    found = errors(bank_dir)
    assert {(f.file, f.place) for f in found} == {("ledger.jsonl", "line 6")}
    assert any(message in f.message for f in found), found


def test_a_made_up_rejection_is_found(bank_dir: Path, accept: list[Entry]) -> None:
    """Refusing what would have passed is as wrong as the reverse."""
    last = accept[-1]
    assert isinstance(last, Judged)
    rejected = replace(last, bank_after=last.verdict.bank_hash)
    forge(bank_dir, [*accept[:-1], _change(rejected, decision="reject")])
    assert any("decision is 'reject', its outcomes give 'accept'" in f.message for f in errors(bank_dir))


def test_an_illegal_history_is_found(bank_dir: Path) -> None:
    """Lines that chain but may not follow one another."""
    lines = (bank_dir / "ledger.jsonl").read_bytes().splitlines()
    head = ledger.parse(lines[0] + b"\n", "x").lines[0]
    orphan = build.accepted()[-1]
    (bank_dir / "ledger.jsonl").write_bytes(lines[0] + b"\n" + ledger.encode(1, head.hash, head.bank, orphan) + b"\n")
    (found,) = [f for f in errors(bank_dir) if f.file == "ledger.jsonl"]
    assert "line 2: about epoch 1, but the open one is none" in found.message


def test_a_bank_that_replay_does_not_give_is_found(bank_dir: Path) -> None:
    """A line that names another bank than its entry leads to."""
    lines = (bank_dir / "ledger.jsonl").read_bytes().splitlines()
    last = ledger.parse(b"\n".join(lines) + b"\n", "x").lines[-2]
    wrong = ledger.encode(5, last.hash, "0" * 64, build.accepted()[-1])
    (bank_dir / "ledger.jsonl").write_bytes(b"\n".join([*lines[:-1], wrong]) + b"\n")
    assert any("line 6: names bank 000000000000, replay gives" in f.message for f in errors(bank_dir))


SMALL: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "torn": (lambda p: (p / "ledger.jsonl").open("ab").write(b'{"half'), "ledger.jsonl", "incomplete line"),
    "bank gone": (lambda p: (p / "bank.json").unlink(), "bank.json", "missing"),
    "panel gone": (lambda p: (p / "panel.json").unlink(), "panel.json", "missing"),
}


@pytest.mark.parametrize("name", SMALL)
def test_what_the_next_write_repairs_is_a_warning(name: str, bank_dir: Path) -> None:
    spoil, file, message = SMALL[name]
    spoil(bank_dir)
    (found,) = verify(bank_dir)
    assert (found.level, found.file) == ("warning", file)
    assert message in found.message
    BankStore.open(bank_dir).append(Proposed(proposal=Proposal(task_id="later")))
    assert verify(bank_dir) == []


def test_a_bank_file_from_before_is_a_warning_unless_it_lies(bank_dir: Path) -> None:
    old = (bank_dir / "bank.json").read_bytes()
    BankStore.open(bank_dir).append(Proposed(proposal=Proposal(task_id="later")))
    (bank_dir / "bank.json").write_bytes(old)
    (found,) = verify(bank_dir)
    assert (found.level, found.message[:20]) == ("warning", "ends at line 6 of 7 ")
    (bank_dir / "bank.json").write_bytes(old.replace(b"Convert", b"Deleted"))
    assert errors(bank_dir)


def test_the_right_bank_in_other_bytes_is_found(bank_dir: Path) -> None:
    path = bank_dir / "bank.json"
    path.write_bytes(path.read_bytes().replace(b"  ", b"    "))
    (found,) = errors(bank_dir)
    assert found.message.startswith("has the right bank, but not the bytes that were written")


FAULTS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "a ledger line": ("ledger.jsonl", lambda b: b.replace(b"first", b"First")),
    "a bank that is not UTF-8": ("bank.json", lambda b: b.replace(b"Convert", b"\xff\xfe")),
    "a bank that is no JSON": ("bank.json", lambda b: b[:-10]),
    "another bank": ("bank.json", lambda b: b.replace(b"Convert", b"Deleted")),
    "settings that are no TOML": ("valve.toml", lambda b: b"rho = "),
}


@pytest.mark.parametrize("name", FAULTS)
def test_one_fault_is_one_error_with_its_place_once_and_a_way_out(name: str, bank_dir: Path) -> None:
    file, spoil = FAULTS[name]
    path = bank_dir / file
    path.write_bytes(spoil(path.read_bytes()))
    (found,) = errors(bank_dir)
    assert found.file == file
    assert f"{file}: " not in found.message
    assert any(way in found.message for way in ("restore", "the next write makes it again")), found.message
    assert "?;" not in found.message
