"""What this machine keeps: nothing lost, whoever else writes."""

from __future__ import annotations

import shutil
import stat
import threading
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests import strategies
from tests.bank import build
from valve_plugin.bank.local import LocalStore, local_store
from valve_plugin.bank.store import BankStore
from valve_plugin.errors import BankError, BankNotFoundError, RecordError
from valve_plugin.paths import local_dir
from valve_plugin.records import Attempt, Context

FORK = get_context("fork")


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "local")


def attempt(id_: str = "a", task: str = "t", at: float = 0.0) -> Attempt:
    return Attempt(id=id_, task_id=task, ordinal=0, source="live", outcome="ungraded", recorded_at=at)


class TestAttempts:
    @strategies.few
    @given(found=st.lists(st.tuples(strategies.attempts, st.none() | st.binary(max_size=100)), max_size=6))
    def test_all_are_kept_with_their_trajectories(
        self, tmp_path_factory: pytest.TempPathFactory, found: list[tuple[Attempt, bytes | None]]
    ) -> None:
        store = LocalStore(tmp_path_factory.mktemp("local"))
        kept = [(store.add_attempt(a, data), data) for a, data in found]
        everything = store.attempts()
        assert {repr(a) for a, _ in kept} == {repr(a) for a in everything}
        for a, data in kept:
            assert replace(a, trajectory="") in [replace(b, trajectory="") for b, _ in found]
            if data is None:
                with pytest.raises(BankNotFoundError, match="has no trajectory"):
                    store.trajectory(a)
            else:
                assert store.trajectory(a) == data
        by_task = [a for task in {a.task_id for a in everything} for a in store.attempts(task)]
        assert sorted(map(repr, by_task)) == sorted(map(repr, everything))
        assert store.warnings == []

    @strategies.few
    @given(made=st.lists(st.tuples(strategies.attempts, st.sampled_from(["asked", "early", "early, asked later"]))))
    def test_what_nobody_asked_for_is_kept_apart_until_somebody_does(
        self, tmp_path_factory: pytest.TempPathFactory, made: list[tuple[Attempt, str]]
    ) -> None:
        made = list({a.id: (a, how) for a, how in made}.values())
        store = LocalStore(tmp_path_factory.mktemp("local"))
        for a, how in made:
            kept = store.add_attempt(a, b"x", early=how != "asked")
            for _ in range(2 * (how != "early")):  # once or again, from the journal
                store.use(kept)
        assert {a.id for a in store.attempts()} == {a.id for a, how in made if how != "early"}
        assert {a.id for a in store.unused()} == {a.id for a, how in made if how == "early"}
        assert len(store.attempts()) + len(store.unused()) == len(made)

    def test_an_early_failure_is_not_taken_for_the_rollout_that_was_asked_for(self, store: LocalStore) -> None:
        store.add_attempt(replace(attempt(at=1.0), outcome="errored"), early=True)
        store.use(store.add_attempt(replace(attempt(at=2.0), outcome="resolved")))
        assert [a.outcome for a in store.attempts()] == ["resolved"]
        assert [a.outcome for a in store.unused()] == ["errored"]

    def test_another_attempt_under_the_same_id_is_kept_too(self, store: LocalStore) -> None:
        store.add_attempt(attempt(at=1.0), b"one")
        store.add_attempt(attempt(at=2.0), b"two")
        assert [store.trajectory(a) for a in store.attempts()] == [b"one", b"two"]

    def test_trajectories_are_compressed_and_private(self, store: LocalStore) -> None:
        kept = store.add_attempt(attempt(), b"the same again, " * 10_000)
        path = store.dir / "trajectories" / kept.trajectory
        assert path.stat().st_size < 2000
        assert stat.S_IMODE(store.dir.stat().st_mode) == 0o700

    @pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "", "."])
    def test_a_trajectory_is_a_name_not_a_path(self, store: LocalStore, name: str) -> None:
        with pytest.raises(BankError):
            store.trajectory(replace(attempt(), trajectory=name))

    @pytest.mark.parametrize("spoil", [lambda b: b[:-3], lambda b: b[:1], lambda b: b"", lambda b: b"x" + b])
    def test_a_damaged_trajectory_says_so(self, store: LocalStore, spoil: object) -> None:
        kept = store.add_attempt(attempt(), b"0123456789" * 100)
        path = store.dir / "trajectories" / kept.trajectory
        path.write_bytes(spoil(path.read_bytes()))  # type: ignore[operator]
        with pytest.raises(BankError, match="delete it"):
            store.trajectory(kept)

    def test_a_damaged_attempt_does_not_hide_the_others(self, store: LocalStore) -> None:
        store.add_attempt(attempt("a"))
        store.add_attempt(attempt("b"))
        (store.dir / "attempts" / "t" / "a.json").write_bytes(b'{"id"')
        assert [a.id for a in store.attempts()] == ["b"]
        assert "a.json" in store.warnings[0]
        assert "delete the file" in store.warnings[0]

    def test_what_could_not_be_read_back_is_refused(self, store: LocalStore) -> None:
        for wrong in (replace(attempt(), patch="\ud800"), replace(attempt(), steps=-1)):
            with pytest.raises(RecordError):
                store.add_attempt(wrong)
            with pytest.raises(RecordError):
                store.journal_put("key", wrong)
        assert store.attempts() == []


