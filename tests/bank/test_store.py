"""The bank directory as the rest of the program sees it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import strategies
from tests.bank import build
from tests.strategies import Story
from valve_plugin import config, files
from valve_plugin.bank import directory, ledger
from valve_plugin.bank.entries import Entry, Proposed
from valve_plugin.bank.local import LocalStore
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.codec import parse_toml, pretty
from valve_plugin.errors import (
    BankBusyError,
    BankCorruptError,
    BankError,
    BankNotFoundError,
    ConfigError,
    RecordError,
    StaleVerdictError,
)
from valve_plugin.records import Bank, Proposal

TOML_VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | strategies.texts(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strategies.texts(), inner, max_size=3),
    max_leaves=6,
)
FORK = get_context("fork")  # children share the parent's imports: these tests start many


def proposed(number: int) -> Proposed:
    return Proposed(proposal=Proposal(task_id=f"task-{number}", reason="nothing to learn"))


def snapshot(path: Path) -> dict[str, bytes]:
    """Every file of a directory but the lock, which says nothing."""
    return {p.name: p.read_bytes() for p in path.iterdir() if p.name != ".lock"}


class TestRoundTrip:
    @given(story=strategies.stories())
    @settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_any_history_written_is_the_history_read(
        self, story: Story, tmp_path_factory: pytest.TempPathFactory, data_dir: Path
    ) -> None:
        path = tmp_path_factory.mktemp("banks") / "bank"
        writer = BankStore.create(path, story.banks[0].repo)
        for entry in story.entries[1:]:
            writer.append(entry)
        reader = BankStore.open(path)
        for store in (writer, reader):
            assert list(store.entries()) == story.entries
            assert store.bank == story.banks[-1]
            assert [store.at(v) for v in range(len(story.banks))] == story.banks
            assert (store.panel(), store.epoch(), store.queries_used(), store.current_outcomes()) == story[2:]
            assert len(store.warnings) == sum(bool(item.hidden) for item in store.bank.items) * (store is reader)
        assert writer.head == reader.head
        assert verify(path) == []


class TestCreate:
    @given(kwargs=st.dictionaries(strategies.texts(), TOML_VALUES, max_size=4), command=strategies.texts())
    def test_any_settings_come_back(self, kwargs: dict[str, Any], command: str) -> None:
        text = config.to_toml({"model_kwargs": kwargs, "test_command": command, "workers": 3})
        assert parse_toml(text) == {"model_kwargs": kwargs, "test_command": command, "workers": 3}

    @pytest.mark.parametrize("value", [[None], float("nan"), "\ud800", float("inf")])
    def test_what_toml_cannot_say_writes_nothing(self, value: object, tmp_path: Path, data_dir: Path) -> None:
        with pytest.raises(ConfigError, match=r"model_kwargs is .* cannot be written as TOML"):
            BankStore.create(tmp_path / "b", "o/n", {"model_kwargs": {"x": value}})
        assert list(tmp_path.iterdir()) == []

    def test_a_bank_is_never_replaced(self, bank_dir: Path) -> None:
        before = snapshot(bank_dir)
        with pytest.raises(BankError, match="there is a bank already"):
            BankStore.create(bank_dir, "other/repo")
        assert snapshot(bank_dir) == before

    def test_a_settings_file_of_the_person_is_kept_and_said(self, tmp_path: Path, data_dir: Path) -> None:
        (tmp_path / "valve.toml").write_text("# mine\nrho = '0.3'\n")
        store = BankStore.create(tmp_path, "o/n", {"rho": "0.1"})
        assert store.settings().rho == "0.3"
        assert "is kept" in store.warnings[0]


class TestOpen:
    def test_where_there_is_nothing(self, tmp_path: Path, data_dir: Path) -> None:
        for path in (tmp_path, tmp_path / "no" / "such"):
            with pytest.raises(BankNotFoundError, match="make one with `valve init"):
                BankStore.open(path)
        assert list(tmp_path.iterdir()) == []

    def test_reading_writes_nothing(self, bank_dir: Path, data_dir: Path) -> None:
        before, data = snapshot(bank_dir), sorted(data_dir.rglob("*"))
        store = BankStore.open(bank_dir)
        store.at(0), store.panel(), list(store.entries()), store.local.attempts(), store.settings()
        assert snapshot(bank_dir) == before
        assert sorted(data_dir.rglob("*")) == data

    def test_only_the_end_of_the_ledger_is_looked_at_when_all_is_well(
        self, bank_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def not_now(*_: object) -> None:
            raise AssertionError("the whole ledger was parsed")

        monkeypatch.setattr(ledger, "parse", not_now)
        assert BankStore.open(bank_dir).bank.version == 1

    def test_a_bank_that_came_from_elsewhere_is_replayed_once(
        self, bank_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = shutil.copytree(bank_dir, bank_dir.with_name("other"))
        parsed: list[object] = []
        parse = ledger.parse
        monkeypatch.setattr(ledger, "parse", lambda *args: (parsed.append(args), parse(*args))[1])
        assert BankStore.open(other).bank == BankStore.open(other).bank == BankStore.open(bank_dir).bank
        assert len(parsed) == 1

    def test_a_forged_note_is_never_used(self, bank_dir: Path) -> None:
        """`bank.json` and the last line agree with each other, but not with the lines before."""
        bank = BankStore.open(bank_dir).bank
        forged = replace(bank, skills=(replace(bank.skills[0], markdown="forged"), *bank.skills[1:]))
        *lines, last = (bank_dir / "ledger.jsonl").read_bytes().splitlines()
        new = last.replace(bank.hash.encode(), forged.hash.encode(), 1)
        head = directory.Head(seq=len(lines), hash=ledger.line_hash(new))
        (bank_dir / "ledger.jsonl").write_bytes(b"\n".join([*lines, new, b""]))
        (bank_dir / "bank.json").write_bytes(directory.render_bank_file(forged, head))
        for _ in range(2):
            with pytest.raises(BankCorruptError, match="replay gives"):
                BankStore.open(bank_dir)

    def test_a_change_in_the_middle_is_refused_each_time_also_by_an_open_store(self, bank_dir: Path) -> None:
        store, path = BankStore.open(bank_dir), bank_dir / "ledger.jsonl"
        assert store.epoch()
        assert list(store.entries())
        data, stat = path.read_bytes(), path.stat()
        path.write_bytes(data.replace(b'"horizon":100', b'"horizon":900'))
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        damaged = snapshot(bank_dir)
        uses = [store.refresh, lambda: list(store.entries()), lambda: store.append(proposed(1))]
        for use in [*uses, *uses, lambda: BankStore.open(bank_dir)]:
            with pytest.raises(BankCorruptError):
                use()
        assert snapshot(bank_dir) == damaged
        path.write_bytes(data)
        store.append(proposed(1))
        assert len(list(store.entries())) == data.count(b"\n") + 1

    def test_an_outline_and_the_bank_are_of_one_moment(self, bank_dir: Path) -> None:
        store = BankStore.open(bank_dir)
        BankStore.open(bank_dir).append(build.removal())
        assert "owner_act" in store.outline().types
        assert (store.head, store.bank) == ((other := BankStore.open(bank_dir)).head, other.bank)

    def test_a_ledger_of_another_version(self, bank_dir: Path) -> None:
        path = bank_dir / "bank.json"
        path.write_bytes(path.read_bytes().replace(b'"schema_version": 2', b'"schema_version": 3'))
        before = snapshot(bank_dir)
        with pytest.raises(BankError, match=r"bank.json: schema_version is 3, this valve reads 1 and 2; use"):
            BankStore.open(bank_dir)
        assert snapshot(bank_dir) == before


@pytest.mark.parametrize("step", ["ledger.jsonl", "bank.json"])
def test_a_reader_waits_for_the_writer_rather_than_warn(step: str, bank_dir: Path) -> None:
    """The writer is held up just after it wrote `step`, or before; the reader must see one state, and be silent."""
    writing, read = FORK.Event(), FORK.Event()
    process = FORK.Process(target=_append_slowly, args=(bank_dir, step, writing, read))
    process.start()
    assert writing.wait(30)
    timer = threading.Timer(0.2, read.set)  # lets the writer go on while the reader waits
    timer.start()
    store = BankStore.open(bank_dir)
    process.join()
    timer.join()
    assert store.warnings == []
    assert list(store.entries())[-1] == proposed(1)


def _append_slowly(path: Path, step: str, writing: Event, read: Event) -> None:
    real = files.write_atomic

    def slow(target: Path, data: bytes) -> None:
        if target.name == step or step == "ledger.jsonl":  # the first file made after the ledger's line
            writing.set()
            assert read.wait(30)
        real(target, data)

    files.write_atomic = slow
    BankStore.open(path).append(proposed(1))


class TestLedgerWins:
    """`bank.json` is a cache."""

    def spoil(self, bank_dir: Path, data: bytes | None) -> BankStore:
        path = bank_dir / "bank.json"
        path.unlink() if data is None else path.write_bytes(data)
        store = BankStore.open(bank_dir)
        assert store.bank.skills[0].name == build.item(1000).name
        assert store.bank.version == 1
        return store

    @pytest.mark.parametrize("data", [None, b"{", b"\xff\xfe", b"<<<<<<< HEAD\n", b"[" * 100_000])
    def test_over_what_cannot_be_read(self, bank_dir: Path, data: bytes | None) -> None:
        store = self.spoil(bank_dir, data)
        assert len(store.warnings) == 1
        assert "bank.json" in store.warnings[0]
        assert "the next write makes the file again" in store.warnings[0]
        store.append(proposed(1))
        again = BankStore.open(bank_dir)
        assert (again.bank, again.warnings) == (store.bank, [])

    def test_over_an_edit_by_hand(self, bank_dir: Path) -> None:
        edited = (bank_dir / "bank.json").read_bytes().replace(b"Convert both sides", b"Delete all tests")
        store = self.spoil(bank_dir, edited)
        assert "is not what ledger.jsonl gives" in store.warnings[0]
        store.append(proposed(1))
        assert b"Delete" not in (bank_dir / "bank.json").read_bytes()

    def test_over_a_bank_from_before(self, bank_dir: Path) -> None:
        old = (bank_dir / "bank.json").read_bytes()
        BankStore.open(bank_dir).append(proposed(1))
        assert "it is of line 6 of 7" in self.spoil(bank_dir, old).warnings[0]

    def test_panel_json_is_made_again(self, bank_dir: Path) -> None:
        (bank_dir / "panel.json").write_bytes(b"{}")
        store = BankStore.open(bank_dir)
        assert store.panel() == build.PANEL
        store.append(proposed(1))
        assert (bank_dir / "panel.json").read_bytes() == pretty(build.PANEL)

    def test_a_cache_that_cannot_be_written_is_a_warning(self, bank_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The entry is in the ledger: saying that it failed would be wrong."""

        def full(path: Path, data: bytes) -> None:
            raise BankError(f"{path}: cannot write: No space left on device")

        store = BankStore.open(bank_dir)
        with monkeypatch.context() as patch:
            patch.setattr(files, "write_atomic", full)
            store.append(proposed(1))
        assert "No space left" in store.warnings[0]
        assert list(BankStore.open(bank_dir).entries())[-1] == proposed(1)


class TestTorn:
    @pytest.mark.parametrize("rest", [b"{", b'{"bank":"', b"\xff" * 1000, b"x" * 100_000])
    def test_an_unfinished_line_is_set_aside_and_reported(self, bank_dir: Path, rest: bytes) -> None:
        path = bank_dir / "ledger.jsonl"
        whole = path.read_bytes()
        path.write_bytes(whole + rest)
        store = BankStore.open(bank_dir)
        assert store.bank.version == 1
        (aside,) = bank_dir.glob("ledger.jsonl.aside-*")
        assert aside.read_bytes() == rest
        assert path.read_bytes() == whole
        assert len(store.warnings) == 1
        assert f"those {len(rest)} bytes are kept in {aside.name}" in store.warnings[0]
        assert verify(bank_dir) == []

    def test_a_line_without_its_newline_was_never_acknowledged(self, bank_dir: Path, accept: list[Entry]) -> None:
        """As by a kill in the middle of the write: `bank.json` is still the one from before."""
        path = bank_dir / "ledger.jsonl"
        lines = path.read_bytes().splitlines()
        bank = Bank(repo=build.REPO)
        head = directory.Head(seq=4, hash=ledger.line_hash(lines[4]))
        (bank_dir / "bank.json").write_bytes(directory.render_bank_file(bank, head))
        path.write_bytes(path.read_bytes()[:-1])
        store = BankStore.open(bank_dir)
        assert store.bank == bank
        assert list(store.entries()) == accept[:-1]
        assert len(store.warnings) == 1

    def test_nothing_is_touched_when_more_than_the_end_is_damaged(self, bank_dir: Path) -> None:
        """Seen by a writer that read the directory when all was well."""
        store = BankStore.open(bank_dir)
        assert store.queries_used() == 1
        path = bank_dir / "ledger.jsonl"
        path.write_bytes(path.read_bytes().replace(b"first", b"First") + b'{"half')
        before = snapshot(bank_dir)
        with pytest.raises(BankCorruptError, match="line 4: does not follow"):
            store.append(proposed(1))
        assert snapshot(bank_dir) == before

    def test_a_busy_writer_is_not_disturbed(self, bank_dir: Path) -> None:
        """What looks torn may be a line that is being written right now."""
        path = bank_dir / "ledger.jsonl"
        path.write_bytes(path.read_bytes() + b'{"half')
        writer = BankStore.open(bank_dir)
        path.write_bytes(path.read_bytes() + b'{"half')
        before = snapshot(bank_dir)
        with writer._files.locked():
            reader = BankStore.open(bank_dir)
        assert reader.bank.version == 1
        assert "was ignored and left in place" in reader.warnings[0]
        assert snapshot(bank_dir) == before


