"""Codex as the agent of a rollout: notes are the AGENTS.md of its own home, so no file of the repository changes."""

from __future__ import annotations

import json
import shlex

from valve_plugin.agents import adapter
from valve_plugin.agents.adapter import Job, Launch, Messages, objects, prompt, result, turn

_NPM = ("codex", "@openai/codex")
_KEY = "GATEWAY_KEY"


class Codex:
    """The command `codex exec`."""

    name = "codex"
    provider = "openai"

    def version(self) -> str:
        """See `Adapter`."""
        return adapter.run_version(adapter.find_program(*_NPM))

    def launch(self, job: Job) -> Launch:
        """See `Adapter`. A login shell is off, because its start-up files would put another Python first."""
        program = adapter.native_program(adapter.find_program(*_NPM), "@openai/codex-*/vendor/*/bin/codex")
        provider = {
            "name": "gateway",
            "base_url": f"{job.url}/v1",
            "env_key": _KEY,
            "wire_api": "responses",
            "request_max_retries": 0,
            "stream_idle_timeout_ms": 3_600_000,  # the gateway waits for the provider
        }
        inline = ", ".join(f"{name} = {json.dumps(value)}" for name, value in provider.items())
        settings = [
            'model_provider="gateway"',
            f"model_providers.gateway={{{inline}}}",
            "allow_login_shell=false",
            'web_search="disabled"',
            "analytics.enabled=false",  # its end would wait five seconds for a server that a sandbox cannot reach
        ]
        words = [str(program), "exec", "--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        words += [word for setting in settings for word in ("-c", setting)]
        words += ["-m", job.model, "-"]
        env = {"CODEX_HOME": job.folder, _KEY: "the-gateway-has-the-key", "TOKIO_WORKER_THREADS": "4"}
        shown = program.parents[1] if program.parent.name == "bin" and "vendor" in program.parts else program
        return Launch(words, {"AGENTS.md": job.notes} if job.notes else {}, env, prompt(job), [shown])

    def messages(self, output: str) -> Messages:
        """See `Adapter`. Its output is one JSON object a line; text before a command is its thought."""
        found: Messages = []
        for event in objects(output):
            item = event.get("item")
            if event.get("type") != "item.completed" or not isinstance(item, dict):
                continue
            kind = item.get("type")
            if kind in ("agent_message", "reasoning"):
                found.append(turn(str(item.get("text", ""))))
            elif kind == "command_execution":
                found.append(turn("", _script(str(item.get("command", "")))))
                found.append(result(str(item.get("aggregated_output", "")), item.get("exit_code")))
            elif kind == "file_change":
                named = [
                    f"*** {c.get('kind')} {c.get('path')}" for c in item.get("changes") or () if isinstance(c, dict)
                ]
                found.append(turn("", "\n".join(["apply_patch <<'EOF'", *named, "EOF"])))
        # The turns with each text in the turn of the command that follows it
        joined: Messages = []
        for message in found:
            before = joined[-1] if joined else {}
            if message["role"] == before.get("role") == "assistant" and not before["extra"]["actions"]:
                text = "\n".join(filter(None, [before["content"], message["content"]]))
                joined[-1] = turn(text, *(a["command"] for a in message["extra"]["actions"]))
            else:
                joined.append(message)
        return joined


def _script(command: str) -> str:
    """Return what a shell was given, without the shell."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    return words[2] if len(words) == 3 and words[1] in ("-c", "-lc") else command