class TestJournal:
    @strategies.few
    @given(rollouts=st.dictionaries(st.text(max_size=40), strategies.attempts, max_size=5))
    def test_what_was_put_is_got(self, tmp_path_factory: pytest.TempPathFactory, rollouts: dict[str, Attempt]) -> None:
        store = LocalStore(tmp_path_factory.mktemp("local"))
        keys = {key for key in rollouts if key.isprintable()}
        for key in keys:
            assert store.journal_get(key) is None
            store.journal_put(key, rollouts[key])
        assert {key: LocalStore(store.dir).journal_get(key) for key in keys} == {key: rollouts[key] for key in keys}

    def test_a_damaged_rollout_runs_again(self, store: LocalStore) -> None:
        store.journal_put("ab12", attempt())
        (store.dir / "journal" / "ab" / "ab12.json").write_bytes(b"\xff")
        assert store.journal_get("ab12") is None
        assert len(store.warnings) == 1


class TestQueue:
    @strategies.few
    @given(steps=st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=25))
    def test_it_is_first_in_first_out(self, tmp_path_factory: pytest.TempPathFactory, steps: list[int | None]) -> None:
        """Against a plain list: None pushes, a number finishes that place of the queue."""
        store = LocalStore(tmp_path_factory.mktemp("local"))
        model: list[tuple[str, int]] = []
        for number, step in enumerate(steps):
            if step is None:
                model.append((store.queue_push({"n": number}), number))
            elif step < len(model):
                store.queue_done(model.pop(step)[0])
            assert store.queue() == [{"id": id_, "n": n} for id_, n in model]
        assert len(list((store.dir / "queue").glob("*"))) <= len(model) + 1

    def test_a_number_is_not_given_twice(self, store: LocalStore) -> None:
        first = store.queue_push({})
        store.queue_done(first)
        second = store.queue_push({})
        store.queue_done(first)  # by somebody who was slow
        assert [job["id"] for job in store.queue()] == [second]


def _use(path: Path, worker: int, count: int) -> None:
    store = LocalStore(path)
    for number in range(count):
        store.add_attempt(attempt(f"{worker}-{number}", task=f"t{number}"), f"{worker} {number}".encode())
        store.queue_push({"worker": worker, "n": number})
        store.count_use(Context(text="", items=(("skill", "shared"), ("principle", f"own-{worker}"))))
        store.write_telemetry("run", {"worker": worker})


