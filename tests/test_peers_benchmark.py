"""A small version of benchmarks/peers.py: SIMULATION."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from benchmarks import peers


@pytest.mark.parametrize("learner", ["VALVE paper", "VALVE fresh", "ungated"])
def test_a_run_keeps_its_budget_and_is_the_same_again(learner):
    first, again = (peers.run("interferes", 0.75, learner, seed=1, budget=900) for _ in range(2))
    assert first == again
    assert 900 <= first["rollouts"] < 900 + 2 * 50 * peers.ROLLOUTS + peers.ROLLOUTS
    assert [s.rollouts for s in first["states"]] == sorted(s.rollouts for s in first["states"])


def test_each_task_gets_at_most_ten_lessons_and_only_those_change_it():
    world = peers.World("drawn", 0.75, 0)
    bank = peers.Bank(world, retrieved=True)
    for task in range(40):
        after = bank.plus(world.propose(task))
        same = ~after.changed
        np.testing.assert_array_equal(after.rates[same], bank.rates[same])
        bank = after
    assert ((bank._number >= 0).sum(axis=0) <= peers.MOST).all()
    assert peers.Bank(world, retrieved=False).plus(*bank.lessons)._number.shape[0] == 40


def test_a_screen_gives_its_task_the_lesson_whether_retrieval_finds_it_or_not():
    world = peers.World("misses", 0.64, 0)
    bank, nowhere = peers.Bank(world, retrieved=True), np.zeros(peers.TASKS, dtype=bool)
    for task in range(100):
        harm = world.propose(task)._replace(effect=-1.0, found=nowhere)
        assert bank.plus(harm).rates[task] == bank.rates[task]
        assert (bank.chance(task, harm) < bank.rates[task]) == harm.family[task]
        bank = bank.plus(world.propose(task))


@pytest.mark.heavy
@pytest.mark.parametrize("learner", ["GEPA", "SkillOpt"])
def test_peers_run_in_it_by_their_own_packages(learner):
    pytest.importorskip({"GEPA": "gepa", "SkillOpt": "skillopt"}[learner])
    row = peers.run("drawn", 0.64, learner, seed=0, budget=600)
    assert row["rollouts"] >= 500
    table = list(peers.table([json.loads(json.dumps(row))], 600))
    assert learner in table[1]


def test_the_table_has_an_interval_for_medians_and_the_lead_seed_by_seed():
    assert peers._median([*range(1, 20), math.inf]) == "10 (6 to 15)"
    assert peers._median([1, math.inf, math.inf]) == "never (1 to never)"

    def row(learner: str, seed: int, gain: float) -> dict[str, Any]:
        states = [[0, 0, 0.0, 0, 0, 0], [9, 1, gain, 0, 0, 1]]
        cell = {"world": "drawn", "base": 0.64, "learner": learner, "seed": seed}
        return {**cell, "rollouts": 9, "waves": 1, "states": states}

    fresh, peer = (
        [row(name, seed, lead + seed) for seed in (1, 2)] for name, lead in (("VALVE fresh", 6), ("GEPA", 1))
    )
    of_fresh, of_peer = list(peers.table([*reversed(peer), *fresh], 9))[1:]
    assert "5.0 ± 0.0" in of_peer
    assert "0.0 ± 0.0" in of_fresh
