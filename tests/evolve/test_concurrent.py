"""Several commands at once on one bank, also while it is being created."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.evolve import library
from valve_plugin.bank.entries import PanelFixed
from valve_plugin.bank.local import LocalStore
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.cli import app

FORK = multiprocessing.get_context("fork")


def at_once(*commands: Sequence[str]) -> list[tuple[int, str]]:
    """Run these commands in processes that start at the same instant; return (exit code, what each printed)."""

    def work(number: int) -> None:
        start.wait()
        done = CliRunner().invoke(app, list(commands[number]))
        said = (
            done.output if done.exception is None else done.output + "".join(traceback.format_exception(done.exception))
        )
        results.put((number, done.exit_code, said))

    start, results = FORK.Barrier(len(commands)), FORK.Queue()
    processes = [FORK.Process(target=work, args=(number,)) for number in range(len(commands))]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=300) for _ in processes)
    for process in processes:
        process.join()
    return [(code, said) for _, code, said in found]


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALVE_DATA", str(tmp_path / "warm"))
    for words in (
        ["init", "--bank", str(tmp_path / "warm-up")],
        ["bank", "review", "--bank", str(tmp_path / "warm-up")],
    ):
        CliRunner().invoke(app, words)  # imports, so that what is forked is at the same place at the same time
    monkeypatch.setenv("VALVE_DATA", str(tmp_path / "nothing" / "yet"))  # made by whoever comes first


def test_folders_of_user_data_are_made_by_whoever_comes_first(tmp_path: Path) -> None:
    def work(number: int) -> None:
        start.wait()
        local = LocalStore(tmp_path / "data" / "local")
        local.write_telemetry("calls", {"number": number})
        local.queue_push({"number": number})
        local.remember("tasks", "x")
        done.put(number)

    start, done = FORK.Barrier(8), FORK.Queue()
    processes = [FORK.Process(target=work, args=(number,)) for number in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    local = LocalStore(tmp_path / "data" / "local")
    assert sorted(record["number"] for record in local.read_telemetry("calls")) == list(range(8))
    assert sorted(job["number"] for job in local.queue()) == list(range(8))
    assert local.warnings == []


def test_a_second_run_on_a_fresh_bank_ends_with_3(calc: Path, installed: None, tmp_path: Path) -> None:
    words = ["evolve", *library.TOY, str(calc), "--bank", str(tmp_path / "bank"), "--limit", "3"]
    done = at_once(words, words, ["init", "--bank", str(tmp_path / "bank"), "--repo", "acme/core"], words)
    codes = [code for code, _ in done]
    assert sorted(codes[:2] + codes[3:]) == [0, 3, 3], done
    assert codes[2] == 0, done
    assert all("is evolving or judging this bank" in said for code, said in done if code == 3)
    store = BankStore.open(tmp_path / "bank")
    assert [isinstance(entry, PanelFixed) for entry in store.entries()].count(True) == 1
    assert verify(store.dir) == []
