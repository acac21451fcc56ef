"""Runs that share workers and a budget: never more at a time, never more than the budget, whatever dies."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import CancelledError
from functools import partial

import pytest

from tests.tools import until
from valve_plugin.errors import BudgetError, InfrastructureError
from valve_plugin.rollouts import share
from valve_plugin.rollouts.share import Share
from valve_plugin.rollouts.workers import Workers
from valve_plugin.theory.budget import BudgetLimits

HOLD = "from valve_plugin.rollouts import share\nwith share.worker():\n    print('held', flush=True)\n    input()"


def shared(monkeypatch: pytest.MonkeyPatch, made: Share) -> Share:
    monkeypatch.setenv(share.VARIABLE, made.address)
    return made


def test_no_more_rollouts_run_at_a_time_than_there_are_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, running, most = threading.Lock(), 0, 0

    def rollout() -> None:
        nonlocal running, most
        with share.worker():
            with lock:
                running += 1
                most = max(most, running)
            until(lambda: running == 2 or most == 2)
            with lock:
                running -= 1

    with shared(monkeypatch, Share(2)), Workers(6) as workers:
        for job in [workers.submit(rollout) for _ in range(12)]:
            job.result()
    assert most == 2


def test_a_budget_is_one_for_all_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared(monkeypatch, Share(4, BudgetLimits(usd=1.0))):
        with share.worker() as worker:
            worker.usd = 0.4
        assert until(lambda: not share.reached())
        share.spend(0.3)
        until(share.reached)  # another would cost 0.7 by what is known
        with pytest.raises(BudgetError, match="that all runs share is used up"), share.worker():
            pass


def test_a_worker_comes_back_from_a_process_that_was_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared(monkeypatch, Share(1, BudgetLimits(rollouts=2))):
        holds = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert holds.stdout is not None
        assert holds.stdout.readline() == b"held\n"
        holds.kill()
        with share.worker():
            pass
        holds.communicate()
        assert until(share.reached).startswith("the budget of 2 rollouts"), "the killed one counts, too"


def test_who_waits_can_be_cancelled_and_only_one_has_a_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait_for(held: object) -> None:
        with held():  # type: ignore[operator]
            pass

    for held in (share.worker, partial(share.claim, "key")):
        with shared(monkeypatch, Share(1, BudgetLimits(rollouts=2))):
            with held(), Workers(1) as workers:
                job = workers.submit(partial(wait_for, held))
                workers.cancel(job)
                with pytest.raises(CancelledError):
                    job.result()
            with share.worker():
                pass  # what was cancelled did not count


def test_without_the_process_that_shares_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared(monkeypatch, Share(1)):
        pass
    with pytest.raises(InfrastructureError, match="start it again"), share.worker():
        pass
    monkeypatch.delenv(share.VARIABLE)
    with share.worker(), share.claim("key"):
        assert share.reached() == ""
