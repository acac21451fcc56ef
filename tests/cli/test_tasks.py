"""`valve tasks list|show|verify` and `valve split`, as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.rollouts import calc
from valve_plugin.cli.meter import Meter, minutes
from valve_plugin.tasks import folder


@pytest.fixture
def tasks(data_dir: Path) -> Path:
    """A task set of four in user data."""
    rows = [calc.row(instance_id=f"task{n}", patch=calc.change(calc.OPS, calc.BUGGY + f"# {n}\n")) for n in range(4)]
    return calc.write(folder.default("acme/calc"), rows)


def test_listing(tasks: Path, project: Path, valve: Run) -> None:
    (found,) = valve("tasks", "list", "--all", "--json")
    assert (found["repository"], found["tasks"], found["split"]) == ("acme/calc", 4, False)
    assert "acme/calc\t4\t" in valve("tasks", "list", "--all")
    valve("tasks", "list", "acme/calc", "--all", code=2)
    assert "--all lists every task set" in valve.err  # type: ignore[attr-defined]
    listed = valve("tasks", "list", "acme/calc", "--json")["tasks"]
    assert listed[0] == {
        "instance_id": "task0", "files": ["calc/ops.py"], "fail_to_pass": 2, "pass_to_pass": 8, "part": ""
    }  # fmt: skip


def test_showing(tasks: Path, project: Path, valve: Run) -> None:
    shown = valve("tasks", "show", "acme/calc", "k1", "--patch")
    assert "clamp(10, 0, 9) is 0" in shown
    assert "+# 1" in shown
    assert valve("tasks", "show", str(tasks), "task2", "--json")["instance_id"] == "task2"
    valve("tasks", "show", code=2)
    assert "TASK is missing: an instance id" in valve.err  # type: ignore[attr-defined]
    valve("tasks", "show", "acme/calc", "task", code=2)
    assert "4 tasks have 'task' in their id" in valve.err  # type: ignore[attr-defined]
    valve("tasks", "show", "acme/calc", "tusk1", code=2)
    assert "did you mean task" in valve.err  # type: ignore[attr-defined]


def test_splitting(tasks: Path, project: Path, valve: Run) -> None:
    valve("split", "acme/calc", code=2)
    assert "4 tasks, expected at least 151" in valve.err  # type: ignore[attr-defined]
    assert (
        "or give sizes that fit, such as --holdout 1 --panel 2: a gate over 2 x 3 at margin 0.02 accepts about 16 % of "
        "the proposals that change nothing and 30 % of those worth 5 points, where three quarters of the rollouts pass "
        "(`valve plan --base-rate 0.75 --vmass 0.05 --panel-size 2`)\n"
    ) in valve.err  # type: ignore[attr-defined]
    small = ["split", "acme/calc", "--holdout", "1", "--panel", "2"]
    made = valve(*small, "--json")
    assert valve(*small, "--json") == made
    assert valve("split", "acme/calc", "--holdout", "1", "--panel-size", "2", "--json") == made
    for spelling in ("--panel", "--panel-size"):
        valve("evolve", "nowhere", spelling, "2", code=2)
        assert "nowhere: no such task directory" in valve.err  # type: ignore[attr-defined]
    assert len(made["stream"]) == 1
    parts = {t["instance_id"]: t["part"] for t in valve("tasks", "list", "acme/calc", "--json")["tasks"]}
    assert sorted(parts.values()) == ["holdout", "panel", "panel", "stream"]
    valve(*small, "--holdout-seed", "1", code=2)
    drawn = "holds a split already: holdout 1, panel 2, stream 1. It is not drawn again"
    assert drawn in valve.err  # type: ignore[attr-defined]
    assert "in no part" not in valve.err  # type: ignore[attr-defined]

    lines = (tasks / "tasks.jsonl").read_bytes()
    more = calc.row(instance_id="task9", patch=calc.change(calc.OPS, calc.BUGGY + "# 9\n"))
    (tasks / "tasks.jsonl").write_bytes(lines + json.dumps(more).encode() + b"\n")
    valve("split", "acme/calc", code=2)  # no word of the sizes, which are not the trouble
    assert drawn in valve.err  # type: ignore[attr-defined]
    assert "1 task is in no part of the split" in valve.err  # type: ignore[attr-defined]
    valve("tasks", "list", "acme/calc")
    assert "1 task is in no part of the split" in valve.err  # type: ignore[attr-defined]
    valve("evolve", "acme/calc", "--simulate", "--unsafe-local", "--panel-size", "3", code=2)
    assert "the panel of split.json has 2 tasks, --panel-size asks for 3" in valve.err  # type: ignore[attr-defined]


@pytest.mark.timeout(200)
def test_verifying(tasks: Path, project: Path, valve: Run) -> None:
    options = ["--unsafe-local", "--times", "1"]
    assert "1 of 1 task verified, 0 with findings" in valve("tasks", "verify", "acme/calc", "--limit", "1", *options)
    calc.write(tasks, [calc.row(FAIL_TO_PASS=["tests/test_other.py::test_middle"], PASS_TO_PASS=[])])
    said = valve("tasks", "verify", "acme/calc", *options, code=1)
    assert "empty passes: tests/test_other.py::test_middle passes without the fix" in said


@pytest.mark.parametrize("command", ["tasks verify", "tasks list", "tasks show task0", "split --holdout 1 --panel 1"])
def test_the_task_set_of_the_repository_one_is_in(project: Path, valve: Run, command: str) -> None:
    words = command.split()
    valve(*words, code=2)
    assert "there is no task set of project in user data; give TASKS" in valve.err  # type: ignore[attr-defined]
    rows = [calc.row(instance_id=f"task{n}", patch=calc.change(calc.OPS, calc.BUGGY + f"# {n}\n")) for n in range(3)]
    made = calc.write(folder.default("project__mined"), rows)
    options = ["--unsafe-local", "--times", "1", "--limit", "1"] if "verify" in words else []
    assert "task0" in json.dumps(valve(*words, *options, "--json", code=None))
    assert valve.err.startswith(f"of project: {made}\n")  # type: ignore[attr-defined]
    calc.write(folder.default("project"), [calc.row()])
    valve(*words, code=2)
    assert "there are 2 task sets of project, give one: " in valve.err  # type: ignore[attr-defined]
    assert "that of the repository you are in" in " ".join(valve(*words, "--help").split())


def test_the_time_that_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 30.0, 60.0])
    meter = Meter(4, lambda: next(times))
    meter.tick("nothing", counts=False)
    meter.tick("one")
    assert capsys.readouterr().err.splitlines() == ["[0/4] 0:30  nothing", "[1/4] 1:00, 3:00 left  one"]
    assert minutes(3601) == "60:01"


def test_what_an_earlier_run_did_says_nothing_about_the_pace(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 0.01, 0.02, 20.0, 30.02])
    meter = Meter(5, lambda: next(times))
    meter.tick("read back")
    meter.tick("read back")
    meter.tick("nothing", counts=False)
    meter.tick("new")
    assert capsys.readouterr().err.splitlines()[1:] == [
        "[2/5] 0:00  read back",
        "[2/5] 0:20  nothing",
        "[3/5] 0:30, 1:00 left  new",
    ]


def test_more_than_enough_leaves_no_time(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 30.0, 60.0, 90.0, 95.0])
    meter = Meter(1, lambda: next(times))
    meter.tick("one")
    meter.tick("nothing", counts=False)
    meter.tick("one more")
    assert capsys.readouterr().err.splitlines() == [
        "[1/1] 0:30, 0:00 left  one",
        "[1/1] 1:00, 0:00 left  nothing",
        "[1/1] 1:30  one more",
    ]
    assert meter.left() == ""
