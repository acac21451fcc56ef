"""Killed at any instant: the directory always loads, and nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.bank import build
from tests.bank.crash import every_point
from valve_plugin.bank.entries import Baseline, Entry, EpochOpened, PanelFixed, Proposed, makes_version
from valve_plugin.bank.local import LocalStore
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.errors import BankNotFoundError, StaleVerdictError
from valve_plugin.records import Attempt, Bank, Context, PanelResult, Proposal

LATER = Proposed(proposal=Proposal(task_id="later"))


def _accept() -> Entry:
    return build.accepted()[-1]


APPENDS: dict[str, tuple[list[Entry], Entry]] = {
    "proposal": (build.accepted()[1:], Proposed(proposal=build.proposal(2))),
    "accept": (build.accepted()[1:-1], _accept()),
    "panel": ([], PanelFixed(panel=build.PANEL)),
    "epoch": (build.opening()[:1], build.opening()[1]),
    "owner's act": (build.accepted()[1:], build.removal()),
    "baseline": (build.opening()[:2], build.opening()[2]),
}
SPOILT: dict[str, Callable[[Path], object]] = {
    "clean": lambda path: None,
    "torn": lambda path: (path / "ledger.jsonl").open("ab").write(b'{"half a li'),
    "foreign": lambda path: (path / "bank.json").write_bytes(b"{}"),
}


@pytest.mark.parametrize(
    ("kind", "state"), [*((kind, "clean") for kind in APPENDS), ("accept", "torn"), ("accept", "foreign")]
)
def test_an_append_killed_at_any_system_call(kind: str, state: str, tmp_path: Path, data_dir: Path) -> None:
    before, entry = APPENDS[kind]
    store = BankStore.create(tmp_path / "bank", build.REPO)
    for earlier in before:
        store.append(earlier)
    known = [*store.entries(), entry]
    SPOILT[state](store.dir)
    trial = tmp_path / "trial"

    def prepare() -> Callable[[], object]:
        shutil.rmtree(trial, ignore_errors=True)
        shutil.copytree(store.dir, trial)
        return lambda: BankStore.open(trial).append(entry)

    seen = set()
    for _ in every_point(prepare):
        after = BankStore.open(trial)
        found = list(after.entries())
        assert found in (known[:-1], known)  # all of it or nothing
        seen.add(len(found) == len(known))
        assert after.bank.version == sum(map(makes_version, found))
        after.append(LATER)
        assert list(after.entries()) == [*found, LATER]
        assert BankStore.open(trial).warnings == []
        assert verify(trial) == []
        assert not list(trial.glob(".*.tmp"))
    assert seen == {False, True}  # it died before and after the moment that decides


def test_making_a_bank_killed_at_any_system_call(tmp_path: Path, data_dir: Path) -> None:
    trial = tmp_path / "trial"

    def prepare() -> Callable[[], object]:
        shutil.rmtree(trial, ignore_errors=True)
        return lambda: BankStore.create(trial, build.REPO, {"rho": "0.1"})

    for _ in every_point(prepare):
        try:
            store = BankStore.open(trial)
        except BankNotFoundError:
            store = BankStore.create(trial, build.REPO, {"rho": "0.1"})
        assert store.settings().rho == "0.1"
        store.append(LATER)
        assert verify(trial) == []


def attempt(number: int) -> Attempt:
    return Attempt(id=f"a{number}", task_id="t", ordinal=number, source="live", outcome="resolved", recorded_at=number)


CONTEXT = Context(text="block", items=(("skill", "one"),))
# What to do, and what must be there afterwards: nothing of it or all of it.
LOCAL: dict[str, tuple[Callable[[LocalStore], object], Callable[[LocalStore], object]]] = {
    "attempt": (lambda s: s.add_attempt(attempt(2), b"trajectory"), lambda s: [a.id for a in s.attempts()]),
    "journal": (lambda s: s.journal_put("key", attempt(2)), lambda s: s.journal_get("key")),
    "queue push": (lambda s: s.queue_push({"n": 2}), lambda s: [job["n"] for job in s.queue()]),
    "queue done": (lambda s: s.queue_done("00000001"), lambda s: [job["n"] for job in s.queue()]),
    "usage": (lambda s: s.count_use(CONTEXT), lambda s: s.usage()),
}


@pytest.mark.parametrize("kind", LOCAL)
def test_a_local_write_killed_at_any_system_call(kind: str, tmp_path: Path) -> None:
    act, look = LOCAL[kind]
    original = LocalStore(tmp_path / "original")
    original.add_attempt(attempt(1), b"trajectory")
    original.queue_push({"n": 1})
    original.count_use(CONTEXT)
    before = look(original)
    act(LocalStore(shutil.copytree(original.dir, tmp_path / "whole")))
    after = look(LocalStore(tmp_path / "whole"))
    assert before != after
    trial = tmp_path / "trial"

    def prepare() -> Callable[[], object]:
        shutil.rmtree(trial, ignore_errors=True)
        shutil.copytree(original.dir, trial)
        return lambda: act(LocalStore(trial))

    for _ in every_point(prepare):
        store = LocalStore(trial)
        assert look(store) in (before, after)
        act(store)
        assert look(store) != before
        assert {a.id for a in store.attempts()} >= {"a1"}
        assert all(store.trajectory(a) == b"trajectory" for a in store.attempts())
        assert store.usage()[("skill", "one")] >= 1


class Worker:
    """Writes everything a bank directory can hold, over and over, and says after each write what it was."""

    def __init__(self, path: Path, number: int, acknowledge: Callable[[str], None]) -> None:
        self.store = BankStore.open(path)
        self.number = number
        self.acknowledge = acknowledge

    def run(self) -> None:
        count = 0
        while True:
            count += 1
            tag = f"{os.getpid()}-{count}"
            for write in (self.attempt, self.move, self.journal, self.queue, self.usage):
                write(tag)

    def move(self, tag: str) -> None:
        """Propose and accept; another worker may have been faster."""
        item = replace(build.item(0), name=tag)
        move = Proposal(task_id=tag, items=(item,))
        self.store.append(Proposed(proposal=move))
        self.acknowledge(f"proposed {tag}")
        bank, current = self.store.bank, self.store.current_outcomes() or ()
        passed = sum(o.outcome == "resolved" for o in current)
        found = build.rollouts(tag, "resolved")
        entry = build.judged(bank, move, self.store.queries_used() + 1, passed, found)
        try:
            self.store.append(entry)
        except StaleVerdictError:
            return
        self.acknowledge(f"accepted {tag}")

    def attempt(self, tag: str) -> None:
        self.store.local.add_attempt(replace(attempt(1), id=tag), tag.encode())
        self.acknowledge(f"attempt {tag}")

    def journal(self, tag: str) -> None:
        self.store.local.journal_put(tag, attempt(1))
        self.acknowledge(f"journal {tag}")

    def queue(self, tag: str) -> None:
        done = self.store.local.queue_push({"tag": tag})
        self.acknowledge(f"queued {tag}")
        if tag.endswith("5"):
            self.acknowledge(f"finishing {tag}")
            self.store.local.queue_done(done)
            self.acknowledge(f"finished {tag}")

    def usage(self, tag: str) -> None:
        self.store.local.count_use(Context(text="", items=(("skill", tag),)))
        self.acknowledge(f"used {tag}")
        self.store.local.write_telemetry("kill", {"tag": tag})


def start(path: Path, number: int) -> tuple[int, int]:
    """Fork a worker; returns its process id and the pipe it acknowledges through."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        os.close(reader)
        Worker(path, number, lambda text: os.write(writer, text.encode() + b"\n") and None).run()
    except BaseException:  # noqa: BLE001 - this is the bottom of a process
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def killed(pid: int, reader: int) -> list[str]:
    """Kill a worker and return what it acknowledged, whole lines only."""
    os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == -signal.SIGKILL, "a worker failed by itself; its traceback is above"
    with open(reader, "rb") as pipe:
        return pipe.read().decode().splitlines()


