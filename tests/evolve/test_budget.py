"""A budget stops a run cleanly, and never changes what it writes when it goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import reduce
from pathlib import Path

import pytest

from tests.evolve import library
from tests.evolve.test_ledger import ledger, verdicts
from tests.extract.provider import provider
from valve_plugin import plugins
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.cli.run_view import View, fold
from valve_plugin.errors import BudgetError
from valve_plugin.events import Event, event_of
from valve_plugin.evolve.budget import next_verdict
from valve_plugin.evolve.loop import evolve as loop
from valve_plugin.evolve.open import fix_panel
from valve_plugin.evolve.steps import ATTEMPTS, Steps, waiting
from valve_plugin.gate import judge, panel_run, plan
from valve_plugin.tasks.task_set import load


@pytest.mark.heavy
def test_a_budget_stops_the_run_and_the_same_command_goes_on(evolve, whole, tmp_path):
    refused = evolve(tmp_path / "bank", "--max-rollouts", "5", check=False)
    assert refused.returncode == 2
    enough = re.search(r"this would do: --max-rollouts (\d+)", refused.stderr)
    assert enough, refused.stderr
    assert int(enough[1]) == 3 + 8 + 8, "attempts at a task, a baseline, a whole panel"
    assert "where the next task is mixed, 3 more for each before it that is not" in refused.stderr
    assert not (tmp_path / "bank").exists(), "a refused budget leaves no bank"
    total, stops = 0, 0
    for turn in range(20):
        started = tmp_path / f"started{turn}"
        what, env = ("rollouts", {}) if turn % 2 else ("hours", {"TOY_HOURLY": "1"})
        given = (f"--max-{what}", enough[1], "--workers", "3", "--json")
        done = json.loads(evolve(tmp_path / "bank", *given, TOY_STARTED=str(started), **env).stdout)
        ran = sum(s["number"] for role, s in done["spent"]["run"].items() if role != "extractor")
        total, stops = total + ran, stops + bool(done["stopped"])
        also_began = 2 if env else 0  # on the other workers, within the same hour
        begun = started.read_text().count("\n")
        assert ran <= begun <= int(enough[1]) + also_began
        if done["stopped"]:
            said = re.fullmatch(r"the budget of (\d+) (\w+) is used up \((\d+) rollouts started\)", done["stopped"])
            assert said, done["stopped"]
            assert said.groups()[:2] == (enough[1], what)
            assert ran - also_began <= int(said[3]) <= begun, "one may be cut off where a gate is decided"
        assert ledger(whole).startswith(ledger(tmp_path / "bank"))
        if not done["stopped"]:
            break
    assert stops >= 2, "one by each limit"
    assert ledger(tmp_path / "bank") == ledger(whole)
    assert verify(tmp_path / "bank") == []
    assert sum(s["number"] for s in done["spent"]["bank"].values()) == total, "nothing ran twice"
    for least in ((), ("--max-rollouts", "1", "--max-hours", "0.01")):
        finished = evolve(tmp_path / "bank", *least)
        assert "finished: nothing is left to attempt among the" in finished.stdout, "so it needs no budget"
    recorded = BankStore.open(tmp_path / "bank").local.read_telemetry("events")
    view = reduce(fold, (event_of(n["event"], n["data"]) for n in recorded), View())
    assert 0 < view.position <= view.of, "it says how far the stream is, though nothing happened"
    assert ledger(tmp_path / "bank") == ledger(whole)


def inside(settings, bank_dir, proposal, *, observe, charge, unused, confirm=False):
    """What `valve panel run` does, in this process: a range of limits in seconds."""
    store, hook = BankStore.open(bank_dir), plugins.load(settings.plugins).hook
    members = plan.panel_tasks(plan.fixed_panel(store), load(Path(settings.tasks)).tasks)
    planned = plan.panel_plan(settings, store, members, proposal, hook.valve_retrieve, confirm=confirm)
    lines = []
    try:
        panel_run.run_panel(hook.valve_attempt, store.local, settings, planned, lines.append)
    finally:
        for line in lines:
            if isinstance(line, panel_run.Charge):
                charge(line.usd, line.rollouts)
            elif isinstance(line, Event):
                observe(line)
    yield from (line for line in lines if isinstance(line, panel_run.PanelLine))


@pytest.fixture
def goes_on(calc, installed, tmp_path, monkeypatch):
    """Go on with a bank as far as limits allow, unless preflight would refuse them.

    Returns how many tries started, what stopped the run, and what it still takes to a verdict after it.
    """
    monkeypatch.setattr(judge, "panel_process", inside)
    started = tmp_path / "started"
    for name, value in {"USD": "0.1", "SECONDS": "0.004", "STARTED": str(started)}.items():
        monkeypatch.setenv(f"TOY_{name}", value)

    def run(bank, **limits):
        started.write_text("")
        store = BankStore.open(bank) if bank.exists() else BankStore.create(bank, "acme/core")
        given = {
            "plugins": ["valve", "toy"], "model": "toy", "unsafe_local": True, "tasks": str(calc), "panel_size": 2,
            "rollouts": 1, "retrieval": "paper", "embedding": "hashing", "rho": "0.4", "confirm": True,
            "workers": 2, "seed": 7, "screen": 2,
        }  # fmt: skip
        settings = store.settings({**given, **limits})
        stream = fix_panel(store, settings, load(calc))[:4]
        stopped = ""
        steps = Steps(plugins.load(settings.plugins), store, settings)
        try:
            loop(steps, stream)
        except BudgetError as e:
            stopped = str(e)
        way = next_verdict(steps, load(calc).tasks, stream)
        return len(started.read_text().splitlines()), stopped, way

    return run


@pytest.mark.heavy
@pytest.mark.parametrize(("limit", "ahead"), [("max_rollouts", 0.5), ("budget_usd", 0.5), ("max_hours", 0)])
def test_no_limit_is_exceeded_in_any_step(goes_on, tmp_path, monkeypatch, limit, ahead):
    """Attempts, baseline, candidate and confirmation draw on one budget, wherever it ends."""
    each, beyond = {"max_rollouts": (1, 0), "budget_usd": (0.1, 0), "max_hours": (1, 1)}[limit]
    if limit == "max_hours":
        monkeypatch.setenv("TOY_HOURLY", "1")  # the other worker may begin within the last hour
    needed, stopped, _ = goes_on(tmp_path / "whole")
    judged = verdicts(BankStore.open(tmp_path / "whole"))
    assert any(v.confirming for v in judged), "one is repeated; choose another seed if none is"
    assert not stopped
    in_gate = 0
    for n in range(1, needed + 1, 2):
        bank = tmp_path / f"bank{n}"
        started, stopped, way = goes_on(bank, speculate=ahead, **{limit: n * each})
        assert started <= n + beyond + ATTEMPTS * (limit == "budget_usd" and n < ATTEMPTS), (
            "nothing priced the first attempts"
        )
        assert ("is used up" in stopped or "too little is left" in stopped) if stopped else started
        in_gate += stopped != "" and waiting(BankStore.open(bank)) is not None
        more, *_, rest = goes_on(bank)
        assert rest is None
        assert (way is None) <= (more == 0), "finished, or there is a way to go on"
        # Nobody knows which gate will find what ran early, and one rollout more may have decided a gate.
        counted = way is not None and way.rollouts and not ahead and started <= n
        assert more or not counted, "what ran is not counted once more"
        assert ledger(bank) == ledger(tmp_path / "whole")
    assert ahead or in_gate > 2, (
        "in a baseline, a gate or its confirmation; early rollouts may use the budget up before"
    )


@pytest.mark.parametrize("option", ["--budget-usd", "--max-rollouts", "--max-hours"])
def test_a_budget_of_nothing_is_refused_before_anything_is_made(evolve, tmp_path, option):
    name = option.strip("-").replace("-", "_")
    for given in ((option, "0"), (option, "-1"), ("-c", f"{name}=0")):
        refused = evolve(tmp_path / "bank", *given, check=False)
        assert refused.returncode == 2
        assert f"{name} is {0 if '0' in given[1] else -1}" in refused.stderr
        assert "leave it out for no limit" in refused.stderr
        assert not (tmp_path / "bank").exists()


def test_a_model_that_mini_cannot_price_is_refused_before_a_bank_is_made(evolve, tmp_path, monkeypatch):
    monkeypatch.delenv("MSWEA_COST_TRACKING", raising=False)
    given = ("-c", 'plugins=["valve"]', "-c", "model=openai/priced-nowhere")
    with provider("never asked") as served:
        done = evolve(tmp_path / "bank", *given, "-c", f"model_kwargs.api_base={served.base}", check=False)
    assert done.returncode == 2
    assert "the price of openai/priced-nowhere is not known" in done.stderr
    assert '{"openai/priced-nowhere": {"litellm_provider": "openai"' in done.stderr
    assert not (tmp_path / "bank").exists()
    assert served.asked == []


@pytest.mark.heavy
def test_another_terminal_follows_a_run_that_started_earlier(calc, toy, evolve, tmp_path):
    none = library.valve("evolve", "--attach", "--bank", tmp_path / "bank", check=False)
    assert none.returncode == 2, "there is no bank yet"
    assert "no run has begun" in none.stderr
    path = os.pathsep.join([str(toy), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "valve_plugin", "evolve", "--bank", str(tmp_path / "bank")]
    hold = tmp_path / "hold"
    run = subprocess.Popen(
        [*command, *library.TOY, str(calc)],
        env={**os.environ, "PYTHONPATH": path, "TOY_SECONDS": "0.2", "TOY_HOLD": str(hold)},
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert any(line.startswith("task ") for line in run.stderr), "it runs"
    hold.touch()
    glance = subprocess.Popen([*command, "--attach"], stdout=subprocess.PIPE, text=True)
    assert glance.stdout.readline(), "what happens now"
    assert glance.stdout.readline().startswith("spent")
    glance.send_signal(signal.SIGINT)
    assert glance.communicate(timeout=60)[0].endswith("stopped watching; the run goes on\n")
    assert glance.returncode == 0
    assert run.poll() is None
    watch = subprocess.Popen([*command, "--attach"], stdout=subprocess.PIPE, text=True)
    assert next(line for line in watch.stdout if line.startswith("by role")), "the last figure"
    hold.unlink()
    assert next(line for line in watch.stdout if line.startswith(("task ", "gate ", "accepted", "rejected"))), "new"
    hold.touch()
    run.send_signal(signal.SIGKILL)
    run.communicate()
    said = watch.communicate(timeout=60)[0]
    assert "the run was killed; start it again to continue" in said
    assert watch.returncode == 0
    _until_free(BankStore.open(tmp_path / "bank"))
    after = library.valve("evolve", "--attach", "--bank", tmp_path / "bank", check=False)
    assert after.returncode == 1
    assert "no run of this bank is active" in after.stdout
    shown = library.valve("evolve", "--attach", "--bank", tmp_path / "bank", "--json", check=False)
    told = json.loads(shown.stdout)
    assert (told["running"], told["ended"]) == (False, "it was killed")


def _until_free(store):
    for _ in range(100):
        try:
            with store.lease():
                return
        except OSError:
            time.sleep(0.1)
