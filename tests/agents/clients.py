"""A scripted model that real coding agents can talk to: shell commands in turn, then a last word. Loopback only."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "sk-test-a1b2c3d4e5f6a7b8c9d0"
"""The key that a provider expects."""
FIX = "sed -i 's/result - price/result + price/; s/count > 1/count >= 1/; s/count < 1/count >= 1/' shop/cart.py"


class ScriptedProvider:
    """Speaks Anthropic's Messages, OpenAI's Responses and Chat Completions; keeps every request."""

    def __init__(self, *commands: str) -> None:
        self.commands = commands
        self.requests: list[dict[str, Any]] = []
        self.status, self.error = 200, ""
        self.broken = 0
        """Number of answers that end too early."""
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

    def command(self, done: int, tools: object) -> str:
        """The next command, or "" for the last word."""
        return self.commands[done] if tools and done < len(self.commands) else ""

    def texts(self) -> str:
        """All requests as one text."""
        return json.dumps(self.requests)


def _messages(model: ScriptedProvider, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    parts = [c for m in request["messages"] if isinstance(m["content"], list) for c in m["content"]]
    command = model.command(sum(c.get("type") == "tool_result" for c in parts), request.get("tools"))
    if command:
        block = {"type": "tool_use", "id": f"toolu_{len(parts)}", "name": "Bash", "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps({"command": command, "description": "act"})}
    else:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": "done"}
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
    whole = {**block["content_block"], **({"text": "done"} if "text" in delta["delta"] else {})}
    if "partial_json" in delta["delta"]:
        whole["input"] = json.loads(delta["delta"]["partial_json"])
    usage = {**start["message"]["usage"], **stop["usage"]}
    return {**start["message"], **stop["delta"], "content": [whole], "usage": usage}


def _responses(model: ScriptedProvider, request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    items = [i for i in request.get("input", []) if isinstance(i, dict)]
    done = sum(str(i.get("type", "")).endswith("_output") for i in items)
    command = model.command(done, request.get("tools"))
    item: dict[str, Any] = {"id": f"f{done}", "status": "completed"}
    if command:
        call = {"name": "exec_command", "call_id": f"c{done}", "arguments": json.dumps({"cmd": command})}
        item |= {"type": "function_call", **call}
    else:
        content = [{"type": "output_text", "text": "done", "annotations": []}]
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
    message = {"role": "assistant", "content": model.command(done, True) or "done"}
    usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
    return {"id": "x", "object": "chat.completion", "choices": [{"index": 0, "message": message}], "usage": usage}


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


@contextmanager
def scripted_provider(*commands: str) -> Iterator[ScriptedProvider]:
    """Serve a scripted model."""
    model = ScriptedProvider(*commands)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"model": model}))
    model.port = server.server_port
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
