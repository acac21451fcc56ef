"""A model provider on this machine that answers what a test tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Provider(ThreadingHTTPServer):
    """Answers every chat completion with the next of `contents` (the last one stays) under `status`."""

    def __init__(self, *contents: str | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.contents, self.status = list(contents), 200
        self.failing_from: int | None = None
        """Number of the first request, from 0, that fails with status 400."""
        self.asked: list[dict] = []
        """Every request's body."""

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        if self.server.failing_from is not None and len(self.server.asked) > self.server.failing_from:
            self.server.status = 400
        content = self.server.contents[min(len(self.server.asked), len(self.server.contents)) - 1]
        message = {"role": "assistant", "content": content}
        body = {"id": "x", "object": "chat.completion", "created": 0, "model": "m"}
        body["usage"] = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
        body["choices"] = [{"index": 0, "finish_reason": "stop", "message": message}]
        raw = json.dumps(body if self.server.status == 200 else {"error": {"message": "no"}}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_):
        pass


@contextmanager
def provider(*contents: str | None) -> Iterator[Provider]:
    """Run a provider while the block lasts."""
    server = Provider(*contents)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