@pytest.mark.parametrize("make", [FORK.Process, threading.Thread])
def test_eight_at_once_lose_nothing(store: LocalStore, make: type[threading.Thread]) -> None:
    workers = [make(target=_use, args=(store.dir, worker, 5)) for worker in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    attempts = store.attempts()
    assert {a.id for a in attempts} == {f"{w}-{n}" for w in range(8) for n in range(5)}
    assert all(store.trajectory(a) == a.id.replace("-", " ").encode() for a in attempts)
    jobs = store.queue()
    assert len(jobs) == len({job["id"] for job in jobs}) == 40
    for w in range(8):  # each writer's jobs in its order
        assert [job["n"] for job in jobs if job["worker"] == w] == [0, 1, 2, 3, 4]
    assert store.usage() == {("skill", "shared"): 40} | {("principle", f"own-{w}"): 5 for w in range(8)}
    assert store.warnings == []


def test_folders_that_are_open_to_others_are_closed_before_anything_is_written(store: LocalStore) -> None:
    for name in ("queue", "notes", "telemetry"):
        (store.dir / name).mkdir(parents=True)
        (store.dir / name).chmod(0o777)
    store.dir.chmod(0o755)
    store.remember("about", "kept")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (store.dir, store.dir / "notes")}
    assert modes == {store.dir.name: 0o700, "notes": 0o700}


def test_a_torn_use_spoils_only_itself(store: LocalStore) -> None:
    context = Context(text="", items=(("skill", "one"),))
    store.count_use(context)
    with (store.dir / "usage.jsonl").open("ab") as file:
        file.write(b'\n[["skill","o')  # what a kill leaves
    store.count_use(context)
    assert store.usage() == {("skill", "one"): 2}
    assert len(store.warnings) == 1


def test_uses_that_an_earlier_version_folded_up_count(store: LocalStore) -> None:
    store.count_use(Context(text="", items=(("skill", "one"),)))
    (store.dir / "usage-000001.jsonl").write_bytes(b'{"folded":[["skill","one",7]]}\n')
    assert (store.usage(), store.warnings) == ({("skill", "one"): 8}, [])


def test_a_bank_that_was_moved_keeps_its_local_data(tmp_path: Path, data_dir: Path) -> None:
    store = BankStore.create(tmp_path / "old" / ".valve", "acme/calc", {})
    store.local.remember("about", "kept")
    other = BankStore.create(tmp_path / "other" / ".valve", "acme/other", {})
    other.local.remember("about", "another's")
    shutil.copytree(tmp_path / "old", tmp_path / "copy")
    copied = BankStore.open(tmp_path / "copy" / ".valve")
    assert copied.local.recall("about") == "", "the bank is still where it was; the copy has data of its own"
    copied.local.remember("about", "the copy's")
    (tmp_path / "old").rename(tmp_path / "new")
    assert BankStore.open(tmp_path / "new" / ".valve").local.recall("about") == "kept"
    (tmp_path / "new").rename(tmp_path / "old")
    assert local_store(tmp_path / "old" / ".valve").recall("about") == "kept"


def test_a_moved_bank_is_known_by_its_ledger_and_only_when_that_is_certain(tmp_path: Path, data_dir: Path) -> None:
    stores = [BankStore.create(tmp_path / name, build.REPO) for name in ("a", "b")]
    for store in stores:
        for entry in build.opening():
            store.append(entry)
        store.local.remember("about", store.dir.name)
    shutil.copytree(tmp_path / "a", tmp_path / "c")
    for store in stores:
        shutil.rmtree(store.dir)
    assert not local_store(tmp_path / "c").exists, "two banks that began in the same way are gone"
    shutil.rmtree(local_dir(tmp_path / "b"))
    assert local_store(tmp_path / "c").recall("about") == "a"
    BankStore.create(tmp_path / "d", build.REPO)
    assert not local_store(tmp_path / "d").exists, "a new bank is no moved one"
