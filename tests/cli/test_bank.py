"""`valve bank` and `valve context` on a real bank with a history."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cli.banks import BAD, BODY, GOOD
from tests.cli.conftest import Run
from valve_plugin.bank.entries import Judged
from valve_plugin.bank.retrieval import retrieve
from valve_plugin.bank.store import BankStore
from valve_plugin.cli.history import brief
from valve_plugin.records import Context

VALVE = Path(sys.executable).with_name("valve")


def on_a_terminal(*args: str) -> str:
    """Run `valve` with stdout on a pseudo-terminal; return what it wrote."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    environ.pop("NO_COLOR", None)
    done = subprocess.run([VALVE, *args], stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE, env=environ)
    os.close(theirs)
    chunks = []
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # Linux: the other end is closed and everything was read
            break
        if not chunk:
            break
        chunks.append(chunk)
    os.close(ours)
    assert done.returncode == 0, done.stderr
    return b"".join(chunks).decode()


def test_list(bank: BankStore, valve: Run) -> None:
    bank.local.count_use(Context(text="x", items=(("skill", "dates"),)))
    assert valve("bank", "list").splitlines() == [
        "KIND\tNAME\tSUPPORT\tPASSES\tSTEP\tUSES",
        "principle\tlook-first\t1\t2/3\t1\t0",
        "skill\tdates\t1\t2/3\t1\t1",
    ]
    listed = valve("bank", "list", "--json")
    assert (listed["version"], listed["hash"]) == (1, bank.bank.hash)
    assert [(item["name"], item["uses"]) for item in listed["items"]] == [("look-first", 0), ("dates", 1)]


def test_list_at_a_version(bank: BankStore, valve: Run) -> None:
    assert valve("bank", "list", "--at", "0", "--json")["items"] == []
    assert valve("bank", "list", "--at", "0") == ""
    valve("bank", "list", "--at", "7", code=2)
    assert "versions 0 to 1" in valve.err  # type: ignore[attr-defined]


def test_show(bank: BankStore, valve: Run) -> None:
    shown = valve("bank", "show", "look-first")
    assert BODY in shown
    assert "2 of 3 source attempts resolved" in shown
    assert valve("bank", "show", "look-first", "--raw") == BODY
    assert valve("bank", "show", "skill/dates", "--json")["scope_hint"] == "datetime code"
    assert "Compare [bold]dates[/bold] in UTC" in valve("bank", "show", "dates")


def test_show_suggests_the_nearest(bank: BankStore, valve: Run) -> None:
    valve("bank", "show", "lok-first", code=2)
    assert "did you mean look-first?" in valve.err  # type: ignore[attr-defined]


def test_on_a_terminal_markup_is_text_and_markdown_is_rendered(bank: BankStore) -> None:
    assert "dates" in on_a_terminal("bank", "list")
    assert "Compare [bold]dates[/bold] in UTC" in on_a_terminal("bank", "show", "dates")
    shown = on_a_terminal("bank", "show", "look-first")
    assert "grep -rn" in shown
    assert "`grep -rn`" not in shown
    assert "<!-- seen? -->" in shown


def test_log_tells_the_history_in_words(bank: BankStore, valve: Run) -> None:
    lines = [line.split(maxsplit=1)[1] for line in valve("bank", "log").splitlines()]
    assert lines == [
        "opened the bank of owner/name",
        "fixed a panel of 2 tasks x 3 rollouts, margin 0.02",
        "opened epoch 1 for 5 gate queries at delta 0.05: first",
        "measured the current bank: 3 of 6 panel rollouts passed",
        f"proposal {GOOD.id} from bug-x (1 resolved): principle look-first, skill dates",
        f"accept {GOOD.id}: net passes +2, +1 needed, 6 of 6 rollouts (query 1 of epoch 1)",
        "from bug-z: nothing to judge (nothing usable is left); skill skip-tests withheld: turns the agent against "
        "its tests",
        f"proposal {BAD.id} from bug-y: skill noise",
        f"reject {BAD.id}: net passes -5 to 0, +1 needed, 1 of 6 rollouts (query 2 of epoch 1); 5 of 6 rollouts saved",
    ]
    assert valve("bank", "log", "--last", "1").splitlines() == [f"    9  {lines[-1]}"]


def test_log_as_json_has_the_whole_entries(bank: BankStore, valve: Run) -> None:
    entries = valve("bank", "log", "--json")
    assert [entry["number"] for entry in entries] == list(range(1, 10))
    assert entries[5]["type"] == "judged"
    assert len(entries[5]["verdict"]["outcomes"]) == 6


