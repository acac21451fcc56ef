"""A bank that came with a clone: asked about once at a terminal, named elsewhere."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.banks import sample
from tests.tools import git, need_module
from valve_plugin.bank.store import BankStore
from valve_plugin.cli import app
from valve_plugin.live.context import is_welcome, notes

EXAMPLE = Path(__file__).parents[2] / "examples" / "funcy"


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BankStore:
    """A repository whose bank was made on another machine."""
    (tmp_path / "repo").mkdir()
    git(tmp_path, "init", "-q", "repo")
    monkeypatch.setenv("VALVE_DATA", str(tmp_path / "theirs"))
    made = sample(tmp_path / "repo" / ".valve").dir
    assert is_welcome(BankStore.open(made), pytest.fail)  # who made it is not asked
    monkeypatch.setenv("VALVE_DATA", str(tmp_path / "mine"))
    return BankStore.open(made)


def test_connecting_an_agent_asks_or_names_it(clone: BankStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is connected runs where nobody can be asked."""
    monkeypatch.chdir(clone.dir.parent)
    done = CliRunner().invoke(app, ["connect", "codex", "--yes"])
    assert f"{clone.dir} came with this repository" in done.stderr
    assert (clone.dir.parent / "AGENTS.md").exists()
    asked = answer(monkeypatch, "n\n")
    assert not is_welcome(clone, [].append)
    assert asked.getvalue()
    assert "not used, as you answered" in CliRunner().invoke(app, ["connect", "codex", "--yes"]).stderr
    assert not (clone.dir.parent / "AGENTS.md").exists()


@pytest.mark.parametrize("words", ["bank export --to agents", "bank export --to text", "evolve TASKS"])
def test_what_hands_notes_on_asks_or_names_it(clone: BankStore, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clone.dir.parent)
    command = words.replace("TASKS", str(EXAMPLE)).split()
    done = CliRunner().invoke(app, [*command, "--bank", str(clone.dir)])
    assert f"{clone.dir} came with this repository" in done.stderr
    (clone.dir.parent / "AGENTS.md").unlink(missing_ok=True)
    answer(monkeypatch, "n\n")
    assert not is_welcome(clone, [].append)
    done = CliRunner().invoke(app, [*command, "--bank", str(clone.dir)])
    assert done.exit_code == 2
    assert "nothing was done" in done.stderr
    assert "look-first" not in done.stdout
    assert not (clone.dir.parent / "AGENTS.md").exists()


def test_a_server_names_it_and_never_asks(clone: BankStore, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("mcp")
    monkeypatch.chdir(clone.dir.parent)
    run = [sys.executable, "-m", "valve_plugin", "mcp"]
    done = subprocess.run(run, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=60)
    assert f"{clone.dir} came with this repository" in done.stderr
    assert done.stdout == ""
    asked = answer(monkeypatch, "n\n")
    assert notes(clone.dir, "The callers break after changing a signature").items
    assert asked.getvalue() == ""


def test_a_prompt_hook_names_it_and_never_asks(clone: BankStore) -> None:
    event = json.dumps({"cwd": str(clone.dir.parent), "prompt": "The callers break after changing a signature"})
    run = [sys.executable, "-m", "valve_plugin", "context", "--hook"]
    done = subprocess.run(run, input=event, capture_output=True, text=True, check=True, timeout=60)
    assert "Read every caller with" in done.stdout
    assert done.stderr.startswith(f"valve: {clone.dir} came with this repository: 2 notes")


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> Terminal:
    asked = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(text))
    monkeypatch.setattr(sys, "stderr", asked)
    return asked


@pytest.mark.parametrize(("text", "welcome"), [("YES\n", True), ("n\n", False), ("", False)])
def test_it_is_asked_about_once(clone: BankStore, monkeypatch: pytest.MonkeyPatch, text: str, welcome: bool) -> None:
    asked, said = answer(monkeypatch, text), []
    assert is_welcome(clone, said.append) is welcome
    assert f"{clone.dir} came with this repository: 2 notes" in asked.getvalue()
    again = answer(monkeypatch, "")
    assert is_welcome(clone, said.append) is welcome
    assert again.getvalue() == ""
    assert [str(clone.dir) in line for line in said] == ([] if welcome else [True])


def test_it_is_named_without_a_terminal_and_asked_about_later(
    clone: BankStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    assert is_welcome(clone, said.append)
    assert len(said) == 1
    assert str(clone.dir) in said[0]
    asked = answer(monkeypatch, "n\n")
    assert not is_welcome(clone, said.append)
    assert asked.getvalue()
