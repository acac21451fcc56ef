"""A scripted model that real coding agents can talk to: shell commands in turn, then a last word. Loopback only."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

from tests.tools import need
from valve_plugin.lab.simulation import solver
from valve_plugin.records import Task

KEY = "sk-test-a1b2c3d4e5f6a7b8c9d0"
"""The key that a provider expects."""
MODELS = {"claude": "anthropic/claude-sonnet-4-5", "codex": "openai/gpt-5", "command": "openai/gpt-5"}
ASK = """
import json, os, subprocess, sys, urllib.request
messages = [{"role": "user", "content": "\\n".join(sys.argv[1:])}]
while True:
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    tools = [{"type": "web_search"}, {"type": "function", "function": {"name": "sh"}}]
    body = json.dumps({"model": "any", "messages": messages, "tools": tools}).encode()
    request = urllib.request.Request(url, body, {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]})
    said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    if said["content"] == "done":
        break
    print("$", said["content"], flush=True)
    shown = subprocess.run(said["content"], shell=True, capture_output=True, text=True).stdout
    messages += [said, {"role": "user", "content": shown}]
"""
LESSON = "Change the lines that the report is about, not only look at them."
FIX = "sed -i 's/result - price/result + price/; s/count > 1/count >= 1/; s/count < 1/count >= 1/' shop/cart.py"


def program(agent: str, folder: Path, places: str = "{task}") -> str:
    """The setting `agent` of claude, codex, or of a "command" that is written into the folder; skips what is absent."""
    if agent != "command":
        need(agent)
        return agent
    written = folder / "my_agent.py"
    written.write_text(f"#!/usr/bin/env python3\n{ASK}")
    written.chmod(0o755)
    return f"{written} {places}"


class ScriptedProvider:
    """Speaks Anthropic's Messages, OpenAI's Responses and Chat Completions; keeps every request."""

    def __init__(self, *commands: str) -> None:
        self.commands = commands
        self.requests: list[dict[str, Any]] = []
        self.status, self.error = 200, ""
        self.broken = 0
        """Number of answers that end too early."""
        self.unknown: tuple[str, ...] = ()
        """Ends of the addresses that it does not have, and what it answers there."""
        self.unknown_status = 404
        self.port = 0

    def environment(self) -> dict[str, str]:
        """Variables that lead clients, litellm and valve here."""
        base = f"http://127.0.0.1:{self.port}"
        return {
            "OPENAI_API_BASE": f"{base}/v1",
            "OPENAI_API_KEY": KEY,
            "ANTHROPIC_API_BASE": base,
            "ANTHROPIC_API_KEY": KEY,
            "NO_PROXY": "127.0.0.1",
        }

    def command(self, done: int, request: Mapping[str, Any]) -> str:
        """The next command of a conversation in which so many are done, or "" for the last word."""
        return self.commands[done] if request.get("tools") and done < len(self.commands) else ""

    def words(self, request: Mapping[str, Any]) -> str:
        """What it says in place of a command."""
        return "done"

    def texts(self) -> str:
        """All requests as one text."""
        return json.dumps(self.requests)


def _messages(model: ScriptedProvider, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    parts = [c for m in request["messages"] if isinstance(m["content"], list) for c in m["content"]]
    command = model.command(sum(c.get("type") == "tool_result" for c in parts), request)
    if command:
        block = {"type": "tool_use", "id": f"toolu_{len(parts)}", "name": "Bash", "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps({"command": command, "description": "act"})}
    else:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": model.words(request)}
    usage = {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 1}
    start = {"id": f"m{len(parts)}", "type": "message", "role": "assistant", "content": [], "model": request["model"]}
    stop = {"stop_reason": "tool_use" if command else "end_turn", "stop_sequence": None}
    yield {"type": "message_start", "message": {**start, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 5}}
    yield {"type": "message_stop"}


def _whole(events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream amounts to."""
    start, block, delta, _, stop, _ = events
    whole = {**block["content_block"], **{key: text for key, text in delta["delta"].items() if key == "text"}}
    if "partial_json" in delta["delta"]:
        whole["input"] = json.loads(delta["delta"]["partial_json"])
    usage = {**start["message"]["usage"], **stop["usage"]}
    return {**start["message"], **stop["delta"], "content": [whole], "usage": usage}


