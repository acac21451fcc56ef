"""What an agent's hooks get and record: real processes, as Claude Code starts them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli import banks
from tests.tools import git, need_module, until
from valve_plugin.agents.claude import has_answered
from valve_plugin.bank.local import local_store
from valve_plugin.live import trees
from valve_plugin.live.trees import Trees

HEAVY = ("typer", "pluggy", "pydantic", "importlib.metadata", "filelock", "logging", "numpy")
"""What a person would wait for with each prompt."""


def test_notes_for_a_prompt_come_without_the_packages_of_the_command_line(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    banks.sample(tmp_path / ".valve", "shop")
    event = json.dumps({"cwd": str(tmp_path), "prompt": "The callers break after changing a signature"})
    code = f"""
import sys
from valve_plugin.__main__ import main
sys.argv = ["valve", "context", "--hook"]
main()
print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=event, capture_output=True, text=True, check=True, timeout=120)
    assert "Read every caller with" in done.stdout
    assert done.stderr.strip() == "[]"
    whole = [sys.executable, "-m", "valve_plugin", "context", "--hook", "--bank", str(tmp_path / ".valve")]
    assert subprocess.run(whole, input=event, capture_output=True, text=True, timeout=120).stdout == done.stdout


def test_an_attempt_is_what_changed_between_the_last_prompt_and_its_end(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    local = local_store(banks.sample(tmp_path / ".valve", "shop").dir)
    secret = "sk-proj-4f8a91c2d7e6b3a5f0c9d8e7"
    (tmp_path / ".env").write_text(f"OPENAI_API_KEY={secret}\n")
    (tmp_path / "cart.py").write_text("total = 1\n")
    transcript = tmp_path.with_name("transcript.jsonl")
    transcript.write_text('{"type": "assistant", "message": {"id": "a", "model": "other", "content": []}}\n')

    def tell(name: str, session: str = "one", **more: str) -> None:
        event = {"hook_event_name": name, "session_id": session, "cwd": str(tmp_path), **more}
        event |= {"transcript_path": str(transcript)}
        command = [sys.executable, "-m", "valve_plugin", "attempts", "record"]
        done = subprocess.run(command, input=json.dumps(event), capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    tell("Stop")
    tell("UserPromptSubmit", prompt="given up")
    (tmp_path / "cart.py").write_text("total = 2\n")
    tell("UserPromptSubmit", prompt="Totals are wrong")
    tell("Stop", session="another")
    (tmp_path / "cart.py").write_text(f"total = 3  # {secret}\n")
    (tmp_path / "new.py").write_text("")
    settings = tmp_path / ".claude" / "settings.local.json"
    settings.parent.mkdir()
    settings.write_text("{}")
    use = {"type": "tool_use", "name": "Bash", "input": {"command": "make"}}
    answer = {"type": "assistant", "message": {"id": "b", "model": "claude", "content": [use]}}
    with transcript.open("a") as f:
        f.write(json.dumps(answer) + "\n")
    for _ in range(2):
        tell("Stop")
    until(lambda: local.attempts() and not list((local.dir / "sessions").iterdir()))  # it goes on in the background
    (attempt,) = local.attempts()
    assert (attempt.task_text, attempt.outcome) == ("Totals are wrong", "ungraded")
    assert (attempt.model, attempt.steps) == ("claude", 1)
    assert "-total = 2" in attempt.patch
    assert {line.split()[-1] for line in attempt.patch.splitlines() if line.startswith("diff")} == {
        "b/cart.py",
        "b/new.py",
    }
    assert secret not in attempt.patch
    assert b"make" in local.trajectory(attempt)


def test_an_event_is_recorded_without_the_packages_of_the_command_line(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    local = local_store(banks.sample(tmp_path / ".valve", "shop").dir)
    event = {"hook_event_name": "UserPromptSubmit", "session_id": "one", "cwd": str(tmp_path), "prompt": "Add it"}
    code = f"""
import sys
from valve_plugin.__main__ import main
sys.argv = {["valve", "attempts", "record", "--check", "pytest -q"]!r}
main()
print([name for name in {("typer", "pluggy", "numpy", "litellm", "minisweagent")!r} if name in sys.modules])
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=json.dumps(event), capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
    assert list((local.dir / "sessions").glob("*/prompt.json"))


def test_another_process_goes_on_with_a_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, kept = tmp_path / "root", tmp_path / "kept"
    for folder in (root, kept):
        folder.mkdir()
    git(root, "init", "-q")
    git(root, "init", "-q", "nested")
    (root / "large").write_bytes(b"x" * 2000)
    (root / "left").write_text("out")
    monkeypatch.setattr(trees, "MAX_FILE_BYTES", 1000)
    first = Trees(root, kept, [root / "left"])
    base = first.capture()
    again = Trees.resumed(json.loads(json.dumps(first.saved())))
    assert vars(again) == vars(first)
    (root / "large").write_bytes(b"now small")
    (root / "small").write_text("new")
    assert [change.path for change in again.changes(base, again.capture())] == ["small"]


def test_an_mcp_client_gets_notes_and_records_an_attempt(tmp_path: Path) -> None:
    need_module("mcp")
    from mcp import Client, StdioServerParameters

    git(tmp_path, "init", "-q")
    local = local_store(banks.sample(tmp_path / ".valve", "shop").dir)
    (tmp_path / "cart.py").write_text("total = 1\n")
    command = ["-m", "valve_plugin", "mcp"]
    server = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ), cwd=tmp_path)
    task = "The callers break after changing a signature"

    async def talk() -> list[str]:
        async with Client(server) as client:

            async def call(name: str, **given: str) -> str:
                return str((await client.call_tool(name, given)).content)

            said = [await call("notes_for_task", task=task)]
            (tmp_path / "cart.py").write_text("total = 2\n")
            said.append(await call("record_attempt", task="another", report=""))
            said.append(await call("record_attempt", task=task, report="I ran `make`."))
            said.append(await call("notes_for_task", task=task))
            said.append(await call("record_attempt", task=task, report="Nothing."))
            return said

    notes, unknown, recorded, _, unchanged = asyncio.run(talk())
    assert "Read every caller with" in notes
    assert "Not recorded" in unknown
    assert "'Recorded." in recorded
    assert "no file has changed" in unchanged
    (attempt,) = local.attempts()
    assert (attempt.task_text, attempt.outcome, len(attempt.context_items)) == (task, "ungraded", 2)
    assert "+total = 2" in attempt.patch
    assert b"I ran `make`." in local.trajectory(attempt)


def test_a_transcript_has_its_answer_when_its_last_message_uses_no_tool() -> None:
    said, used, result, answer = (
        json.dumps({"type": kind, "message": {"content": content}})
        for kind, content in (
            ("user", "Fix it"),
            ("assistant", [{"type": "tool_use"}]),
            ("user", [{"type": "tool_result"}]),
            ("assistant", [{"type": "text", "text": "Done."}]),
        )
    )
    lines = [said, used, result, answer]
    assert [has_answered("\n".join(lines[:end])) for end in range(5)] == [False] * 4 + [True]
    assert has_answered("\n".join([*lines, '{"type":"summary"}', '{"type'])), "what follows is no message"
