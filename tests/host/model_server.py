"""A small OpenAI-compatible server that answers with scripted bash calls, and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Server:
    """A running server."""

    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def serve(commands: Sequence[str]) -> Iterator[Server]:
    """Serve on a free local port. The n-th assistant turn of any conversation runs the n-th command."""
    server = Server("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            server.requests.append(request)
            body = json.dumps(_answer(request, commands)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        server.url = f"http://127.0.0.1:{listening.server_address[1]}/v1"
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()


def _answer(request: dict[str, Any], commands: Sequence[str]) -> dict[str, Any]:
    turn = sum(message["role"] == "assistant" for message in request["messages"])
    arguments = json.dumps({"command": commands[min(turn, len(commands) - 1)]})
    call = {"id": f"call_{turn}", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    message = {"role": "assistant", "content": f"step {turn}", "tool_calls": [call]}
    return {
        "id": "answer",
        "object": "chat.completion",
        "created": 0,
        "model": request["model"],
        "choices": [{"index": 0, "finish_reason": "tool_calls", "message": message}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }
