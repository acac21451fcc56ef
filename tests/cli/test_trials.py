"""What is said of candidate bugs, line by line, also past the number that was wanted."""

from __future__ import annotations

import itertools

import pytest

from valve_plugin.cli.stage import Meter
from valve_plugin.cli.tasks_make import Trials
from valve_plugin.tasks.make.candidates import Candidate
from valve_plugin.tasks.make.generate import NOT_REACHED, CandidateResult
from valve_plugin.tasks.task_set import SmithRow


def tried(fails: tuple[str, ...] = (), reason: str = "") -> CandidateResult:
    bug = Candidate(modifier="swap", file="a.py", digest="1", patch="")
    row = (
        SmithRow(instance_id="x.1__1", repo="x", patch="p", fail_to_pass=fails, problem_statement="s")
        if fails
        else None
    )
    return CandidateResult(candidate=bug, row=row, reason=reason)


def test_the_lines_of_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = itertools.count(0.0, 10.0)
    trials = Trials(2, Meter(2, lambda: next(seconds)))
    assert trials.progress() == "0 candidate bugs tried, 0 dropped, 0 of 2 verified"
    for one in (tried(("t1",)), tried(("t1",)), tried(reason=NOT_REACHED), tried(reason="breaks 9 of 9 tests")):
        trials(one)
    assert trials.progress() == "4 candidate bugs tried, 2 dropped, 1 of 2 verified, 0:50 left"
    for one in (tried(("t2",)), tried(reason="no test notices it"), tried(("t3",))):
        trials(one)
    assert trials.progress() == "7 candidate bugs tried, 3 dropped, 2 of 2; looking for bugs that fail other tests"
    assert capsys.readouterr().err.splitlines() == [
        "[1/2] 0:20, 0:20 left  swap a.py: 1 test fails",
        "[1/2] 0:30, 0:30 left  swap a.py: 1 test fails, as with an earlier bug",
        "[1/2] 0:40, 0:40 left  swap a.py: breaks 9 of 9 tests",
        "[2/2] 1:00, 0:00 left  swap a.py: 1 test fails",
        "2 of 2; looking for bugs that fail other tests",
        "[2/2] 1:10, 0:00 left  swap a.py: no test notices it",
        "[2/2] 1:20  swap a.py: 1 test fails",
    ]
