"""The loop with nothing replaced but the model: mini's own agent, bubblewrap, pytest, and the scripted server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.agents.clients import LESSON, MODELS, TeachableProvider, program, serve
from tests.evolve.library import valve
from tests.report.browser import check, chromium
from tests.tools import need
from valve_plugin.bank.entries import Baseline, Judged, Taken
from valve_plugin.bank.store import BankStore
from valve_plugin.bank.verify import verify
from valve_plugin.cli import app
from valve_plugin.codec import digest_bytes
from valve_plugin.tasks.task_set import load

SMALL = ("--simulate", "-c", "embedding=hashing", "-c", "rho=0.1")


def test_a_small_evolution_with_real_agents(calc, tmp_path, data_dir, monkeypatch):
    """In a checkout with a bank, which a simulation leaves alone; and what a person with a key does next."""
    need("bwrap")
    monkeypatch.chdir(tmp_path)
    valve("init")
    before = {p: p.read_bytes() for p in Path(".valve").rglob("*") if p.is_file()}
    sizes = ("--panel-size", "2", "--rollouts", "1", "--limit", "1")
    fewer = ("-c", "pairing=paper", "-c", "screen=0")  # so few panel tasks may not retrieve a note
    done = valve("evolve", calc, *SMALL, *sizes, *fewer, "--workers", "2", "--json", VALVE_BANK=".valve")
    (bank,) = (data_dir / "simulations").iterdir()
    assert done.stderr.startswith(f"SIMULATION, in a bank of its own: {bank}; ")
    assert {p: p.read_bytes() for p in before} == before
    assert json.loads(done.stdout)["simulation"] is True
    store = BankStore.open(bank)
    assert verify(bank) == []
    assert [e for e in store.entries() if isinstance(e, Judged)], "some task was mixed and its proposal was judged"
    _every_block_is_the_end_of_its_system_message(store)
    head = store.head
    real = CliRunner().invoke(app, ["evolve", str(calc), "-c", "model=openai/x", "--bank", str(bank), "--new-epoch"])
    assert real.exit_code == 2
    assert f"learn for real in another: `valve evolve {calc} --bank DIR`" in real.stderr
    store.refresh()
    assert store.head == head


def _every_block_is_the_end_of_its_system_message(store):
    attempts = store.local.attempts()
    assert {a.source for a in attempts} == {"evolve", "panel"}
    for attempt in attempts:
        trajectory = json.loads(store.local.trajectory(attempt))
        assert trajectory["trajectory_format"].startswith("mini-swe-agent")
        system = trajectory["messages"][0]["content"]
        lines = system.splitlines(keepends=True)
        endings = {digest_bytes("".join(lines[i:]).encode()) for i in range(len(lines) + 1)}
        assert attempt.context_hash in endings


@pytest.mark.heavy
def test_real_rollouts_give_the_same_ledger_for_any_number_of_workers(calc, tmp_path):
    need("bwrap")
    sizes = ("--panel-size", "2", "--rollouts", "2", "--limit", "4")
    for workers in ("1", "7"):
        valve("evolve", calc, "--bank", tmp_path / workers, *SMALL, *sizes, "--workers", workers)
    ledgers = {(tmp_path / workers / "ledger.jsonl").read_bytes() for workers in ("1", "7")}
    assert len(ledgers) == 1
    panel = valve("panel", "run", "--current", "--bank", tmp_path / "7", *SMALL)
    outcomes = [line for line in panel.stdout.splitlines() if '"outcome"' in line]
    assert len(outcomes) == 4, "the task set is remembered"
    attempts = BankStore.open(tmp_path / "7").local.attempts()
    assert {a.outcome for a in attempts} == {"resolved", "unresolved"}
    page = tmp_path / "report.html"
    valve("report", "--bank", tmp_path / "7", "--out", page)
    with chromium() as browser:
        tab = check(browser, page, color_scheme="dark")
        assert "SIMULATION" in tab.locator("aside").inner_text()
        tab.locator("#stream button[data-attempts]").first.click()
        assert "diff --git" in tab.locator("dialog[open]").inner_text()


@pytest.mark.heavy
@pytest.mark.parametrize("agent", ["command", "claude"])
def test_other_agents_from_evolve_to_try(agent, calc, tmp_path, data_dir):
    """Real Claude Code and a command, with a model that learns from a note."""
    need("bwrap")
    bank, note = tmp_path / "bank", tmp_path / "note.md"
    note.write_text(f"## Edit\n\n{LESSON}\n")
    solver = ("--agent", program(agent, tmp_path, "{task} {notes}"), "-c", f"model={MODELS[agent]}")
    sizes = ("-c", "retrieval=paper", "-c", "embedding=hashing", "-c", "rho=0.1", "--panel-size", "2")
    tasks = shutil.copytree(calc, tmp_path / "tasks", symlinks=True)
    valve("split", tasks, "--holdout", "2", "--panel", "2")
    with serve(TeachableProvider(load(tasks).tasks)) as model:

        def run(*arguments):
            return json.loads(valve(*arguments, *solver, "--json", **model.environment()).stdout)

        run("evolve", tasks, "--bank", bank, *sizes, "--rollouts", "2", "--limit", "1")
        valve("bank", "add", note, "--bank", bank)
        run("gate", "--bank", bank)
        run("eval", "--bank", bank, "--rollouts", "1")
        tried = run("try", note, "--tasks", tasks, "--pairs", "2")
    store = BankStore.open(bank)
    assert verify(bank) == []
    first, _ = (e.verdict for e in store.entries() if isinstance(e, Judged))
    assert first.decision == "accept"
    assert {e.agent.split()[0] for e in store.entries() if isinstance(e, Baseline)} == {solver[1].split()[0]}
    assert {a.outcome for a in store.local.attempts()} == {"resolved", "unresolved"}
    assert tried["with_text"]["passed"] == 1.0
    assert min(tried["with_text"]["tokens"], tried["without"]["tokens"]) > 0


@pytest.mark.heavy
def test_the_demo(tmp_path):
    """On funcy, gated beside ungated: real verdicts, sound banks, the same tasks for both."""
    need("bwrap")
    out = tmp_path / "demo"
    done = valve("demo", "--fast", "--out", out, "--json")
    facts = json.loads(done.stdout)
    assert facts["simulation"]
    assert facts["verified"]
    assert facts["gated"]["passed"].keys() == facts["ungated"]["passed"].keys(), "both saw the same tasks"
    assert {"accept", "reject"} <= {p["outcome"] for p in facts["gated"]["proposals"]}, "true of the default seed"
    assert {p["outcome"] for p in facts["ungated"]["proposals"]} <= {"taken", "empty"}
    assert facts["gated"]["baits"]["kept_out"] > facts["gated"]["baits"]["taken"], "what a gate is for"
    assert facts["ungated"]["baits"]["taken"]
    read = {name: facts[name]["holdout"] for name in ("gated", "ungated")}
    assert read["gated"]["without"] == read["ungated"]["without"], "the empty bank is read once"
    assert read["gated"]["with"]["passed"] > read["ungated"]["with"]["passed"]
    for name, steps in (("gated", Judged), ("ungated", Taken)):
        assert verify(out / name / "bank") == []
        assert any(isinstance(e, steps) for e in BankStore.open(out / name / "bank").entries())
        assert (out / name / "local" / "telemetry" / "rollouts.jsonl").stat().st_size
    page = tmp_path / "report.html"
    valve("report", "--compare", out / "gated" / "bank", out / "ungated" / "bank", "--out", page)
    with chromium() as browser:
        tab = check(browser, page, viewport={"width": 390, "height": 800})
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        heads = [h.inner_text() for h in tab.locator("#overview h3").all()]
        sides = ["A, gated", "B, ungated"]
        learned, cards = ([form.format(side) for side in sides] for form in ("What was learned, {}", "{} simulation"))
        assert heads == ["A versus B", *cards, *learned, "Side by side", "Words"], "the answers first"
    refused = valve("demo", "--out", out, check=False)
    assert refused.returncode == 2
    assert "not an empty directory" in refused.stderr
