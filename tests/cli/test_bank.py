"""`valve bank` and `valve context` on a real bank with a history."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.banks import BAD, BODY, GOOD, TASKS, worsened
from tests.cli.conftest import Run
from valve_plugin.bank.store import BankStore
from valve_plugin.evidence.summary import bank_facts
from valve_plugin.lab.demo import example
from valve_plugin.records import Context
from valve_plugin.report.build import build_run
from valve_plugin.report.page import render_page
from valve_plugin.retrieval.contexts import retrieve

VALVE = Path(sys.executable).with_name("valve")


def test_list(bank: BankStore, valve: Run) -> None:
    bank.local.count_use(Context(text="x", items=(("skill", "dates"),)))
    assert valve("bank", "list").splitlines() == [
        "KIND\tNAME\tSUPPORT\tPASSED\tSINCE\tUSED",
        "principle\tlook-first\t1\t2/3\t1\t0",
        "skill\tdates\t1\t2/3\t1\t1",
    ]
    listed = valve("bank", "list", "--json")
    assert (listed["version"], listed["hash"]) == (1, bank.bank.hash)
    assert [(item["name"], item["uses"]) for item in listed["items"]] == [("look-first", 0), ("dates", 1)]


def test_show(bank: BankStore, valve: Run) -> None:
    shown = valve("bank", "show", "look-first")
    assert BODY in shown
    assert "2 of 3 source attempts passed" in shown
    assert valve("bank", "show", "look-first", "--raw") == BODY
    assert valve("bank", "show", "skill/dates", "--json")["scope_hint"] == "datetime code"
    assert "Compare [bold]dates[/bold] in UTC" in valve("bank", "show", "dates")


def test_log_tells_the_history(bank: BankStore, valve: Run) -> None:
    lines = valve("bank", "log").splitlines()
    assert len(lines) == 9
    assert f"accept {GOOD.id}: net passes +2, +1 needed, 6 of 6 rollouts (query 1 of epoch 1)" in lines[5]
    assert f"reject {BAD.id}: net passes -5 to 0, +1 needed, 1 of 6 rollouts" in lines[8]


def test_an_accept_that_breaks_a_task_says_so_everywhere(project: Path, valve: Run) -> None:
    store = worsened(project / ".valve")
    worse = f"{TASKS[1]} 3/3 -> 1/3"
    assert f"accept {GOOD.id}: net passes +1, +1 needed" in valve("bank", "log").splitlines()[-1]
    assert valve("bank", "log").splitlines()[-1].endswith(f"; worse: {worse}; now version 1")
    assert f"worse: {worse}" in valve("bank", "log", "--json")[-1]["words"]
    assert bank_facts(store)["proposals"][0]["worse"] == (worse,)
    assert f"; worse: {worse}" in valve("bank", "show", GOOD.id)
    page = build_run(store)
    assert [gate.worse for gate in page.gates] == [(worse,)]
    assert "worse: bug-b 3/3 -&gt; 1/3" in render_page([page], {}).replace("<wbr>", "")


def test_verify(bank: BankStore, valve: Run) -> None:
    assert valve("bank", "verify", "--json")["intact"] is True
    assert "not a signature" in valve("bank", "verify") + valve.err
    ledger = bank.dir / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"decision":"reject"', b'"decision":"accept"'))
    found = valve("bank", "verify", "--json", code=1)
    assert found["intact"] is False
    assert any("ledger.jsonl" in finding["file"] for finding in found["findings"])
    assert "ledger.jsonl" in valve("bank", "verify", code=1)


def test_context_is_what_retrieval_composes(bank: BankStore, valve: Run, project: Path) -> None:
    task = "Dates lose {{ their }} zone \\n é"
    expected = retrieve(bank.settings(), bank.bank, "", task)
    assert valve("context", task) == expected.text
    valve("context", task, "--file", "x", code=2)
    assert "give the task once" in valve.err
    assert valve("context", "-", stdin=task) == expected.text
    (project / "issue.md").write_text(task)
    printed = valve("context", "--file", "issue.md", "--json")
    assert (printed["text"], printed["hash"]) == (expected.text, expected.hash)
    assert {item["name"] for item in printed["items"]} == {"look-first", "dates"}


NOTE_OF_MONEY = ("bank", "add", "-", "--name", "cents", "--when", "Prices, totals", "--unjudged", "--reason", "x")


def test_where_no_note_fits_it_is_said_and_the_nearest_is_named(project: Path, valve: Run) -> None:
    valve("init")
    valve(*NOTE_OF_MONEY, stdin="Money is in integer cents; never floats.")
    assert "never floats" in valve("context", "The total is wrong")
    assert valve("context", "The footer has a dead link") == ""
    assert valve.err == "no note fits this task (1 note in the bank; `valve bank list` shows them)\n"
    printed = valve("context", "The footer has a dead link\n\nand a float", "--json")
    assert (printed["text"], printed["items"]) == ("", [])
    assert printed["left_out"] == [{"kind": "skill", "name": "cents", "why": "shares too little with the task"}]
    assert "; the nearest: cents" in valve.err


def test_what_no_attempt_taught_has_no_evidence_to_list(project: Path, valve: Run) -> None:
    valve("init")
    valve(*NOTE_OF_MONEY, stdin="Money is in integer cents.")
    head, row = valve("bank", "list").splitlines()
    assert dict(zip(head.split("\t"), row.split("\t"), strict=True))["USED"] in ("0", "-")
    assert [row.split("\t")[head.split("\t").index(name)] for name in ("SUPPORT", "PASSED")] == ["", ""]
    assert "evidence" not in valve("bank", "show", "cents")


def test_options_before_a_command_are_put_behind_it(bank: BankStore) -> None:
    done = subprocess.run([VALVE, "--json", "context", "a b"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "options go behind the command: valve context 'a b' --json" in done.stderr


def test_a_task_is_read_from_a_file_or_a_pipe_of_the_shell(bank: BankStore, valve: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for trap in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        valve("context", "--file", str(trap), code=2)
    read, write = os.pipe()
    os.write(write, b"the parser crashes")
    os.close(write)
    assert valve("context", "--file", f"/dev/fd/{read}") == valve("context", "the parser crashes")
    os.close(read)


def test_a_reader_that_goes_away_is_no_error(bank: BankStore) -> None:
    command = ["bash", "-c", f'"{VALVE}" bank log --json | head -c 1; echo " ${{PIPESTATUS[0]}}"']
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.split()[-1] in ("0", "141")


@pytest.mark.parametrize("condition", ["valve", "document", "inject-all", "skillopt"])
def test_the_ledger_of_an_experiments_run_is_derived_again_by_its_own_condition(
    project: Path, valve: Run, condition: str
) -> None:
    kept = Path(__file__).parents[2] / "docs" / "ledgers" / "funcy" / f"{condition}.seed-0.jsonl.gz"
    bank = project / ".valve"
    bank.mkdir()
    (bank / "ledger.jsonl").write_bytes(gzip.decompress(kept.read_bytes()))
    deep = ("bank", "verify", "--deep", "--tasks", str(example("funcy")))
    (bank / "valve.toml").write_text(f'condition = "{condition}"\n')
    assert "intact" in valve(*deep)
    (bank / "valve.toml").write_text("")
    valve(*deep, code=0 if condition == "valve" else 1)
