"""What is said of candidate bugs, line by line, also past the number that was wanted."""

from __future__ import annotations

import itertools

import pytest

from valve_plugin.cli.candidates_told import CandidatesTold
from valve_plugin.cli.meter import Meter
from valve_plugin.tasks.generate import NOT_REACHED, Tried
from valve_plugin.tasks.load import Row
from valve_plugin.tasks.smith import Candidate


def tried(fails: tuple[str, ...] = (), reason: str = "") -> Tried:
    bug = Candidate(modifier="swap", file="a.py", digest="1", patch="")
    row = Row(instance_id="x.1__1", repo="x", patch="p", fail_to_pass=fails, problem_statement="s") if fails else None
    return Tried(candidate=bug, row=row, reason=reason)


def test_the_lines_of_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = itertools.count(0.0, 10.0)
    told = CandidatesTold(2, Meter(2, lambda: next(seconds)), alike=False)
    assert told.far() == "0 candidate bugs tried, 0 dropped, 0 of 2 verified"
    for one in (tried(("t1",)), tried(("t1",)), tried(reason=NOT_REACHED), tried(reason="breaks 9 of 9 tests")):
        told(one)
    assert told.far() == "4 candidate bugs tried, 2 dropped, 1 of 2 verified, 0:50 left"
    for one in (tried(("t2",)), tried(reason="no test notices it"), tried(("t3",))):
        told(one)
    assert told.far() == "7 candidate bugs tried, 3 dropped, 2 of 2; looking for bugs that fail other tests"
    assert capsys.readouterr().err.splitlines() == [
        "[1/2] 0:20, 0:20 left  swap a.py: 1 test fails",
        "[1/2] 0:30, 0:30 left  swap a.py: 1 test fails, as with an earlier bug",
        "[1/2] 0:40, 0:40 left  swap a.py: breaks 9 of 9 tests",
        "[2/2] 1:00, 0:00 left  swap a.py: 1 test fails",
        "2 of 2; looking for bugs that fail other tests",
        "[2/2] 1:10, 0:00 left  swap a.py: no test notices it",
        "[2/2] 1:20  swap a.py: 1 test fails",
    ]
