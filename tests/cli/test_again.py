"""The command that goes on is the one that was typed, as a shell takes it and without keys."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from valve_plugin.cli import again, output
from valve_plugin.config import Settings
from valve_plugin.errors import InfrastructureError

WORDS = st.lists(st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=8), max_size=5)


@settings(max_examples=60)
@given(WORDS)
def test_a_shell_reads_what_was_typed(words):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["/usr/bin/valve", "evolve", *words])
        told = again.command(Settings())
    assert output.one_line(told) == told
    read = subprocess.run(["/bin/bash", "-c", f"printf '%s\\0' {told}"], capture_output=True, check=True)
    assert read.stdout.decode().split("\0")[:-1] == ["valve", "evolve", *words]


def test_no_key_and_no_second_epoch(monkeypatch):
    kwargs = {"api_key": "sk-0123456789abcdef0123"}
    typed = ["valve", "evolve", "tasks", "--new-epoch", "-c", 'model_kwargs={"api_key": "sk-0123456789abcdef0123"}']
    monkeypatch.setattr("sys.argv", typed)
    with (
        pytest.raises(InfrastructureError, match="it is down; then start it again: valve evolve tasks -c") as stopped,
        again.told(Settings(model_kwargs=kwargs)),
    ):
        raise InfrastructureError("it is down")
    assert "sk-0" not in str(stopped.value)


def test_somebody_elses_program_is_not_called_valve(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/opt/research.py", "evolve"])
    assert again.command(Settings()) == ""
