"""Speculation changes time and cost, never what a run writes."""

from __future__ import annotations

import json
import threading
from concurrent.futures import CancelledError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.evolve.test_ledger import ledger, verdicts
from tests.tools import until
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.evolve.speculation import LEAST, Prospect, Speculation, Waste, Work, choose, expected_waste, key_of
from valve_plugin.gate.plan import PlannedRollout
from valve_plugin.records import Attempt, Context, Task
from valve_plugin.rollouts.workers import stop_event


@pytest.mark.parametrize(
    ("workers", "share"), [(4, 0.5), *(pytest.param(w, s, marks=pytest.mark.heavy) for w, s in ((2, 0.1), (4, 10)))]
)
def test_the_ledger_is_the_same(evolve, whole, tmp_path, workers, share):
    done = evolve(tmp_path / "bank", "--workers", str(workers), "--speculate", str(share), "--json")
    assert ledger(tmp_path / "bank") == ledger(whole)
    assert len(verdicts(BankStore.open(tmp_path / "bank"))) >= 4
    ours, theirs = (BankStore.open(bank).local.attempts() for bank in (tmp_path / "bank", whole))
    assert {a.id for a in ours} >= {a.id for a in theirs}, "the same rollouts with the same ordinals"
    mine, other = ([(a.id, a.outcome) for a in sorted(found, key=lambda a: a.id) if a.source == "evolve"]
                   for found in (ours, theirs))  # fmt: skip
    assert mine == other, "a wrong guess is in no count of results"
    unused, found = BankStore.open(tmp_path / "bank").local.unused(), json.loads(done.stdout)["speculation"]
    assert not unused or found["unused"] + found["waiting"] > 0
    assert {a.id for a in unused}.isdisjoint(a.id for a in ours)
    assert found["early"] > 10
    assert found["ended"] + found["unused"] + found["waiting"] <= share * (found["useful"] + workers) + 2 * workers


@pytest.mark.heavy
def test_in_the_fresh_protocol_with_failures_and_in_two_parts_it_is_the_same(evolve, tmp_path):
    fresh = ("-c", "protocol=fresh")
    evolve(tmp_path / "whole", *fresh)
    for limit in (("--limit", "3"), ()):
        evolve(tmp_path / "bank", *fresh, *limit, "--workers", "4", "--speculate", "1", TOY_LOST="0.3")
    assert ledger(tmp_path / "bank") == ledger(tmp_path / "whole")
    assert verify(tmp_path / "bank") == []


TASK = Task(instance_id="t", repo="a/b", patch="p", fail_to_pass=("x",), problem_statement="s")


def cell(number: int) -> PlannedRollout:
    return PlannedRollout(TASK, Context(text="c"), number)


def prospect(odds: dict[int, float]) -> Prospect:
    found = Prospect()
    for number, chance in odds.items():
        found.add(cell(number), key_of(cell(number)), chance, done=False)
    return found


ODDS = st.dictionaries(st.integers(0, 30), st.floats(0, 1), max_size=20)


@given(ODDS, st.sets(st.integers(0, 30)), st.floats(-5, 5))
def test_the_likeliest_comes_first_and_the_expected_waste_fits(odds, taken, allowance):
    ahead = prospect(odds)
    busy = {key_of(cell(n)) for n in taken}
    chosen = choose(ahead, busy, allowance)
    assert not busy & set(chosen)
    told = [ahead.odds[key] for key in chosen]
    assert told == sorted(told, reverse=True)
    assert all(p >= LEAST for p in told)
    risky = [key for key in chosen if ahead.odds[key] < 0.999]
    assert not risky or expected_waste(ahead.odds, chosen) <= allowance
    certain = {key for key, p in ahead.odds.items() if p >= 0.999}
    assert certain - busy <= set(chosen), "what is needed in any case always runs"
    more = choose(ahead, busy, allowance + 1)
    assert more[: len(chosen)] == chosen


@given(ODDS, ODDS)
def test_futures_that_exclude_each_other_add_their_odds(first, second):
    both = prospect(first)
    for number, chance in second.items():
        both.add(cell(number), key_of(cell(number)), chance, done=True)
    for number in first.keys() | second.keys():
        expected = min(1.0, first.get(number, 0.0) + second.get(number, 0.0))
        assert both.odds[key_of(cell(number))] == pytest.approx(expected)
    assert set(both.work) == {key_of(cell(n)) for n in first}


