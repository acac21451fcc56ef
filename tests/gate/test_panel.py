"""The panel run as a command: a stream of durable outcomes that can be stopped and that never outlives its reader."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.evolve.library import valve
from tests.tools import until
from valve_plugin.bank.entries import Proposed
from valve_plugin.bank.store import BankStore
from valve_plugin.cli.options import read_input
from valve_plugin.codec import canonical, decode, plain
from valve_plugin.errors import ConfigError, InfrastructureError, ValveError
from valve_plugin.gate.panel_run import PanelLine, _nameless, _path, panel_process

TOY = ("--unsafe-local", "-c", 'plugins=["valve","toy"]', "-c", "model=toy")
pytestmark = pytest.mark.usefixtures("installed")


def lines(text):
    return [decode(line, PanelLine, where="stdout") for line in text.splitlines()]


def rollouts(store):
    path = store.local.dir / "telemetry" / "rollouts.jsonl"
    return path.read_bytes().count(b'"source"') if path.exists() else 0


def test_the_current_bank_by_hand(bank, calc):
    store = BankStore.open(bank)
    found = lines(valve("panel", "run", "--current", "--bank", bank, "--tasks", calc, *TOY).stdout)
    panel = store.panel()
    assert {(x.outcome.task_id, x.outcome.outcome in ("resolved", "unresolved")) for x in found} == {
        (t.instance_id, True) for t in panel.tasks
    }
    assert len(found) == len(panel.tasks) * panel.rollouts
    assert all(x.telemetry["source"] == "panel" for x in found)
    ran = rollouts(store)
    assert ran
    again = lines(valve("panel", "run", "--current", "--bank", bank, "--tasks", calc, *TOY).stdout)
    assert rollouts(store) == ran, "what is durable never runs again"
    assert {canonical(x.outcome) for x in again} == {canonical(x.outcome) for x in found}
    assert store.head == BankStore.open(bank).head, "nothing is written to the ledger"


def test_a_proposal_from_stdin_or_a_file(bank, calc, tmp_path):
    proposal = new_proposal(bank)
    (tmp_path / "p.json").write_bytes(canonical(proposal))
    by_file = valve("panel", "run", "--proposal", tmp_path / "p.json", "--bank", bank, "--tasks", calc, *TOY)
    command = [sys.executable, "-m", "valve_plugin", "panel", "run", "--proposal", "-", "--bank", str(bank), *TOY]
    by_stdin = subprocess.run([*command, "--tasks", str(calc)], input=canonical(proposal), capture_output=True)
    assert by_stdin.returncode == 0, by_stdin.stderr
    read, told = lines(by_file.stdout), lines(by_stdin.stdout.decode())
    assert sorted(canonical(x.outcome) for x in told) == sorted(canonical(x.outcome) for x in read)
    assert len(read) == 8
    assert not any(x.telemetry["replayed"] for x in read)
    assert all(x.telemetry["replayed"] for x in told), "the second run finds them in the journal"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "say what to measure"),
        (("--current", "--proposal", "-"), "say what to measure"),
        (("--proposal", "missing.json"), "missing.json"),
    ],
)
def test_wrong_use_is_one_line(bank, calc, arguments, says):
    done = valve("panel", "run", *arguments, "--bank", bank, "--tasks", calc, *TOY, check=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_is_piped_in_is_read_whole_or_refused(monkeypatch):
    class Endless(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, into):
            into[:] = b" " * len(into)
            return len(into)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    with pytest.raises(ConfigError, match=r"on stdin has more than 10+ bytes"):
        read_input("-", 10_000)


def new_proposal(bank):
    """A proposal the bank does not have: one of its own items under another name and text."""
    entries = list(BankStore.open(bank).entries())
    old = next(e.proposal for e in entries if isinstance(e, Proposed) and not e.proposal.empty)
    item = plain(old.items[0]) | {"name": "another_one", "markdown": "GOOD and entirely new words", "text": "anew"}
    return decode(canonical({**plain(old), "items": [item]}), type(old), where="proposal")


def _panel_runs(bank):
    """Panel runs of this bank: other tests may have some of theirs at the same time."""
    commands = {p.pid: p.info["cmdline"] or () for p in psutil.process_iter(["cmdline"])}
    return {pid for pid, command in commands.items() if "--parent" in command and str(bank) in command}


def test_closing_the_stream_ends_the_run_at_once(bank, settings, monkeypatch):
    monkeypatch.setenv("TOY_SECONDS", "2")
    store = BankStore.open(bank)
    before = _panel_runs(bank)
    run = panel_process(settings(store, workers=1), bank, new_proposal(bank))
    next(run)
    started = _panel_runs(bank) - before
    assert len(started) == 1
    run.close()
    assert not _panel_runs(bank) - before


def test_the_run_does_not_outlive_who_asked_for_it(bank, calc, settings, tmp_path, monkeypatch):
    """The judge dies by SIGKILL: nothing can be closed any more, and still the run ends."""
    monkeypatch.setenv("TOY_SECONDS", "600")
    (tmp_path / "p.json").write_bytes(canonical(new_proposal(bank)))
    (tmp_path / "s.json").write_bytes(canonical(plain(settings(BankStore.open(bank)))))
    script = f"""
import json
from pathlib import Path
from valve_plugin.codec import decode
from valve_plugin.config import resolve
from valve_plugin.gate.panel_run import panel_process
from valve_plugin.records import Proposal
proposal = decode(Path({str(tmp_path / "p.json")!r}).read_bytes(), Proposal, where="p")
settings = resolve(json.loads(Path({str(tmp_path / "s.json")!r}).read_bytes()))
list(panel_process(settings, Path({str(bank)!r}), proposal))
"""
    before = _panel_runs(bank)
    judge = subprocess.Popen([sys.executable, "-c", script])
    started = until(lambda: _panel_runs(bank) - before)
    os.kill(judge.pid, signal.SIGKILL)
    judge.wait()
    until(lambda: not started & _panel_runs(bank))


def test_a_run_that_fails_says_why_in_its_own_words(bank, settings, tmp_path):
    store = BankStore.open(bank)
    with pytest.raises(ValveError, match=r"exit status 2.*no plugin named 'absent'") as caught:
        list(panel_process(settings(store, plugins=["absent"]), bank, None))
    assert not isinstance(caught.value, InfrastructureError)


def test_settings_travel_in_a_private_file(bank, settings, monkeypatch, tmp_path):
    """Keys in model arguments must not stand on a command line, where every user of the machine reads them."""
    seen = []

    def popen(command, **_):
        seen.append((command, [Path(a).stat().st_mode & 0o077 for a in command if a.endswith("settings.json")]))
        seen.append(Path(command[command.index("--settings") + 1]).parent.stat().st_mode & 0o077)
        raise InfrastructureError("enough")

    monkeypatch.setattr("valve_plugin.gate.panel_run.subprocess.Popen", popen)
    with pytest.raises(InfrastructureError):
        list(panel_process(settings(BankStore.open(bank), model_kwargs={"api_key": "hunter22hunter"}), bank, None))
    assert "hunter22" not in " ".join(seen[0][0])
    assert seen[1] == 0, "the folder is readable by its owner only"


def test_what_a_panel_run_is_told_is_in_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with _nameless(b'{"model_kwargs": {"api_key": "secret"}}') as file:
        told = subprocess.run(["cat", _path(file)], pass_fds=[file.fileno()], capture_output=True, check=True)
        assert b"secret" in told.stdout
        assert list(tmp_path.iterdir()) == []
