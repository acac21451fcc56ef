"""Several isolated attempts: real mini agents in sandboxed copies, and what becomes of the person's files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.live.conftest import FIX, QUICK, Project
from tests.tools import need
from valve_plugin import instrument
from valve_plugin.agents.protocol import RolloutResult
from valve_plugin.live.several import FinishedAttempt, best
from valve_plugin.records import Attempt
from valve_plugin.sandbox import bubblewrap

LONG_FIX = "printf 'def add(a, b):\\n    total = a\\n    total += b\\n    return total\\n' > calc.py"
WRONG = "sed -i 's/a - b/a/' calc.py"


@pytest.fixture(autouse=True)
def bwrap() -> None:
    need("bwrap")


def by_attempt(*commands: str) -> str:
    """A command that does another thing in every attempt: copies know their number by a counter outside."""
    return "; ".join(f"[ $ATTEMPT = {n} ] && {{ {c}; }}" for n, c in enumerate(commands)) + "; true"


@pytest.fixture
def numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the commands of every attempt its number: the scripted model says the same in all of them."""
    from valve_plugin.live import several as live_attempts

    stock = live_attempts.RolloutSpec

    def spec(**fields: Any) -> Any:
        path = Path(fields["settings"].mini_config[0])
        sections = json.loads(path.read_text())
        sections["environment"]["env"]["ATTEMPT"] = str(fields["ordinal"])
        path.write_text(json.dumps(sections))
        return stock(**fields)

    monkeypatch.setattr(live_attempts, "RolloutSpec", spec)


