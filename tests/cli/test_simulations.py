"""A simulation has a bank of its own, everybody who reads it is told, and no real run uses it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.cli.banks import AFTER, NOISE, judge, outcomes, sample
from tests.cli.conftest import Run
from tests.tools import git
from valve_plugin.bank.entries import Baseline, Judged, Proposed
from valve_plugin.bank.scripted_bank import HEEDS_ITS_OWN
from valve_plugin.bank.store import BankStore
from valve_plugin.cli.demo import _story
from valve_plugin.cli.evolve import show
from valve_plugin.codec import digest
from valve_plugin.config import SCRIPTED_MODEL
from valve_plugin.lab.demo import FULL, DemoResult, Passes, example
from valve_plugin.paths import scripted_bank_dir
from valve_plugin.records import PanelResult, Proposal, owner_task
from valve_plugin.report.build import build_run
from valve_plugin.report.page import render_page

HINT = "a bank of its own: --bank"
REAL = ("-c", "model=openai/real")
READ = (["bank", "list"], ["bank", "log"], ["bank", "show", "dates"], ["bank", "lint"], ["bank", "verify"], ["certify"],
        ["plan"], [])  # fmt: skip
PROPOSED = Proposed(proposal=Proposal(task_id="bug-w", items=(NOISE,), model=SCRIPTED_MODEL))


@pytest.fixture
def simulated(bank: BankStore) -> BankStore:
    """The sample bank, in which a simulation went on."""
    bank.append(PROPOSED)
    return bank


def by_proposing(bank: BankStore) -> None:
    bank.append(PROPOSED)


def by_judging(bank: BankStore) -> None:
    """A gate of the scripted model begins: of what, the ledger does not have to say."""
    panel, epoch = bank.panel(), bank.epoch()
    assert panel is not None
    assert epoch is not None
    bank.append(replace(epoch, epoch=2))
    measured = PanelResult(bank_hash=bank.bank.hash, outcomes=outcomes(AFTER, 3, 6, first=20))
    bank.append(Baseline(epoch=2, result=measured, model=SCRIPTED_MODEL))


@pytest.mark.parametrize("simulate", [by_proposing, by_judging])
@pytest.mark.parametrize("command", READ, ids=" ".join)
def test_who_reads_a_bank_is_told_whether_it_is_a_simulations(
    command: list[str], simulate: Callable[[BankStore], None], bank: BankStore, valve: Run
) -> None:
    for simulation in (False, True):
        first, _, _ = valve(*command, code=None).partition("\n")
        assert first.startswith("SIMULATION") == simulation
        found = valve(*command, "--json", code=None)
        assert {one["simulation"] for one in (found if isinstance(found, list) else [found])} == {simulation}
        assert build_run(BankStore.open(bank.dir)).simulated == simulation
        if not simulation:
            simulate(bank)


def test_context_is_given_to_nobody_who_does_not_ask_for_a_simulations(simulated: BankStore, valve: Run) -> None:
    asked = ("context", "Read the callers before changing a signature")
    for more in ((), ("--json",)):
        with pytest.raises(ValueError, match="Expecting value") if more else pytest.MonkeyPatch.context():
            assert valve(*asked, *more, code=2) == ""
    assert "--simulate prints it" in valve.err
    assert "Read every caller" in valve(*asked, "--simulate", "--bank", str(simulated.dir))
    assert valve(*asked, "--simulate", "--bank", str(simulated.dir), "--json")["simulation"] is True


@pytest.mark.parametrize(
    "command",
    [
        ["evolve", str(example("funcy"))],
        ["evolve", str(example("funcy")), "--new-epoch"],
        ["gate"],
        ["gate", "--new-epoch"],
        ["eval", str(example("funcy"))],
        ["panel", "items", "--tasks", str(example("funcy"))],
        ["panel", "run", "--current", "--tasks", str(example("funcy"))],
        ["plan", "--measure", "1", "--tasks", str(example("funcy"))],
        ["bank", "retire", "dates", "--tasks", str(example("funcy")), "--new-epoch"],
    ],
    ids=lambda words: " ".join(word for word in words if "/" not in word),
)
def test_neither_goes_on_in_a_bank_of_the_other(command: list[str], bank: BankStore, valve: Run) -> None:
    here = ("--bank", str(bank.dir))
    valve(*command, *here, "--simulate", code=2)
    assert "what the scripted model learns does not belong in it" in valve.err
    bank.append(PROPOSED)
    for words in ((), here):
        valve(*command, *words, *REAL, code=2)
        assert "this bank was learned or judged by the scripted model" in valve.err
        assert "--bank DIR`" in valve.err
    bank.refresh()
    assert list(bank.entries())[-1] == PROPOSED


def test_a_repositorys_own_bank_is_not_begun_by_a_simulation(
    project: Path, valve: Run, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for made, where in ((False, project), (True, project), (True, elsewhere)):
        if made:
            valve("init")
        monkeypatch.chdir(where)
        valve("evolve", str(example("funcy")), "--simulate", "--bank", str(project / ".valve"), code=2)
        assert "is a repository's own bank" in valve.err
        assert (project / ".valve").exists() == made


def test_without_a_bank_it_is_told_where_the_simulations_is(bank: BankStore, valve: Run) -> None:
    own = scripted_bank_dir("project")
    valve("gate", "--simulate", code=2)
    first, second = valve.err.splitlines()
    assert first == f"SIMULATION, in a bank of its own: {own}; to look at it: valve bank log --bank {own}"
    assert second.startswith(
        f"valve: {own}: there is no simulation here yet; `valve evolve TASKS --simulate` starts one"
    )


def test_a_repository_without_tasks_does_not_get_the_simulation_of_another(
    project: Path, valve: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample(scripted_bank_dir("other/library"))
    git(project, "init", "-q")
    commands = (["gate"], ["bank", "retire", "dates"], ["eval"], ["panel", "items"], ["context", "dates"])
    for command in (*commands, ["plan", "--measure", "1"], ["panel", "run", "--current"]):
        valve(*command, "--simulate", code=2)
        assert "there is no simulation here yet" in valve.err, command
        assert "there is none of project" in valve.err, command


def test_what_a_gate_says_of_a_persons_note_in_a_simulation_is_called_chance(
    bank: BankStore, capsys: pytest.CaptureFixture[str]
) -> None:
    show(bank, simulate=True)
    assert "chance" not in capsys.readouterr().out
    own = Proposal(task_id=owner_task("from AGENTS.md"), items=(replace(NOISE, name="own"),))
    bank.append(Proposed(proposal=own))
    judge(bank, own, 3, outcomes(digest("own block"), 0, 1), current_passes=5)
    show(bank, simulate=False)
    assert "chance" not in capsys.readouterr().out
    show(bank, simulate=True)
    assert HEEDS_ITS_OWN in capsys.readouterr().out
    bank.append(PROPOSED)
    assert HEEDS_ITS_OWN in render_page([build_run(bank)], {})


def test_what_ran_beside_a_verdict_is_counted(bank: BankStore, valve: Run) -> None:
    rejected = next(e.verdict for e in bank.entries() if isinstance(e, Judged) and e.verdict.decision == "reject")
    bank.local.write_telemetry("gates", {"proposal_id": rejected.proposal_id, "ran": 2, "cost_usd": 0.0})
    assert (
        "1 of 6 rollouts (query 2 of epoch 1); 1 more ended before the verdict stopped them; 4 of 6 rollouts saved"
        in (valve("bank", "log"))
    )


def test_who_looks_into_a_bank_without_lessons_is_told_of_the_simulations(
    project: Path, valve: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = sample(scripted_bank_dir("project")).dir
    for command in (["report"], ["bank", "log"], ["certify"]):
        valve(*command, code=2)
        assert f"there is no bank here; make one with `valve init`; what a simulation learned is in {HINT} {own}" in (
            valve.err
        )
    assert valve("--json")["simulated"] == str(own)
    valve("init")
    for command in (["bank", "list"], ["bank", "log"], ["report", "--json"]):
        valve(*command)
        assert f"{HINT} {own}" in valve.err
    valve("bank", "list", "--bank", str(own))
    assert HINT not in valve.err
    assert f"valve --bank {own}" in valve()


def test_a_bank_with_lessons_says_nothing_of_simulations(bank: BankStore, valve: Run) -> None:
    sample(scripted_bank_dir("project"))
    valve("bank", "list")
    assert HINT not in valve.err


def test_a_gate_of_a_simulation_names_the_notes_that_wait_elsewhere(project: Path, valve: Run) -> None:
    own = sample(scripted_bank_dir("project"))
    own.append(PROPOSED)
    valve("bank", "review", PROPOSED.proposal.id[:8], "--drop", "--bank", str(own.dir))
    valve("init")
    assert valve("gate", "--simulate") == "nothing waits\n"
    (project / "notes.md").write_text("## Pages\n\nPages count from 1.\n")
    valve("bank", "add", "notes.md")
    assert f"1 proposal waits in {project / '.valve'}" in valve("gate", "--simulate")


@given(*[st.integers(0, 32)] * 3, st.integers(0, 5), st.integers(0, 5))
def test_the_demo_says_what_it_saw_also_where_the_gated_bank_is_not_ahead(
    empty: int, behind: int, without: int, kept_out: int, taken: int
) -> None:
    run: Any = SimpleNamespace(store=SimpleNamespace(bank=SimpleNamespace(version=2)))
    panel = (Passes(10, 24), Passes(19, 24))
    read = [(Passes(empty, 32), Passes(passed, 32)) for passed in (behind, without)]
    gated = DemoResult(run, {}, 9, {"kept_out": kept_out, "taken": taken}, panel, read[0])
    told = list(_story(gated, DemoResult(run, {}, 9, {"kept_out": 0, "taken": 4}, None, read[1]), FULL))
    assert "SIMULATION" in told[0]
    assert (
        f"{empty} of 32 attempts passed without notes, {behind} of 32 with the gated bank, {without} of 32" in told[3]
    )
    assert any("not ahead" in line for line in told) == (behind <= max(empty, without))
