"""`valve attempts`: what is on record, as data, with the real store below."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.cli.banks import attempt
from tests.cli.conftest import Run
from valve_plugin.bank.store import BankStore
from valve_plugin.cli.attempts import find
from valve_plugin.config import SCRIPTED_MODEL
from valve_plugin.errors import ConfigError
from valve_plugin.records import LOOK_AT, Attempt

PATCH = "diff --git a/calc.py b/calc.py\n--- a/calc.py\n+++ b/calc.py\n@@ -1 +1 @@\n-a - b\n+a \x1b[31m+ b\n"
FAILED = Attempt(
    id="0a1b2c3d4e5f6071",
    task_id="live-0123456789abcdef",
    ordinal=0,
    source="live",
    outcome="unresolved",
    reason="the check fails after the attempt (exit code 1)",
    patch=PATCH,
    dropped_paths=("tests/test_calc.py",),
    exit_status="Submitted",
    steps=7,
    cost_usd=0.25,
    seconds=61.0,
    recorded_at=1_700_000_000.0,
    model="openai/some-model",
    task_text="Fix the sums\n\npatch:\nthey are \x1b]0;taken\x07wrong [bold]everywhere[/bold], and that since long ago",
    context_items=(("skill", "dates"),),
    check="pytest tests/test_calc.py",
    check_output="E   assert 0 == 4\ntask:\n\x1b[31m1 failed\x1b[0m",
)
UNKNOWN = replace(
    FAILED, id="0a1bffffffffffff", outcome="ungraded", recorded_at=0.0, patch="", check="", check_output="",
    task_text="", context_items=(), dropped_paths=(), reason="no check was given (valve.check)",
)  # fmt: skip


@pytest.fixture
def kept(bank: BankStore, monkeypatch: pytest.MonkeyPatch) -> BankStore:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    trajectory = json.dumps({"messages": [{"role": "user", "content": "hi"}], "info": {}}).encode()
    bank.local.add_attempt(FAILED, trajectory)
    bank.local.add_attempt(UNKNOWN)
    bank.local.add_attempt(replace(attempt(0, "resolved"), source="evolve", task_id="bug-x", task_text=""))
    return bank


def test_a_suspicious_attempt_is_marked_wherever_it_counts_as_passed(bank: BankStore, valve: Run) -> None:
    item = next(one for one in bank.bank.items if one.source_tasks)
    forged = replace(
        FAILED, outcome="resolved", source="evolve", task_id=item.source_tasks[0], reason=f"{LOOK_AT} x.py:1"
    )
    assert "look at" not in valve("bank", "show", item.name)
    bank.local.add_attempt(forged)
    bank.local.add_attempt(replace(forged, id="other", reason=""))
    rows = [line.split("\t") for line in valve("attempts", "list", "--all").splitlines()]
    assert {(row[0], row[4]) for row in rows[1:]} == {(FAILED.id, "resolved, suspicious"), ("other", "resolved")}
    assert valve("attempts", "show", FAILED.id).startswith(f"attempt {FAILED.id}, resolved, suspicious")
    shown = valve("bank", "show", item.name)
    assert f"`valve attempts show {FAILED.id}`" in shown
    assert "other" not in shown
    assert valve("--json")["attempts"]["suspicious"] == 1
    assert "1 suspicious" in valve()


def test_attempts_of_a_simulation_say_so(bank: BankStore, valve: Run) -> None:
    bank.local.add_attempt(replace(FAILED, id="real"))
    assert "SIMULATION" not in valve("attempts", "show", "real")
    assert valve("attempts", "list", "--all", "--json")["simulation"] is False
    bank.local.add_attempt(replace(FAILED, id="scripted", source="evolve", model=SCRIPTED_MODEL))
    assert "SIMULATION" in valve("attempts", "show", "scripted")
    assert valve("attempts", "show", "scripted", "--json")["simulation"] is True
    assert valve("attempts", "list", "--all", "--json")["simulation"] is True


def test_runs_of_the_person_are_listed_the_latest_first(kept: BankStore, valve: Run) -> None:
    header, *rows = [line.split("\t") for line in valve("attempts", "list").splitlines()]
    assert header == ["ID", "WHEN", "TASK", "OUTCOME", "REASON", "RESTORED", "NOTES"]
    assert [row[0] for row in rows] == [FAILED.id, UNKNOWN.id]
    assert rows[0][1:] == [
        "2023-11-14 22:13", "Fix the sums patch: they are wrong [bold]everywhere[/bold],…", "unresolved", FAILED.reason,
        "tests/test_calc.py", "dates",
    ]  # fmt: skip
    assert rows[1][1:4] == ["unknown", "live-0123456789abcdef", "ungraded"]
    assert valve("attempts") == valve("attempts", "list")
    assert valve("attempts", "--json") == valve("attempts", "list", "--json")
    header, *rows = [line.split("\t") for line in valve("attempts", "list", "--all").splitlines()]
    assert header[:4] == ["ID", "WHEN", "SOURCE", "TASK"]
    assert {row[2] for row in rows} == {"live", "evolve"}
    early = kept.local.add_attempt(replace(attempt(1, "resolved"), source="evolve", task_id="bug-x"), early=True)
    rows = [line.split("\t") for line in valve("attempts", "list", "--all").splitlines()]
    assert [row[4] for row in rows if row[0] == early.id] == ["not used"], "a wrong guess is no result"
    assert sum(not a["used"] for a in valve("attempts", "list", "--all", "--json")["attempts"]) == 1
    assert valve("attempts", "show", early.id, "--json")["id"] == early.id
    listed = valve("attempts", "list", "--json")
    assert [a["id"] for a in listed["attempts"]] == [FAILED.id, UNKNOWN.id]
    assert listed["attempts"][0]["dropped_paths"] == ["tests/test_calc.py"]
    assert "patch" not in listed["attempts"][0]


def test_one_is_shown_and_nothing_in_it_passes_for_a_line_of_ours(kept: BankStore, valve: Run) -> None:
    shown = valve("attempts", "show", "0a1b2")
    assert "\x1b" not in shown
    assert [line for line in shown.splitlines() if line in ("patch:", "task:")] == ["task:", "patch:"]
    fields = dict(line.split(maxsplit=1) for line in shown.partition("\n\n")[0].splitlines())
    assert fields["attempt"] == f"{FAILED.id}, unresolved"
    assert (fields["why"], fields["check"], fields["notes"]) == (FAILED.reason, FAILED.check, "skill dates")
    assert (fields["took"], fields["ended"]) == ("7 steps, 61 s, $0.2500", "Submitted")
    assert fields["trajectory"].startswith(f"mini-extra inspect {kept.local.dir}/unpacked/{FAILED.id}")
    assert valve("attempts", "show") == shown, "the latest"
    assert "\npatch: empty\n" in valve("attempts", "show", UNKNOWN.id)
    assert valve("attempts", "show", FAILED.id, "--patch") == PATCH, "in a pipe to the byte, for `git apply`"


def test_the_trajectory_is_unpacked_for_minis_inspector(kept: BankStore, valve: Run) -> None:
    told = valve("attempts", "show", FAILED.id, "--json")
    path = Path(told["trajectory_path"])
    assert path.name.endswith(".traj.json"), "as the inspector looks for them"
    assert json.loads(path.read_text())["messages"][0]["content"] == "hi"
    assert path.is_relative_to(kept.local.dir)
    assert told["check_output"] == FAILED.check_output
    assert valve("attempts", "show", UNKNOWN.id, "--json")["trajectory_path"] is None
    (packed,) = (kept.local.dir / "trajectories").iterdir()
    path.unlink()
    packed.write_bytes(packed.read_bytes()[:-9])
    assert "truncated" in valve("attempts", "show", FAILED.id)


def test_what_is_not_there_is_said(bank: BankStore, valve: Run) -> None:
    assert valve("attempts", "list") == ""
    assert "no run of your own is recorded on this machine" in valve.err
    valve("attempts", "show", code=2)
    valve("attempts", "show", "0a", code=2)
    assert "no attempt '0a' is recorded on this machine" in valve.err
    bank.local.add_attempt(FAILED)
    bank.local.add_attempt(UNKNOWN)
    valve("attempts", "show", "0a1b", code=2)
    assert "begins 2 ids" in valve.err


def test_what_cannot_be_read_is_passed_over_and_told(kept: BankStore, valve: Run) -> None:
    folder = kept.local.dir / "attempts" / FAILED.task_id
    old = json.loads((folder / f"{FAILED.id}.json").read_text())
    del old["check_output"]  # as an older valve kept it
    (folder / f"{FAILED.id}.json").write_text(json.dumps(old))
    for name, data in (("torn", b'{"id": "'), ("bytes", b"\xff\xfe"), ("deep", b"[" * 100_000), ("empty", b"")):
        (folder / f"{name}.json").write_bytes(data)
    assert FAILED.id in valve("attempts", "list")
    assert valve.err.count("skipped; delete the file") == 3
    assert "check's last lines" not in valve("attempts", "show", FAILED.id)


@given(st.lists(st.text("0af", min_size=1, max_size=4), unique=True), st.text("0af", min_size=1, max_size=4))
def test_a_beginning_finds_the_one_attempt_that_has_it(ids: list[str], asked: str) -> None:
    attempts = [replace(FAILED, id=id_) for id_ in ids]
    fits = [id_ for id_ in ids if id_.startswith(asked)]
    if len(fits) == 1 or asked in ids:
        assert find(attempts, asked).id == (asked if asked in ids else fits[0])
    else:
        with pytest.raises(ConfigError, match=r"begins|no attempt"):
            find(attempts, asked)