@pytest.mark.heavy
@pytest.mark.usefixtures("numbered")
def test_the_shortest_passing_patch_is_applied(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    look = "pwd; ls -a; cat .git/HEAD; git log --oneline | wc -l; echo ${KEY:-none}"
    different = by_attempt(LONG_FIX, WRONG, f"{FIX}; echo extra >> test_calc.py")
    agent = project.run(look, different, check=QUICK, attempts=3)
    said = capsys.readouterr().err.splitlines()
    attempts = project.attempts()
    assert [a.outcome for a in sorted(attempts, key=lambda a: a.ordinal)] == ["resolved", "unresolved", "resolved"], (
        said
    )
    assert sorted(a.ordinal for a in attempts) == [0, 1, 2]
    assert len({a.context_hash for a in attempts}) == len({a.base_tree for a in attempts}) == 1
    assert (project.root / "calc.py").read_text() == "def add(a, b):\n    return a + b\n"
    assert project.git("status", "--porcelain").split("\n") == [" M calc.py", "?? .valve/", ""]
    assert "valve: applied attempt 3: 2 changed lines in calc.py" in said
    assert said[-2] == "valve: 2 of 3 attempts passed: queued for learning (1 in the queue; `valve gate` judges them)"
    applied = next(a for a in attempts if a.ordinal == 2)
    shows = f"`valve attempts show {applied.id}` shows attempt 3"
    assert said[-1] == f"valve: {shows}; `valve attempts list` lists them"
    (dropped,) = (line for line in said if "were not graded or applied: test_calc.py" in line)
    assert f"`valve attempts show {applied.id} --patch`" in dropped
    assert "+extra" in applied.patch

    assert agent.n_calls == 9
    assert agent.cost == pytest.approx(4.5)
    assert agent.messages[-1]["extra"]["exit_status"] == "Submitted"
    system, output = agent.messages[0]["content"], agent.messages[3]["content"]
    assert "Check {{ the }} {% operator %}" in system
    assert output.count("\n1\n") == 1, "one commit, no history"
    assert str(project.root) in output, "copies appear at the directory's own path"
    assert ".valve" not in output
    assert len(project.local.queue()) == 1
    assert project.local.usage() == {("skill", "use-plus"): 1}


def test_none_passing_leaves_the_tree_untouched(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.run(WRONG, check=QUICK, attempts=2)
    assert [a.outcome for a in project.attempts()] == ["unresolved"] * 2
    assert "no attempt passes the check; your files are unchanged" in capsys.readouterr().err
    assert project.git("status", "--porcelain", "--", "calc.py") == ""
    assert project.local.queue() == []


def test_ctrl_c_records_what_had_begun_and_says_so(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from valve_plugin.live import several as live_attempts

    def interrupted(*_: object) -> None:
        time.sleep(1)  # the agents are at work, or their processes still load
        raise KeyboardInterrupt

    monkeypatch.setattr(live_attempts, "as_completed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        project.run("sleep 60", check=QUICK, attempts=3, workers=2)
    attempts = project.attempts()
    assert [(a.outcome, a.exit_status) for a in attempts] == [("ungraded", "KeyboardInterrupt")] * 2, "the third waited"
    assert "stopped by the person" in attempts[0].reason
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "valve: stopped: nothing was applied; 2 attempts recorded; `valve attempts list` lists them"

    monkeypatch.setattr("valve_plugin.live.check.Check.run", lambda *_: interrupted())
    with pytest.raises(KeyboardInterrupt):
        project.run("true", check=QUICK, attempts=3)
    assert "stopped before the first attempt: nothing was recorded" in capsys.readouterr().err
    assert project.attempts() == attempts


def test_without_a_check_nothing_is_applied(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    project.run(FIX, attempts=2)
    assert [a.outcome for a in project.attempts()] == ["ungraded"] * 2
    assert "none is applied" in capsys.readouterr().err
    assert "a - b" in (project.root / "calc.py").read_text()
    assert all("+    return a + b" in a.patch for a in project.attempts())


def test_a_tree_that_changed_meanwhile_is_left_alone(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from valve_plugin.live import several as live_attempts

    stock = live_attempts._report

    def told(*arguments: Any) -> Any:
        (project.root / "mine.py").write_text("written while the attempts ran\n")
        return stock(*arguments)

    monkeypatch.setattr(live_attempts, "_report", told)
    project.run(FIX, check=QUICK, attempts=2)
    said = capsys.readouterr().err
    assert "nothing was applied: files changed during the attempts: mine.py" in said
    assert "a - b" in (project.root / "calc.py").read_text()
    shown = said.split("`valve attempts show ")[1].split(" --patch`")[0]
    (attempt,) = (a for a in project.attempts() if a.id == shown)
    assert "+    return a + b" in attempt.patch


def test_it_is_refused_without_yolo_or_sandbox_or_files(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = project.agent(FIX)
    agent.config = type("Config", (), {**agent.config.model_dump(), "mode": "confirm"})()
    instrument(agent, settings={"attempts": 3}).run("the task")
    assert "add -y" in capsys.readouterr().err
    monkeypatch.setattr(bubblewrap, "bubblewrap_problem", lambda: "bwrap is not on PATH")
    agent = project.run(FIX, attempts=3)
    assert "bwrap is not on PATH" in capsys.readouterr().err
    assert agent.messages == []
    agent = project.agent(FIX)
    agent.env = object()
    instrument(agent, settings={"attempts": 3}).run("the task")
    assert "does not work on this machine's files" in capsys.readouterr().err
    assert project.attempts() == []
    assert "a - b" in (project.root / "calc.py").read_text()


def test_a_provider_that_fails_is_errored_and_costs_no_grade(project: Project) -> None:
    agent = project.agent(FIX)
    agent.model.config.outputs.clear()
    instrument(agent, settings={"attempts": 2, "check": QUICK}).run("the task")
    assert [a.outcome for a in project.attempts()] == ["errored"] * 2
    assert "IndexError" in project.attempts()[0].reason


def done(number: int, outcome: Any, lines: int) -> tuple[FinishedAttempt, int]:
    attempt = Attempt(id=str(number), task_id="t", ordinal=number, source="live", outcome=outcome)
    return FinishedAttempt(number, attempt, f"tree{number}", RolloutResult(ended="submitted")), lines


@given(st.lists(st.tuples(st.sampled_from(["resolved", "unresolved", "errored", "ungraded"]), st.integers(0, 3))))
def test_the_best_is_the_shortest_then_the_first_that_passes(drawn: list[tuple[str, int]]) -> None:
    pairs = [done(n, outcome, lines) for n, (outcome, lines) in enumerate(drawn)]
    lines = {one.end: count for one, count in pairs}
    chosen = best([one for one, _ in pairs], lines.__getitem__)
    passing = [one for one, _ in pairs if one.attempt.outcome == "resolved"]
    assert (chosen is None) == (not passing)
    for one in passing:
        assert chosen is not None
        assert (lines[chosen.end], chosen.number) <= (lines[one.end], one.number)