def test_a_verdict_with_lost_rollouts_counts_them_both_ways(bank: BankStore) -> None:
    accepted = next(entry.verdict for entry in bank.entries() if isinstance(entry, Judged))
    errored = tuple(replace(o, outcome="errored") for o in accepted.outcomes[:2])
    outcomes = errored + accepted.outcomes[2:]
    lost = replace(accepted, decision="indecisive", candidate_passes=3, unknown=2, outcomes=outcomes)
    assert brief(lost) == (
        f"indecisive {GOOD.id}: net passes 0 to +2, +1 needed, 6 of 6 rollouts, 2 lost to errors (query 1 of epoch 1)"
    )


def test_verify(bank: BankStore, valve: Run) -> None:
    assert valve("bank", "verify", "--json")["intact"] is True
    assert "not a signature" in valve("bank", "verify") + valve.err  # type: ignore[attr-defined]
    ledger = bank.dir / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"decision":"reject"', b'"decision":"accept"'))
    found = valve("bank", "verify", "--json", code=1)
    assert found["intact"] is False
    assert any("ledger.jsonl" in finding["file"] for finding in found["findings"])
    assert "ledger.jsonl" in valve("bank", "verify", code=1)


def test_verify_without_a_bank_is_wrong_use(project: Path, valve: Run) -> None:
    valve("bank", "verify", code=2)


def test_context_is_what_retrieval_composes(bank: BankStore, valve: Run, project: Path) -> None:
    task = "Dates lose {{ their }} zone \\n é"
    expected = retrieve(bank.settings(), bank.bank, "", task)
    assert valve("context", "--task", task) == expected.text
    assert valve("context", task) == expected.text
    valve("context", task, "--task", task, code=2)
    assert "give the task once" in valve.err  # type: ignore[attr-defined]
    assert valve("context", "--task", "-", stdin=task) == expected.text
    (project / "issue.md").write_text(task)
    printed = valve("context", "--file", "issue.md", "--json")
    assert (printed["text"], printed["hash"]) == (expected.text, expected.hash)
    assert {item["name"] for item in printed["items"]} == {"look-first", "dates"}


@pytest.mark.timeout(60)
def test_a_task_is_read_from_a_file_or_a_pipe_of_the_shell(bank: BankStore, valve: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for trap in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        valve("context", "--file", str(trap), code=2)
    read, write = os.pipe()
    os.write(write, b"the parser crashes")
    os.close(write)
    assert valve("context", "--file", f"/dev/fd/{read}") == valve("context", "--task", "the parser crashes")
    os.close(read)


def test_context_of_an_experiment_s_run_says_that_it_ranks_as_ever(bank: BankStore, valve: Run) -> None:
    block = valve("context", "--task", "the parser crashes")
    assert valve.err == ""  # type: ignore[attr-defined]
    for name in ("inject-all", "os:system"):
        (bank.dir / "valve.toml").write_text(f'condition = "{name}"\n')
        assert valve("context", "--task", "the parser crashes") == block
        assert f"its condition '{name}' is not applied here, nor by mini" in valve.err  # type: ignore[attr-defined]


@pytest.mark.parametrize("args", [[], ["--task", "x", "--file", "y"], ["--file", "missing"]])
def test_context_needs_one_task(bank: BankStore, valve: Run, args: list[str]) -> None:
    valve("context", *args, code=2)


def test_an_empty_bank_gives_no_block(project: Path, valve: Run) -> None:
    BankStore.create(project / ".valve", "owner/name")
    assert valve("context", "-t", "anything") == ""
    assert "no items yet" in valve.err  # type: ignore[attr-defined]


def test_only_an_item_that_is_there_is_retired(bank: BankStore, valve: Run) -> None:
    valve("bank", "retire", "nosuch", code=2)
    assert "nosuch" in valve.err  # type: ignore[attr-defined]


def test_a_reader_that_goes_away_is_no_error(bank: BankStore) -> None:
    for _ in range(3):
        done = subprocess.run(
            ["bash", "-c", f'"{VALVE}" bank log --json | head -c 1; echo " ${{PIPESTATUS[0]}}"'],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        assert done.stdout.split()[-1] in ("0", "141")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_any_terminal_encoding_will_do(project: Path, encoding: str) -> None:
    BankStore.create(project / ".valve", "owner/Žluťoučký")
    environ = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = subprocess.run([VALVE], env=environ, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"owner/" in done.stdout