def check(path: Path, acknowledged: list[str]) -> None:
    """Everything acknowledged is there."""
    said: dict[str, set[str]] = {}
    for line in acknowledged:
        kind, tag = line.split()
        said.setdefault(kind, set()).add(tag)
    store = BankStore.open(path)
    entries = list(store.entries())
    proposals = {e.proposal.task_id for e in entries if isinstance(e, Proposed)}
    assert said.get("proposed", set()) <= proposals
    assert said.get("accepted", set()) <= {item.name for item in store.bank.items}
    assert store.bank.version == sum(map(makes_version, entries))
    local = store.local
    attempts = {a.id: a for a in local.attempts()}
    assert said.get("attempt", set()) <= set(attempts)
    assert all(local.trajectory(a) == a.id.encode() for a in attempts.values())
    assert all(local.journal_get(tag) for tag in said.get("journal", ()))
    waiting = {job["tag"] for job in local.queue()}
    assert said.get("queued", set()) - said.get("finishing", set()) <= waiting
    assert not said.get("finished", set()) & waiting
    assert {("skill", tag) for tag in said.get("used", ())} <= set(local.usage())
    assert [w for w in local.warnings if "usage.jsonl" not in w] == []


def campaign(path: Path, rounds: int, seed: int, least: int = 0) -> list[str]:
    """Kill two workers at random instants, again and again, on one directory; returns all they acknowledged.

    There are more rounds than asked for where a busy machine leaves less than `least` acknowledged.
    """
    store = BankStore.create(path, build.REPO)
    panel = replace(build.PANEL, rho="0")  # a tie is enough, so that accepts never run out
    store.append(PanelFixed(panel=panel))
    store.append(EpochOpened(epoch=1, horizon=10**6, delta="0.05", panel_hash=panel.hash, reason="kill"))
    found = build.rollouts("none", "unresolved")
    store.append(Baseline(epoch=1, result=PanelResult(bank_hash=Bank(repo=build.REPO).hash, outcomes=found)))
    random_ = random.Random(seed)
    acknowledged: list[str] = []
    done = 0
    while done < rounds or len(acknowledged) < least:
        done += 1
        workers = [start(path, number) for number in range(2)]
        for pid, reader in workers:
            time.sleep(random_.uniform(0.01, 0.12))
            acknowledged += killed(pid, reader)
        check(path, acknowledged)
    return acknowledged


MANY = [pytest.mark.heavy, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(("rounds", "seed"), [(8, 1), *(pytest.param(40, seed, marks=MANY) for seed in range(5))])
def test_killed_at_random_instants(
    rounds: int, seed: int, tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers are killed in every round."""
    monkeypatch.setattr(build, "PANEL", replace(build.PANEL, rho="0"))
    campaign(tmp_path / "bank", rounds=rounds, seed=seed, least=51 if rounds == 8 else 0)
    assert [f for f in verify(tmp_path / "bank") if f.level == "error"] == []
