"""`valve` alone: the state in one screen and the next command."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from tests import calc
from tests.cli.banks import attempt
from tests.cli.conftest import Run
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import app
from valve_plugin.cli.progress import EVENTS
from valve_plugin.cli.status import next_step
from valve_plugin.tasks import task_set


def test_without_a_bank_the_next_command_makes_one(project: Path, valve: Run) -> None:
    standing = valve("--json")
    assert standing["bank"]["exists"] is False
    (project / "pyproject.toml").write_text('[project]\nname = "shop"\n')
    standing = valve("--json")
    assert standing["next"]["command"] == "valve init"
    assert not (project / ".valve").exists()
    assert "valve init" in valve()
    made = valve("init", "--json")
    assert (made["bank"], made["found"]["repo"]["value"]) == (standing["bank"]["dir"], standing["repo"])
    assert valve("--json")["repo"] == standing["repo"] == "shop"


def test_a_repository_in_the_place_of_its_bank_is_noticed(project: Path, valve: Run) -> None:
    bank = valve("init", "--json")["bank"]
    valve("bank", "list", "--bank", str(Path(bank).parent), code=2)
    assert f"there is no bank here; did you mean {bank}?" in valve.err


def test_the_commands_agree_where_a_bank_is_made(project: Path, valve: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSWEA_MODEL_NAME", "openai/any")
    place = valve("--json")["bank"]["dir"]
    valve("bank", "list", code=2)
    assert f"{place}: there is no bank here; make one with `valve init`" in valve.err
    for bank in (str(project.parent / "own bank"), "other"):
        command = valve("--bank", bank, "--json")["next"]["command"]
        assert command == f"valve init --bank {shlex.quote(bank)}"
        valve(*shlex.split(command)[1:])
        assert valve("--bank", bank, "--json")["next"]["command"].startswith("mini --plugin valve -c ")


def test_a_bank_with_a_history(bank: BankStore, valve: Run) -> None:
    for number, outcome in enumerate(["resolved", "unresolved", "ungraded", "errored"]):
        bank.local.add_attempt(attempt(number, outcome))
    bank.local.queue_push({"job": 1})
    standing = valve("--json")
    assert standing["repo"] == "owner/name"
    assert standing["bank"] == {
        "dir": str(bank.dir), "exists": True, "version": 1, "principles": 1, "skills": 1,
    }  # fmt: skip
    assert standing["panel"] == {"tasks": 2, "rollouts": 3, "rho": "0.02"}
    assert standing["gate"] == {"epoch": 1, "queries": 2, "horizon": 5}
    assert standing["attempts"] == {
        "recorded": 4, "graded": 2, "mixed_groups": 1, "suspicious": 0,
        "live": {"recorded": 4, "graded": 2, "mixed_groups": 1}, "stream": None, "panel": None,
        "holdout": {"recorded": 0, "graded": 0, "mixed_groups": 0},
    }  # fmt: skip
    assert standing["queue"] == 1
    assert standing["last_verdict"]["decision"] == "reject"
    assert standing["next"]["command"] == "valve gate -c model=PROVIDER/NAME"
    assert "version 1: 1 principle, 1 skill" in valve()


RUN: dict[str, Any] = {"going": False, "ended": "interrupted", "at": "", "command": "valve evolve acme/calc"}
SET: dict[str, Any] = {"name": "acme/calc", "tasks": 40, "split": {}, "unused": 0, "path": ""}
UNGRADED: dict[str, Any] = {"attempts": {"recorded": 1, "live": {"recorded": 1, "graded": 0}}}
STATE: dict[str, Any] = {
    "bank": {"exists": True, "version": 1},
    "foreign": False,
    "bank_of": "owner/name",
    "repo": "owner/name",
    "warnings": [],
    "waiting": "",
    "simulation": False,
    "interrupted": "",
    "tasks": [],
    "run": None,
    "model": "x/y",
    "queue": 0,
    "panel": {"tasks": 2},
    "gate": {"queries": 0, "horizon": 5},
    "attempts": {"recorded": 2, "live": {"recorded": 2, "graded": 1}},
    "test_command": "tox",
}


@pytest.mark.parametrize(
    ("change", "command"),
    [
        ({"warnings": ["torn"]}, "valve bank verify --repair"),
        ({"waiting": "0123"}, "valve gate"),
        ({"waiting": "0123", "simulation": True}, "valve gate --simulate"),
        ({"simulation": True, "queue": 1}, "valve bank log"),
        ({"waiting": "0123", "interrupted": "valve evolve tasks/ --simulate"}, "valve evolve tasks/ --simulate"),
        ({"queue": 1}, "valve gate"),
        ({"queue": 1, "panel": None, "gate": None}, "valve tasks generate"),
        ({"waiting": "0123", "panel": None}, "valve tasks generate"),
        ({"queue": 1, "panel": None, "tasks": [{**SET, "tasks": 40}]}, "valve split acme/calc --holdout 8 --panel 20"),
        ({"queue": 1, "panel": None, "tasks": [{**SET, "split": {"panel": 2}}]}, "valve gate --tasks acme/calc"),
        (
            {"queue": 1, "panel": None, "tasks": [SET], "model": ""},
            "mini-extra config set MSWEA_MODEL_NAME PROVIDER/NAME",
        ),
        ({"run": RUN}, "valve evolve acme/calc"),
        ({"run": {**RUN, "command": ""}}, "valve evolve TASKS"),
        ({"run": {**RUN, "going": True}, "warnings": ["torn"]}, "valve evolve --attach"),
        ({"run": {**RUN, "ended": "the run is done"}}, "mini --plugin valve -t ..."),
        ({"panel": None, "tasks": [{**SET, "tasks": 40}]}, "valve split acme/calc --holdout 8 --panel 20"),
        ({"panel": None, "tasks": [{**SET, "tasks": 151}]}, "valve split acme/calc"),
        ({"panel": None, "tasks": [{**SET, "tasks": 3}]}, "mini --plugin valve -t ..."),
        ({"panel": None, "tasks": [{**SET, "split": {"panel": 2}}]}, "valve evolve acme/calc"),
        ({"tasks": [SET]}, "mini --plugin valve -t ..."),
        ({"attempts": {"recorded": 0, "live": None}}, "mini --plugin valve -t 'what to do'"),
        (UNGRADED, "mini --plugin valve -c valve.check='COMMAND THAT FAILS NOW' -t ..."),
        ({"attempts": {"recorded": 3, "live": {"recorded": 0, "graded": 0}}}, "mini --plugin valve -t ..."),
        ({"attempts": {"recorded": None, "live": None}}, "mini --plugin valve -t ..."),
        ({}, "mini --plugin valve -t ..."),
        ({"model": ""}, "mini-extra config set MSWEA_MODEL_NAME PROVIDER/NAME"),
    ],
)
def test_the_next_command(change: dict[str, Any], command: str) -> None:
    assert next_step({**STATE, **change})[0] == command


def test_why_fits_the_task_sets_that_are_there() -> None:
    waits = {**STATE, "queue": 1, "panel": None}
    assert "make one" in next_step({**waits, "tasks": []})[1]
    unsplit, split = (next_step({**waits, "tasks": [{**SET, "split": one}]})[1] for one in ({}, {"panel": 2}))
    assert "make one" not in unsplit + split
    assert ("split once" in unsplit, "split once" in split) == (True, False)


def test_what_was_just_done_is_seen(bank: BankStore, valve: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSWEA_MODEL_NAME", "")
    rows = [calc.row(instance_id=f"t{n}", patch=calc.change(calc.OPS, calc.BUGGY + f"# {n}\n")) for n in range(6)]
    where = calc.write(task_set.default_folder("owner/name"), rows)
    assert "tasks      owner/name: 6 tasks; no split yet\n" in valve()
    valve("split", "owner/name", "--holdout", "1", "--panel", "3", "--by", "bug")
    assert "next: valve evolve owner/name -c model=PROVIDER/NAME\n" in valve.err
    (where / "tasks.jsonl").write_bytes((where / "tasks.jsonl").read_bytes() + b"{}\n")
    said = valve()
    assert "tasks      owner/name: 7 tasks; holdout 1, panel 3, stream 2, 1 in none of them\n" in said
    assert "model      none is named\n" in said

    started = {**dict.fromkeys(("repo", "note"), ""), "command": "valve evolve owner/name", "pid": os.getpid(),
               "created": psutil.Process().create_time(), "position": 1, "of": 3}  # fmt: skip
    told: list[tuple[str, dict[str, Any]]] = [("run_started", started), ("run_ended", {"how": "interrupted"})]
    for event, state, command in zip(
        told, ("going on, task 1 of 3", "the last one ended: interrupted, task 1 of 3"),
        ("valve evolve --attach", "valve evolve TASKS -c model=PROVIDER/NAME"), strict=True,
    ):  # fmt: skip
        bank.local.write_telemetry(EVENTS, {"event": event[0], "data": event[1]})
        said = valve()
        assert f"run        {state}\n" in said
        assert f"next       {command}\n" in said
    bank.local.remember("run", f"{os.getcwd()}\nvalve evolve owner/name")
    assert valve("--json")["next"]["command"] == "valve evolve owner/name"


def test_options_go_behind_a_command(bank: BankStore, valve: Run) -> None:
    assert valve("--version").startswith("valve 0.")
    for command in ("bank", "attempts"):
        valve("--bank", "x", command, "list", code=2)
        assert f"options go behind the command: valve {command}" in valve.err


def test_nothing_heavy_is_imported(project: Path) -> None:
    heavy = "numpy,litellm,jsonschema,minisweagent,sentence_transformers"
    code = (
        "import sys; from valve_plugin.cli import app\n"
        "try: app([])\nexcept SystemExit as e: assert not e.code, e.code\n"
        f"print([m for m in {heavy!r}.split(',') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=project, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_settings_that_are_refused_are_told_where_nothing_waits(bank: BankStore, valve: Run) -> None:
    assert "nothing waits" in valve("gate")
    valve("gate", "--tasks", "nope", code=2)
    assert "nope: no such task directory" in valve.err
    valve("gate", "-c", "roh=0.1", code=2)
    for given in ("rho=0.5", "rollouts=5", "pairing=deployed", "horizon=99", "delta=0.3"):
        valve("gate", "-c", given, code=2)
        assert given.partition("=")[0] in valve.err
    (bank.dir / "valve.toml").write_text('mini_config = ["evil.yaml"]\n')
    for words in (("--simulate", "--bank", str(bank.dir)), ("--json",), ()):
        result = CliRunner().invoke(app, ["gate", *words])
        assert (result.exit_code, result.stdout) == (2, "")
        assert "valve.toml: mini_config is not taken from a file" in result.stderr