class TestAppend:
    def test_two_writers_see_each_other(self, tmp_path: Path, data_dir: Path) -> None:
        """The second accept was judged against a bank that the first one changed."""
        ours = BankStore.create(tmp_path / "b", build.REPO)
        theirs = BankStore.open(tmp_path / "b")
        for entry in build.opening():
            ours.append(entry)
        first, second = (build.accepting(ours.bank, build.proposal(n)) for n in (1, 2))
        theirs.append(first[0])
        ours.append(second[0])
        theirs.append(first[1])
        with pytest.raises(StaleVerdictError):
            ours.append(second[1])
        ours.refresh()
        assert ours.bank == theirs.bank
        assert ours.bank.version == 1

    def test_an_unsound_verdict_is_never_written(self, bank_dir: Path) -> None:
        store = BankStore.open(bank_dir)
        move = build.proposal(2)
        store.append(Proposed(proposal=move))
        before = snapshot(bank_dir)
        sound = build.judged(store.bank, move, 2, 4, ())  # all is resolved now: nothing can be better
        more = build.rollouts("b", "unresolved")[:1]
        for change in ({"needed": 0}, {"candidate_passes": 1}, {"current_passes": 0}, {"outcomes": more}):
            entry = replace(sound, verdict=replace(sound.verdict, **change))
            with pytest.raises(RecordError, match="is not sound"):
                store.append(entry)
        assert snapshot(bank_dir) == before
        store.append(sound)
        assert store.queries_used() == 2

    def test_there_is_no_version_before_the_first_or_after_the_last(self, bank_dir: Path) -> None:
        store = BankStore.open(bank_dir)
        for version in (-1, 2):
            with pytest.raises(BankNotFoundError, match=f"no version {version}; the bank has versions 0 to 1"):
                store.at(version)

    def test_a_failed_write_leaves_no_trace(self, bank_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        store = BankStore.open(bank_dir)
        before = snapshot(bank_dir)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", _full_disk)
            with pytest.raises(BankError, match=r"ledger\.jsonl: cannot append: No space left on device; free some"):
                store.append(proposed(1))
        assert snapshot(bank_dir) == before
        store.append(proposed(1))
        assert list(store.entries())[-1] == proposed(1)

    def test_an_interrupt_after_the_write_keeps_the_store_usable(
        self, bank_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = BankStore.open(bank_dir)
        assert store.epoch()
        with monkeypatch.context() as patch:
            patch.setattr(ledger, "line_hash", _interrupt)
            with pytest.raises(KeyboardInterrupt):
                store.append(proposed(1))
        store.append(proposed(2))
        assert list(store.entries())[-2:] == [proposed(1), proposed(2)]
        assert verify(bank_dir) == []


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _full_disk(fd: int) -> None:
    raise OSError(28, "No space left on device")


def _append_some(path: Path, worker: int, count: int) -> None:
    store = BankStore.open(path)
    for number in range(count):
        store.append(proposed(worker * 1000 + number))


def test_many_processes_append_at_once(bank_dir: Path) -> None:
    workers = [FORK.Process(target=_append_some, args=(bank_dir, worker, 10)) for worker in range(4)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
        assert process.exitcode == 0
    found = [e for e in BankStore.open(bank_dir).entries() if isinstance(e, Proposed)]
    for worker in range(4):  # all kept, each writer's in its order
        expected = [proposed(worker * 1000 + number) for number in range(10)]
        assert [e for e in found if e in expected] == expected
    assert len(found) == 1 + 40
    assert verify(bank_dir) == []


class TestLease:
    def test_one_at_a_time(self, bank_dir: Path) -> None:
        ours, theirs = BankStore.open(bank_dir), BankStore.open(bank_dir)
        with ours.lease():
            with pytest.raises(BankBusyError, match=f"process {os.getpid()} is evolving"), theirs.lease():
                pass
            theirs.append(proposed(1))  # recording goes on
        with theirs.lease():
            pass

    def test_it_ends_with_its_process_however_that_ends(self, bank_dir: Path) -> None:
        holding = FORK.Event()
        process = FORK.Process(target=_hold, args=(bank_dir, holding))
        process.start()
        assert holding.wait(30)
        store = BankStore.open(bank_dir)
        with pytest.raises(BankBusyError, match=f"process {process.pid} "), store.lease():
            pass
        process.kill()
        process.join()
        with store.lease():
            assert (bank_dir / ".lease-holder").read_text() == str(os.getpid())
        assert not (bank_dir / ".lease-holder").exists()


def _hold(path: Path, holding: Event) -> None:
    with BankStore.open(path).lease():
        holding.set()
        FORK.Event().wait(60)


def test_a_bank_where_another_one_was_starts_with_nothing_of_it(tmp_path: Path) -> None:
    for number in range(3):
        store = BankStore.create(tmp_path / "bank", "owner/name")
        assert (store.local.queue(), store.local.recall("tasks")) == ([], "")
        store.local.queue_push({"job": number})
        store.local.remember("tasks", "somewhere")
        assert len(store.warnings) == bool(number)
        shutil.rmtree(tmp_path / "bank")
    aside = sorted(store.local.dir.parent.glob(f"{store.local.dir.name}.before-*"))
    assert [len(LocalStore(path).queue()) for path in aside] == [1, 1], "moved, not deleted"


HEAVY = ("jsonschema", "numpy", "litellm", "filelock", "asyncio", "subprocess", "valve_plugin.theory")


def test_reading_imports_nothing_heavy(bank_dir: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from valve_plugin.bank.store import BankStore
from valve_plugin.records import Attempt, Context
store = BankStore.open(Path({str(bank_dir)!r}))
store.local.add_attempt(Attempt(id="a", task_id="t", ordinal=0, source="live", outcome="ungraded"), b"trajectory")
store.local.count_use(Context(text=""))
store.local.queue_push({{"kind": "extract"}})
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr
