"""Truncated, malformed, hostile, huge, foreign and read-only bank directories: said clearly, and nothing written."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.bank import build
from tests.tools import TEST_ALL, need
from valve_plugin.bank import directory, ledger
from valve_plugin.bank.entries import Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.errors import BankBusyError, BankCorruptError, BankError, ConfigError, LedgerForkedError, ValveError
from valve_plugin.records import Proposal

COVERED = ("bank.json", "ledger.jsonl", "panel.json")
LATER = Proposed(proposal=Proposal(task_id="later"))


def snapshot(path: Path) -> dict[str, bytes | str]:
    """Every file but the lock."""
    return {
        p.name: os.readlink(p) if p.is_symlink() else p.read_bytes()
        for p in path.iterdir()
        if p.name != ".lock" and (p.is_symlink() or p.is_file())
    }


def read_all(path: Path) -> BankStore:
    """Ask a bank directory for everything it can tell."""
    store = BankStore.open(path)
    store.panel(), store.at(0), list(store.entries()), store.settings()
    return store


def line(number: int, spoil: Callable[[bytes], bytes] | None) -> Callable[[bytes], bytes]:
    """Spoil one line (from 0) of a file, or leave it out."""

    def spoilt(data: bytes) -> bytes:
        lines = data.splitlines(keepends=True)
        lines[number : number + 1] = [spoil(lines[number][:-1]) + b"\n"] if spoil else []
        return b"".join(lines)

    return spoilt


LEDGERS: dict[str, tuple[Callable[[bytes], bytes], type[ValveError], str]] = {
    "empty": (lambda b: b"", BankCorruptError, "no complete line"),
    "a line lost": (line(2, None), BankCorruptError, "line 3: does not follow"),
    "a byte changed": (line(2, lambda b: b.replace(b"first", b"First")), BankCorruptError, "line 4: does not follow"),
    "cut in the middle": (line(1, lambda b: b[:40]), BankCorruptError, "line 2: Input data was truncated"),
    "not UTF-8": (line(0, lambda b: b.replace(b"owner", b"\xff\xfe")), BankCorruptError, "line 1: .*(?i:utf-8)"),
    "UTF-16": (lambda b: b.decode().encode("utf-16"), BankCorruptError, "line 1: "),
    "Windows line ends": (lambda b: b.replace(b"\n", b"\r\n"), BankCorruptError, "line 1: its number, order of keys"),
    "deep nesting": (line(1, lambda b: b"[" * 200_000), BankCorruptError, "line 2: "),
    "an unknown entry": (
        line(1, lambda b: b.replace(b"panel_fixed", b"dream")),
        BankCorruptError,
        r"line 2: .*'dream'",
    ),
    "a newer version": (line(0, lambda b: b.replace(b'version":2', b'version":7')), BankError, "schema_version is 7"),
    "conflict marks": (lambda b: b + b"=======\n", LedgerForkedError, "line 7: conflict mark of git"),
    "another's lines after ours": (lambda b: b + b.splitlines(True)[-1], LedgerForkedError, "line 7: follows line 5"),
}


@pytest.mark.parametrize("name", LEDGERS)
def test_a_ledger_that_is_damaged(name: str, bank_dir: Path) -> None:
    spoil, error, place = LEDGERS[name]
    path = bank_dir / "ledger.jsonl"
    path.write_bytes(spoil(path.read_bytes()))
    (bank_dir / ".lock").unlink()  # as in a fresh clone
    before = snapshot(bank_dir)
    for use in (read_all, lambda p: BankStore.open(p).append(LATER)):
        (bank_dir / ".lock").unlink(missing_ok=True)
        with pytest.raises(error, match=place) as caught:
            use(bank_dir)
        message = str(caught.value)
        assert message.startswith(str(path))
        assert "\n" not in message
        assert len(message) < 500
        assert any(way in message for way in ("restore", "of one side", "use the version")), message
        assert not (bank_dir / ".lock").exists()
    assert snapshot(bank_dir) == before


def test_a_ledger_that_is_missing(bank_dir: Path) -> None:
    (bank_dir / "ledger.jsonl").unlink()
    before = snapshot(bank_dir)
    with pytest.raises(BankCorruptError, match=r"ledger.jsonl: missing, and bank.json alone proves nothing; restore"):
        read_all(bank_dir)
    (found,) = verify(bank_dir)
    assert (found.level, found.file) == ("error", "ledger.jsonl")
    assert found.message.startswith("missing, and bank.json alone proves nothing; restore")
    assert snapshot(bank_dir) == before


CUTS: dict[str, tuple[Callable[[bytes], bytes], int]] = {
    "at a line's end": (line(5, None), 5),
    "before the last newline": (lambda b: b[:-1], 5),
}


@pytest.mark.parametrize("name", CUTS)
def test_a_ledger_that_was_cut(name: str, bank_dir: Path) -> None:
    """No kill leaves this: `bank.json` is written only once the line it names is on disk."""
    spoil, left = CUTS[name]
    path = bank_dir / "ledger.jsonl"
    opened_before = BankStore.open(bank_dir)
    path.write_bytes(spoil(path.read_bytes()))
    (bank_dir / ".lock").unlink()
    before = snapshot(bank_dir)
    said = rf"has {left} whole lines, and bank.json names line 6, .*; restore ledger.jsonl .*, or remove bank.json to"
    for use in (read_all, lambda p: BankStore.open(p).append(LATER), lambda p: opened_before.append(LATER)):
        with pytest.raises(BankCorruptError, match=rf"ledger\.jsonl: {said}"):
            use(bank_dir)
        assert snapshot(bank_dir) == before
    (found,) = [f for f in verify(bank_dir) if f.file == "bank.json"]
    assert re.search(said, found.message)
    assert not [f for f in verify(bank_dir) if "killed" in f.message]
    (bank_dir / "bank.json").unlink()  # the way out
    assert BankStore.open(bank_dir).bank.version == 0
    opened_before.append(LATER)
    assert len(list(BankStore.open(bank_dir).entries())) == left + 1
    assert [f for f in verify(bank_dir) if f.level == "error"] == []


@pytest.mark.parametrize("left", [b"{", None])
def test_a_bank_file_that_names_no_line_leaves_a_cut_unknown_and_no_promise_is_made(
    left: bytes | None, bank_dir: Path
) -> None:
    path, bank = bank_dir / "ledger.jsonl", bank_dir / "bank.json"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    bank.unlink() if left is None else bank.write_bytes(left)
    found = [f.message for f in verify(bank_dir) if f.file == "bank.json"]
    assert found
    assert all("nobody knows whether lines are missing" in m for m in found)


def test_a_ledger_that_is_huge(bank_dir: Path) -> None:
    with (bank_dir / "ledger.jsonl").open("r+b") as file:
        file.truncate(1 << 42)  # sparse: takes no space
    with pytest.raises(BankCorruptError, match=rf"ledger has {1 << 42} bytes, expected at most \d+, .*; restore the"):
        read_all(bank_dir)


def test_a_huge_bank_file_is_passed_over_like_any_damaged_one(bank_dir: Path) -> None:
    with (bank_dir / "bank.json").open("r+b") as file:
        file.truncate(1 << 42)
    (found,) = verify(bank_dir)
    assert (found.level, found.file) == ("error", "bank.json")
    assert "; the next write makes it again from ledger.jsonl" in found.message
    store = read_all(bank_dir)
    assert store.bank.version == 1
    assert f"bank has {1 << 42} bytes" in store.warnings[0]
    store.append(LATER)
    assert BankStore.open(bank_dir).warnings == []
    assert verify(bank_dir) == []


@pytest.mark.parametrize("name", ["ledger.jsonl", "bank.json"])
def test_files_that_lead_elsewhere(name: str, bank_dir: Path, tmp_path: Path) -> None:
    """A cloned repository must not make us read or write outside its bank directory."""
    target = tmp_path / "target"
    shutil.move(bank_dir / name, target)
    (bank_dir / name).symlink_to(target)
    before = target.read_bytes()
    with pytest.raises(BankError, match=rf"{name}: .*; it is a symbolic link: put the file itself there"):
        read_all(bank_dir)
    assert target.read_bytes() == before


def test_a_linked_panel_is_replaced_and_a_linked_lock_refused(bank_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"precious")
    for name in ("panel.json", ".lock"):
        (bank_dir / name).unlink()
    (bank_dir / "panel.json").symlink_to(tmp_path / "target")
    BankStore.open(bank_dir).append(LATER)
    assert not (bank_dir / "panel.json").is_symlink()
    (bank_dir / ".lock").unlink()
    (bank_dir / ".lock").symlink_to(tmp_path / "target")
    with pytest.raises(BankError, match="symbolic link, expected a lock file; delete it"):
        BankStore.open(bank_dir).append(LATER)
    assert (tmp_path / "target").read_bytes() == b"precious"


def test_a_settings_file_that_is_damaged(bank_dir: Path) -> None:
    for data, place in (
        (b"rho = ", "not valid TOML"),
        (b"\xff", "not UTF-8 text at byte 1; save it as UTF-8"),
        (b"roh = '1'", "did you mean 'rho'"),
    ):
        (bank_dir / "valve.toml").write_bytes(data)
        with pytest.raises(ConfigError, match=f"valve.toml: .*{place}"):
            read_all(bank_dir)


@given(
    name=st.sampled_from([*COVERED, "valve.toml"]),
    cuts=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40), st.binary(max_size=40)), min_size=1, max_size=3),
)
@settings(max_examples=150 if TEST_ALL else 40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_bytes_the_answer_is_a_clear_error_or_the_right_bank(
    name: str, cuts: list[tuple[float, int, bytes]], bank_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trial = tmp_path_factory.mktemp("trials") / "trial"
    shutil.copytree(bank_dir, trial)
    data = (trial / name).read_bytes()
    for where, length, new in cuts:
        at = int(where * len(data))
        data = data[:at] + new + data[at + length :]
    (trial / name).write_bytes(data)
    try:
        store = read_all(trial)
    except ValveError as e:
        message = str(e)
    else:
        message = name
        known = [json.loads(raw)["bank"] for raw in (bank_dir / "ledger.jsonl").read_bytes().splitlines()]
        last_line_changed = name == "ledger.jsonl" and store.warnings
        assert store.bank.hash in known or last_line_changed
    assert name in message


READ = """
import sys
from pathlib import Path
from valve_plugin.bank.entries import Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.errors import BankError
from valve_plugin.records import Proposal
store = BankStore.open(Path(sys.argv[1]))
print(store.bank.version, store.queries_used(), len(store.local.attempts()), len(store.warnings))
for write in (
    lambda: store.append(Proposed(proposal=Proposal(task_id="t"))),
    lambda: store.local.queue_push({}),
    lambda: store.lease().__enter__(),
):
    try:
        write()
    except BankError as e:
        print(e)
"""


@pytest.mark.parametrize("torn", [False, True])
def test_a_directory_on_a_read_only_file_system_can_be_read(torn: bool, bank_dir: Path) -> None:
    """By bubblewrap: everything, user data included, is mounted read-only."""
    if torn:
        with (bank_dir / "ledger.jsonl").open("ab") as file:
            file.write(b'{"half')
    before = snapshot(bank_dir)
    command = [need("bwrap"), "--ro-bind", "/", "/", "--dev", "/dev", sys.executable, "-c", READ, str(bank_dir)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, *errors = done.stdout.splitlines()
    assert first == f"1 1 0 {int(torn)}"
    assert len(errors) == 3
    assert all("read-only file system: choose another place with --bank" in e for e in errors)
    assert snapshot(bank_dir) == before


def test_a_writer_that_hangs_is_reported(bank_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = BankStore.open(bank_dir), BankStore.open(bank_dir)
    real = theirs._files.locked
    monkeypatch.setattr(theirs._files, "locked", lambda timeout=0.1: real(0.1))
    with ours._files.locked(), pytest.raises(BankBusyError, match="another process is writing this bank; try again"):
        theirs.append(LATER)


def test_limits_leave_room(bank_dir: Path) -> None:
    """The limits are for what is absurd, not for what is merely large: a thousand gates on the paper's panel."""
    size = max(len(raw) for raw in (bank_dir / "ledger.jsonl").read_bytes().splitlines())
    rollouts = len(build.TASKS) * build.PANEL.rollouts
    assert size / rollouts * 150 * 1000 < ledger.MAX_BYTES
    assert directory.MAX_BYTES > 5000 * 13_000
