"""Executors stop their jobs, and trajectories are kept by content."""

from __future__ import annotations

import gzip
import threading
from pathlib import Path

import pytest

from valve_plugin.errors import BankNotFoundError
from valve_plugin.records import Attempt
from valve_plugin.rollouts import attempt as rollouts
from valve_plugin.rollouts.attempt import keep_trajectory, read_trajectory
from valve_plugin.rollouts.workers import Workers, stop_event


def _attempt(name: str) -> Attempt:
    return Attempt(id="a", task_id="t", ordinal=0, source="panel", outcome="resolved", trajectory=name)


def test_trajectories_are_kept_by_content(data_dir: Path) -> None:
    name = keep_trajectory("abc", b"{}")
    assert keep_trajectory("abc", b"{}") == name
    assert keep_trajectory("abc", b'{"x":1}') != name
    assert read_trajectory(_attempt(name)) == b"{}"
    assert gzip.decompress((data_dir / "rollouts" / name).read_bytes()) == b"{}"
    assert keep_trajectory("abc", b"") == ""
    assert not list(data_dir.rglob("*.tmp"))


@pytest.mark.parametrize("name", ["", "../x", "gone.json.gz", "/etc/passwd"])
def test_absent_and_foreign_names_are_refused(data_dir: Path, name: str) -> None:
    with pytest.raises(BankNotFoundError):
        read_trajectory(_attempt(name))


def test_the_oldest_trajectories_go(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "_MAX_TRAJECTORIES", 6)
    names = [keep_trajectory(f"r{n}", b"{}") for n in range(10)]
    left = {path.name for path in (data_dir / "rollouts").iterdir()}
    assert names[-1] in left
    assert len(left) <= 6


def test_jobs_know_whether_they_are_to_stop() -> None:
    assert stop_event() is None
    started = threading.Event()

    def wait() -> bool:
        started.set()
        stop = stop_event()
        assert stop is not None
        return stop.wait(60)

    executor = Workers(1)
    future = executor.submit(wait)
    assert started.wait(60)
    executor.kill()
    executor.kill()
    assert future.result(timeout=60) is True
    assert stop_event() is None
