"""Small campaigns with fixed seeds; `benchmarks/reliability.py` has the full ones."""

from __future__ import annotations

import os
import random

import pytest

from tests.faults import campaign


def held(trials):
    trials = list(trials)
    assert trials
    assert [t for t in trials if not t.held] == []
    return trials


def as_root():
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")


@pytest.mark.heavy
def test_files_cut_at_every_class_of_boundary(evolve, whole, tmp_path):
    held(campaign.truncations(evolve, whole, tmp_path, random.Random(7), 14))


@pytest.mark.heavy
@pytest.mark.parametrize("of", ["bank", "attempts"])
def test_a_full_disk_loses_nothing(evolve, whole, tmp_path, of):
    as_root()
    trials = held(campaign.full_disk(evolve, whole, tmp_path, [12, 24] if of == "bank" else [40, 160], of=of))
    assert len(trials) >= 2, "it was full at least once"


@pytest.mark.heavy
def test_a_read_only_bank_is_said_to_be_one(evolve, whole, tmp_path):
    as_root()
    held(campaign.read_only(evolve, whole, tmp_path))


@pytest.mark.heavy
def test_two_evolves_on_one_bank(evolve, whole, tmp_path, calc, toy):
    path = os.pathsep.join([str(toy), os.environ.get("PYTHONPATH", "")])
    held(campaign.two_at_once(evolve, whole, tmp_path, calc, path))


@pytest.mark.heavy
def test_a_clock_that_jumps_changes_nothing(evolve, whole, tmp_path):
    held(campaign.clocks(evolve, whole, tmp_path, random.Random(3), 1))
