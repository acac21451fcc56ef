"""Claude Code as the agent of a rollout: notes go to the end of its system prompt."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from valve_plugin.agents import adapter
from valve_plugin.agents.adapter import Job, Launch, Messages, objects, prompt, result, turn

_NPM = ("claude", "@anthropic-ai/claude-code")
_NOTES = "notes.md"


class Claude:
    """The command `claude` in print mode."""

    name = "claude"
    provider = "anthropic"

    def version(self) -> str:
        """See `Adapter`."""
        return adapter.run_version(adapter.find_program(*_NPM))

    def launch(self, job: Job) -> Launch:
        """See `Adapter`. All its models are the configured one, and tools that need a network are off."""
        program = adapter.native_program(adapter.find_program(*_NPM), "@anthropic-ai/claude-code-*/claude")
        words = [str(program), "-p", "--model", job.model, "--verbose", "--output-format", "stream-json"]
        words += ["--dangerously-skip-permissions", "--disallowedTools", "WebSearch,WebFetch"]
        if job.notes:
            words += ["--append-system-prompt-file", f"{job.folder}/{_NOTES}"]
        env = {
            "ANTHROPIC_BASE_URL": job.url,
            "ANTHROPIC_API_KEY": "the-gateway-has-the-key",
            **{f"ANTHROPIC_DEFAULT_{kind}_MODEL": job.model for kind in ("OPUS", "SONNET", "HAIKU")},
            "API_TIMEOUT_MS": "3600000",  # the gateway waits for the provider
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "IS_SANDBOX": "1",
        }
        return Launch(words, {_NOTES: job.notes}, env, prompt(job), [program])

    def messages(self, output: str) -> Messages:
        """See `Adapter`. Its output is one JSON object a line."""
        found: Messages = []
        for event in objects(output):
            message = event.get("message")
            content = message.get("content") if isinstance(message, dict) else None
            parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
            if event.get("type") == "assistant":
                texts = [str(part.get("text") or part.get("thinking") or "") for part in parts]
                uses = [part for part in parts if part.get("type") == "tool_use"]
                found.append(turn("\n".join(filter(None, texts)), *map(_command, uses)))
            elif event.get("type") == "user":
                found += [result(_text(part.get("content"))) for part in parts if part.get("type") == "tool_result"]
        return found


def model_calls(output: str) -> tuple[str, int]:
    """Return (the last model's name, the number of its answers) of a transcript."""
    model, answers = "", set[str]()
    for event in objects(output):
        with suppress(KeyError, TypeError):
            if event["type"] == "assistant":
                model = str(event["message"]["model"])
                answers.add(str(event["requestId"] if "requestId" in event else event["message"]["id"]))
    return model, len(answers)


def has_answered(output: str) -> bool:
    """Whether a transcript ends with an answer that uses no tool; Claude Code writes it a moment after the answer."""
    for event in objects("\n".join(reversed(output.splitlines()))):  # few lines are read, of what may be long
        with suppress(KeyError, TypeError):
            if event["type"] in ("assistant", "user"):
                uses = [part["type"] == "tool_use" for part in event["message"]["content"]]
                return event["type"] == "assistant" and not any(uses)
    return False


def _command(use: dict[str, Any]) -> str:
    """Return a use of a tool as a command that says the same."""
    name, given = str(use.get("name")), use.get("input")
    given = given if isinstance(given, dict) else {}
    path = str(given.get("file_path", ""))
    if name == "Bash":
        return str(given.get("command", ""))
    if name == "Read":
        return f"cat {path}"
    if name == "Write":
        return f"cat > {path} <<'EOF'\n{given.get('content', '')}\nEOF"
    edits = given.get("edits") if isinstance(given.get("edits"), list) else [given]
    if name in ("Edit", "MultiEdit"):
        lines = [f"apply_patch <<'EOF'\n*** {path}"]
        for edit in edits or ():
            lines += [f"-{line}" for line in str(edit.get("old_string", "")).splitlines()]
            lines += [f"+{line}" for line in str(edit.get("new_string", "")).splitlines()]
        return "\n".join([*lines, "EOF"])
    return f"{name} {json.dumps(given, ensure_ascii=False)}"


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return str(content or "")