def _responses(model: ScriptedProvider, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    items = [i for i in request.get("input", []) if isinstance(i, dict)]
    done = sum(str(i.get("type", "")).endswith("_output") for i in items)
    command = model.command(done, request)
    item: dict[str, Any] = {"id": f"f{done}", "status": "completed"}
    if command:
        call = {"name": "exec_command", "call_id": f"c{done}", "arguments": json.dumps({"cmd": command})}
        item |= {"type": "function_call", **call}
    else:
        content = [{"type": "output_text", "text": model.words(request), "annotations": []}]
        item |= {"type": "message", "role": "assistant", "content": content}
    details = {"input_tokens_details": {"cached_tokens": 90}, "output_tokens_details": {"reasoning_tokens": 0}}
    usage = {"input_tokens": 100, "output_tokens": 5, "total_tokens": 105, **details}
    done_ = {"id": "r1", "object": "response", "status": "completed", "model": request["model"], "output": [item]}
    yield {"type": "response.created", "response": {**done_, "status": "in_progress", "output": []}}
    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": {**done_, "usage": usage}}


def _chat(model: ScriptedProvider, request: Mapping[str, Any]) -> dict[str, Any]:
    done = sum(m["role"] == "assistant" for m in request["messages"])
    message = {"role": "assistant", "content": model.command(done, request) or model.words(request)}
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
    return {"id": "x", "object": "chat.completion", "choices": [{"index": 0, "message": message}], "usage": usage}


class TeachableProvider(ScriptedProvider):
    """Knows the fixes of a task set: finds one at every second attempt, and always once the notes hold its lesson."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        super().__init__()
        self._fixes = {
            json.dumps(t.problem_statement.strip())[1:-1][:200]: solver.command(solver.changes(t.patch)) for t in tasks
        }
        self._begun = Counter[str]()

    def command(self, done: int, request: Mapping[str, Any]) -> str:
        text = json.dumps(request)
        issue = next((issue for issue in self._fixes if issue in text), "")
        if not request.get("tools") or not issue or done:
            return ""
        self._begun[issue] += 1
        return self._fixes[issue] if self._begun[issue] % 2 or LESSON in text else "ls"

    def words(self, request: Mapping[str, Any]) -> str:
        text = json.dumps(request)
        if "issue_summary" in text:  # the key that only extraction asks for
            note = {"name": "change_what_the_report_names", "text": LESSON, "markdown": f"# Do it\n\n{LESSON}"}
            return json.dumps({"issue_summary": "One edited, one looked.", "principles": [note], "skills": []})
        if '\\"verdicts\\"' in text:  # of the review of items
            names = re.findall(r'\\"name\\": *\\"([\w/]+)\\"', text)
            return json.dumps(
                {"verdicts": [{"name": n, "verdict": "safe", "reason": "Advice."} for n in dict.fromkeys(names)]}
            )
        return "done"


def _quoted(text: str) -> str:
    return json.dumps(text.strip())[1:-1]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: ScriptedProvider

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        model = self.model
        model.requests.append({"path": self.path, "headers": dict(self.headers), "request": request})
        given = self.headers.get("x-api-key") or self.headers.get("Authorization", "").removeprefix("Bearer ")
        if given != KEY:
            return self.answer(401, "application/json", json.dumps({"error": {"message": "invalid x-api-key"}}))
        if model.status != 200:
            return self.answer(model.status, "application/json", json.dumps({"error": {"message": model.error}}))
        if self.path.endswith(model.unknown or "\n"):
            return self.answer(model.unknown_status, "application/json", '{"error": {"message": "unknown"}}')
        if "count_tokens" in self.path:
            return self.answer(200, "application/json", '{"input_tokens": 5}')
        if self.path.endswith("/chat/completions"):
            return self.answer(200, "application/json", json.dumps(_chat(model, request)))
        if model.broken > 0:
            model.broken -= 1
            return self.answer(200, "text/event-stream", "", missing=1000)
        if "messages" in request and not request.get("stream"):
            return self.answer(200, "application/json", json.dumps(_whole(_messages(model, request))))
        events = (_messages if "messages" in request else _responses)(model, request)
        lines = [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events]
        return self.answer(200, "text/event-stream", "".join(lines))

    def answer(self, status: int, kind: str, text: str, missing: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text.encode()) + missing))
        self.end_headers()
        with suppress(OSError):  # who asked may have left
            self.wfile.write(text.encode())
        self.close_connection = missing > 0


Scripted = TypeVar("Scripted", bound=ScriptedProvider)


@contextmanager
def scripted_provider(*commands: str) -> Iterator[ScriptedProvider]:
    """Serve a scripted model."""
    with serve(ScriptedProvider(*commands)) as model:
        yield model


@contextmanager
def serve(model: Scripted) -> Iterator[Scripted]:
    """Serve this model."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"model": model}))
    model.port = server.server_port
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