class Rollouts:
    """Rollouts that end when they are told to, or stopped."""

    def __init__(self) -> None:
        self.begun, self.stopped, self.go = [], [], threading.Event()

    def __call__(self, work: Work) -> Attempt:
        self.begun.append(work.ordinal)
        while not self.go.wait(0.01):
            if stop_event() and stop_event().is_set():
                self.stopped.append(work.ordinal)
                raise CancelledError
        return Attempt(id=str(work.ordinal), task_id="t", ordinal=work.ordinal, source="evolve", outcome="resolved")


class Foreseen:
    """What may be asked for, changed as a test goes on."""

    def __init__(self, odds: dict[int, float]) -> None:
        self.odds, self.done = odds, set[int]()

    def __call__(self) -> Prospect:
        found = Prospect()
        for number, chance in self.odds.items():
            found.add(cell(number), key_of(cell(number)), chance, done=number in self.done)
        return found


def test_idle_workers_start_the_likeliest_and_end_what_is_not_likely_any_more():
    run, foreseen = Rollouts(), Foreseen({0: 0.9, 1: 0.99, 2: 0.95})
    ahead = Speculation(run, workers=3, share=1)
    with ahead.begun(foreseen, lambda rollouts: True):
        ahead.outside(1)
        ahead.step(list)
        until(lambda: sorted(run.begun) == [1, 2])
        foreseen.odds = {1: 1.0, 3: 0.5}
        ahead.step(list)
        until(lambda: sorted(run.begun) == [1, 2, 3] and run.stopped == [2])
        assert ahead.waste.ended == 1
    assert sorted(run.stopped) == [1, 2, 3], "the end of the run ends all"


def test_what_was_saved_and_wasted_is_said_in_numbers():
    assert not Waste(useful=3, early=2).described
    assert ": 1,000 of 2,000 rollouts" in Waste(useful=2000, early=1000, ended=2).described
    assert "1,018 more, $0.75, ran" in Waste(useful=3, ended=18, unused=1000, usd=0.75).described


def test_what_runs_already_is_awaited_not_run_again():
    run = Rollouts()
    ahead = Speculation(run, workers=2, share=1)
    foreseen = Foreseen({0: 1.0})
    with ahead.begun(foreseen, lambda rollouts: True):
        ahead.step(list)
        until(lambda: run.begun == [0])
        foreseen.done = {0}
        threading.Timer(0.1, run.go.set).start()
        assert ahead.first(cell(0), run).ordinal == 0
        assert ahead.first(cell(7), run).ordinal == 7
        assert run.begun == [0, 7]
        ahead.used([key_of(cell(0)), key_of(cell(7))])
        until(lambda: ahead.waste.early == 1)
        assert ahead.waste.useful == 2


def test_without_a_budget_for_waste_only_the_loop_itself_runs():
    run = Rollouts()
    run.go.set()
    for workers, share in ((1, 1.0), (4, 0.0)):
        ahead = Speculation(run, workers, share)
        with ahead.begun(Foreseen({0: 1.0}), lambda rollouts: True):
            assert not ahead.active
            ahead.step(list)
            assert ahead.first(cell(3), run).ordinal == 3
    assert set(run.begun) == {3}


def test_a_budget_that_the_gate_needs_leaves_only_what_is_certain():
    run = Rollouts()
    ahead = Speculation(run, workers=4, share=1)
    with ahead.begun(Foreseen({0: 1.0, 1: 0.9}), lambda rollouts: len(run.begun) + rollouts <= 1):
        ahead.step(list)
        until(lambda: run.begun == [0])
        ahead.step(list)
        assert run.begun == [0]


def test_a_gate_takes_all_idle_workers_and_what_is_cut_of_it_is_no_waste_of_theirs():
    run, foreseen, decided = Rollouts(), Foreseen({0: 1.0, 9: 0.9, 1: 0.6, 2: 0.3}), threading.Event()
    ahead = Speculation(run, workers=3, share=0.01)
    with ahead.begun(foreseen, lambda rollouts: True):
        gate = threading.Thread(
            target=lambda: list(ahead.finished([cell(0), cell(1), cell(2)], lambda cell, key: decided.is_set()))
        )
        gate.start()
        until(lambda: sorted(run.begun) == [0, 1, 2])
        decided.set()
        gate.join()
        foreseen.odds = {}
        ahead.step(list)
        until(lambda: sorted(run.stopped) == [0, 1, 2])
        assert ahead.waste.ended == 0
