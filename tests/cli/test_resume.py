"""The command that goes on is the one that was typed, as a shell takes it and without keys."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.banks import NOISE
from valve_plugin.bank.entries import Proposed
from valve_plugin.cli import output
from valve_plugin.config import SCRIPTED_MODEL
from valve_plugin.errors import InfrastructureError
from valve_plugin.lab.demo import example
from valve_plugin.records import Proposal

WORDS = st.lists(st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=8), max_size=5)


@given(WORDS)
def test_a_shell_reads_what_was_typed(words):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["/usr/bin/valve", "evolve", *words])
        told = output.resume_command()
    assert output.one_line(told) == told
    read = subprocess.run(["/bin/bash", "-c", f"printf '%s\\0' {told}"], capture_output=True, check=True)
    assert read.stdout.decode().split("\0")[:-1] == ["valve", "evolve", *words]


@pytest.mark.parametrize(
    "setting",
    [
        'model_kwargs={"api_key": "hunter22-hunter22"}',
        'mini_config=["own.yaml", "model.model_kwargs.api_key=hunter22-hunter22"]',
        'mini_config=["model.model_kwargs={\\"api_key\\": \\"hunter22-hunter22\\"}"]',
        "model_kwargs.api_key=hunter22-hunter22",
    ],
)
def test_no_key_and_no_second_epoch(monkeypatch, setting):
    monkeypatch.setattr("sys.argv", ["valve", "evolve", "tasks", "--new-epoch", "-c", setting])
    with (
        pytest.raises(InfrastructureError, match="it is down; then start it again: valve evolve tasks -c") as stopped,
        output.advise_on_stop(),
    ):
        raise InfrastructureError("it is down")
    assert "hunter22" not in str(stopped.value)


def test_valve_advises_the_command_that_was_interrupted(bank, valve, monkeypatch, tmp_path):
    waiting = Proposal(task_id="bug-w", items=(NOISE,), model=SCRIPTED_MODEL)
    bank.append(Proposed(proposal=waiting))
    gate = f"valve gate --simulate --bank {bank.dir}"  # by its name: without it a simulation has another
    assert valve("--json")["next"]["command"] == valve("--json", "--bank", str(bank.dir))["next"]["command"] == gate
    typed = ["valve", "evolve", "tasks/", "--simulate", "--bank", str(bank.dir), "-c", "seed=7"]
    monkeypatch.setattr("sys.argv", typed)
    output.remember(bank.local)
    for words in ((), ("--bank", str(bank.dir))):
        assert valve("--json", *words)["next"]["command"] == " ".join(typed)
    monkeypatch.chdir(tmp_path)  # where tasks/ is not
    assert valve("--json", "--bank", str(bank.dir))["next"]["command"].startswith("valve gate --simulate")
    monkeypatch.chdir(bank.dir.parent)
    monkeypatch.setattr("sys.argv", ["valve", "demo", "--out", "x"])
    output.remember(bank.local)
    assert valve("--json")["next"]["command"] == gate


@pytest.mark.parametrize(
    "command", [["tasks", "verify"], ["evolve", "--simulate", "--panel-size", "6", "-c", "unsafe_local=true"]]
)
def test_an_interrupt_while_a_repository_is_fetched_says_how_to_continue(command, project, valve, monkeypatch):
    def fetch(*_: object) -> None:
        raise KeyboardInterrupt

    for module in ("tasks.repository", "evolve.open"):
        monkeypatch.setattr(f"valve_plugin.{module}.prepare", fetch)
    words = [*command, str(example("funcy"))]
    monkeypatch.setattr("sys.argv", ["valve", *words])
    valve(*words, code=output.INTERRUPTED)
    assert "start it again: valve " in valve.err.splitlines()[-1]
