"""`valve connect`: Claude Code's settings with hooks, and the real client that runs them; files of other agents."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.agents.clients import scripted_provider
from tests.cli import banks
from tests.tools import git, need, until
from valve_plugin.bank.local import local_store
from valve_plugin.cli import app
from valve_plugin.cli.connect import connection, with_hooks, without_hooks
from valve_plugin.extract.digest import steps

OTHERS = st.lists(st.fixed_dictionaries({"hooks": st.just([{"type": "command", "command": "lint"}])}), min_size=1)
HOOKS = st.dictionaries(st.sampled_from(["Stop", "UserPromptSubmit"]), OTHERS, min_size=1)
SETTINGS = st.fixed_dictionaries({}, optional={"model": st.text(), "hooks": HOOKS})


@given(SETTINGS, st.text())
def test_undo_gives_back_what_was_there(settings: dict[str, Any], check: str) -> None:
    connected = with_hooks(settings, "valve", check)
    assert connected != settings
    assert without_hooks(connected) == settings == without_hooks(settings)
    found = connection(connected)
    assert (connection(settings), found and found.program) == (None, "valve")


PROMPT = "The callers break after changing a signature"


@pytest.mark.heavy
def test_claude_code_gets_the_notes_of_its_prompt_and_its_attempts_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("claude")
    need("bwrap")
    repository, home = tmp_path / "shop", tmp_path / "home"
    for folder in (repository, home):
        folder.mkdir()
    git(repository, "init", "-q")
    (repository / "cart.py").write_text("total = 1\n")
    store = banks.sample(repository / ".valve", "shop")
    monkeypatch.chdir(repository)
    settings = repository / ".claude" / "settings.local.json"
    refused = CliRunner().invoke(app, ["connect", "claude"])
    assert (refused.exit_code, settings.exists()) == (2, False)
    made = CliRunner().invoke(app, ["connect", "claude", "--yes", "--check", "cat *.py | grep -q 2"])
    assert made.exit_code == 0, made.output
    assert "+" in made.output
    with scripted_provider() as provider:
        there = {
            "ANTHROPIC_BASE_URL": f"http://127.0.0.1:{provider.port}",
            "ANTHROPIC_API_KEY": provider.environment()["ANTHROPIC_API_KEY"],
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "IS_SANDBOX": "1",
            "HOME": str(home),
        }

        def ask(*commands: str) -> None:
            provider.commands = commands
            command = ["claude", "-p", "--dangerously-skip-permissions", PROMPT]
            subprocess.run(command, env={**os.environ, **there}, check=True, stdin=subprocess.DEVNULL, timeout=200)
            (repository / "cart.py").write_text("total = 1\n")

        ask()  # a question: nothing changes
        assert "Read every caller with" in provider.texts()
        for number in (2, 2, 3):
            ask(f"echo 'total = {number}' > cart.py")
    local = local_store(store.dir)
    until(lambda: len(local.attempts()) == 3)  # they are graded in the background
    attempts = local.attempts()
    assert sorted(a.outcome for a in attempts) == ["resolved", "resolved", "unresolved"]
    assert {(a.task_text, a.source, a.steps) for a in attempts} == {(PROMPT, "live", 2)}
    assert all("+total = " in a.patch and a.patch.count("diff --git") == 1 and a.context_items for a in attempts)
    assert "> cart.py" in str(steps(local.trajectory(attempts[0])))
    (job,) = until(local.queue)
    assert set(job["attempts"]) == {a.id for a in attempts}
    until(lambda: not list((local.dir / "sessions").iterdir()))
    undone = CliRunner().invoke(app, ["connect", "claude", "--undo", "--yes"])
    assert (undone.exit_code, settings.exists()) == (0, False), undone.output


@pytest.mark.parametrize(
    ("agent", "file", "own"),
    [("codex", "AGENTS.md", "# Ours\n"), ("codex", "AGENTS.md", ""), ("cursor", ".cursor/rules/valve.mdc", "")],
)
def test_an_agent_without_hooks_gets_the_notes_in_its_file(
    agent: str, file: str, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".git").mkdir()
    banks.sample(tmp_path / ".valve", "shop")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / file
    if own:
        path.write_text(own)
    for options, text in (((), "Read every caller with"), (("--undo",), own)):
        refused = CliRunner().invoke(app, ["connect", agent, *options])
        assert refused.exit_code == 2
        for changed in (True, False):
            done = CliRunner().invoke(app, ["connect", agent, *options, "--yes", "--json"])
            assert json.loads(done.stdout)["changed"] is changed
        assert (text in path.read_text() and own in path.read_text()) if path.exists() else text == ""


@pytest.mark.parametrize("event", ["", "{}", '{"prompt": "x", "cwd": "/no/such/place"}', "[1]"])
@pytest.mark.parametrize("hook", [["context", "--hook"], ["attempts", "record"]])
def test_a_hook_with_nothing_to_do_says_nothing(
    hook: list[str], event: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, hook, input=event)
    assert (done.exit_code, done.output) == (0, "")


def test_a_bank_without_notes_leaves_no_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(app, ["init"])
    done = CliRunner().invoke(app, ["connect", "codex", "--yes"])
    assert (done.exit_code, (tmp_path / "AGENTS.md").exists()) == (0, False)
    assert "holds no notes yet" in done.stderr
    assert "AGENTS.md: there is no such file, and none was made" in done.stdout


def test_the_settings_of_one_person_are_not_for_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    settings = tmp_path / ".claude" / "settings.local.json"
    for _ in range(2):
        made = CliRunner().invoke(app, ["connect", "claude", "--yes"])
        assert made.exit_code == 0, made.output
        assert settings.exists()
        assert git(tmp_path, "status", "--porcelain", "-uall") == ""
        undone = CliRunner().invoke(app, ["connect", "claude", "--undo", "--yes"])
        assert undone.stdout.endswith(f"{settings}: removed\n")
    assert (tmp_path / ".git/info/exclude").read_text().count("settings.local.json") == 1


def test_an_environment_inside_a_clone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "clone/.venv/bin/valve"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    here = tmp_path / "here"
    here.mkdir()
    git(here, "init", "-q")
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    for clone in (False, True):
        if clone:
            git(tmp_path / "clone", "init", "-q")
        made = CliRunner().invoke(app, ["connect", "claude", "--yes"])
        assert made.exit_code == 0, made.output
        assert (f"in the clone {tmp_path / 'clone'}" in made.stderr) == clone
