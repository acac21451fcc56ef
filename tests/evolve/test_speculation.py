"""Running ahead changes time and cost, never what a run writes."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import msgspec
import pytest

from tests.evolve.test_ledger import ledger, verdicts
from tests.tools import until
from valve_plugin.bank.store import BankStore
from valve_plugin.evolve.speculation import Speculation
from valve_plugin.gate.plan import PlannedRollout
from valve_plugin.records import Attempt, Context, Task
from valve_plugin.rollouts.workers import stop_event


@pytest.mark.parametrize(
    ("workers", "ahead", "limit"),
    [pytest.param(1, 1, 99, marks=pytest.mark.heavy), (5, 2, 4), pytest.param(8, 9, 99, marks=pytest.mark.heavy)],
)
def test_the_ledger_is_the_same(evolve, whole, tmp_path, workers, ahead, limit):
    evolve(tmp_path / "bank", "--workers", str(workers), "-c", f"speculate={ahead}", "--limit", str(limit))
    assert ledger(whole).startswith(ledger(tmp_path / "bank"))
    assert len(verdicts(BankStore.open(tmp_path / "bank"))) >= 4
    if limit == 99:
        assert ledger(tmp_path / "bank") == ledger(whole)
        ours, theirs = (BankStore.open(bank).local.attempts() for bank in (tmp_path / "bank", whole))
        assert {a.id for a in ours} >= {a.id for a in theirs}, "the same rollouts with the same ordinals, and some more"


TASK = Task(instance_id="t", repo="a/b", patch="p", fail_to_pass=("x",), problem_statement="s")


def cell(number: int) -> PlannedRollout:
    return PlannedRollout(TASK, Context(text="c"), number)


def done(number: int) -> Attempt:
    return Attempt(id=str(number), task_id="t", ordinal=number, source="evolve", outcome="resolved")


class Rollouts:
    """Rollouts that end when they are told to, or stopped."""

    def __init__(self) -> None:
        self.begun, self.stopped, self.go = [], [], threading.Event()

    def __call__(self, cell: PlannedRollout) -> Attempt:
        self.begun.append(cell.ordinal)
        while not self.go.wait(0.01):
            if stop_event().is_set():
                self.stopped.append(cell.ordinal)
                raise CancelledError
        return done(cell.ordinal)


def test_only_idle_workers_run_ahead_and_the_next_cells_first():
    run = Rollouts()
    with Speculation(run, workers=3) as ahead:
        ahead.busy(2)
        ahead.plan([cell(n) for n in range(5)])
        until(lambda: run.begun == [0])
        ahead.busy(1)
        until(lambda: run.begun == [0, 1])
        ahead.busy(2)  # one at a time, so that they begin in their order
        run.go.set()
        until(lambda: run.begun == [0, 1, 2, 3, 4])


def test_what_runs_ahead_is_awaited_not_run_again():
    run = Rollouts()
    with Speculation(run, workers=1) as ahead:
        ahead.plan([cell(0), cell(1)])
        until(lambda: run.begun == [0])
        ahead.busy(1)
        threading.Timer(0.1, run.go.set).start()
        assert ahead.first(cell(0)).ordinal == 0
        assert ahead.first(cell(1)).ordinal == 1
        assert run.begun == [0, 1]
        assert msgspec.structs.asdict(ahead.first(cell(7)))["id"] == "7"


def test_what_is_no_longer_wanted_ends_and_so_does_all_at_the_end():
    run = Rollouts()
    with Speculation(run, workers=2) as ahead:
        ahead.plan([cell(0), cell(1), cell(2)])
        until(lambda: sorted(run.begun) == [0, 1])
        ahead.plan([cell(1), cell(3)])
        until(lambda: sorted(run.begun) == [0, 1, 3] and run.stopped == [0])
    assert sorted(run.stopped) == [0, 1, 3]
