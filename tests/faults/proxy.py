"""A small HTTP proxy on 127.0.0.1 before a model server, whose faults are real: what a client sees is on the wire.

Which request fails, and how, follows from the seed, its bytes, and how often exactly that request came before:
neither the number of workers nor their order changes it.
"""

from __future__ import annotations

import hashlib
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KINDS = ("429", "429-later", "500", "503-html", "529", "timeout", "half", "reset", "html", "garbage", "empty",
         "no-choices", "error-in-200")  # fmt: skip
"""What a provider's bad day looks like; `timeout` answers after the client has left."""
_ERROR = b'{"error": {"message": "%s", "type": "x", "code": %s}}'


class Proxy(ThreadingHTTPServer):
    """Passes requests on, but for the share that fails."""

    daemon_threads, block_on_close, request_queue_size = True, False, 128

    def __init__(self, target: str, seed: int, share: float, kinds: Sequence[str] = KINDS, slow: float = 3.0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target, self.seed, self.share, self.kinds, self.slow = target, seed, share, kinds, slow
        self.seen: Counter[bytes] = Counter()
        self.injected: Counter[str] = Counter()
        self.passed = 0
        self.always = ""
        """A kind every request meets from now on, like `401`; empty: the drawn ones."""
        self.after: tuple[int, str] | None = None
        """(n, kind): set `always` once n requests were passed on."""
        self.lock = threading.Lock()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def environment(self, of: Mapping[str, str]) -> dict[str, str]:
        """The target's environment, but leading here."""
        return {name: value.replace(self.target, self.base_url) for name, value in of.items()}

    def drawn(self, body: bytes) -> str:
        """What this request meets; empty: nothing."""
        key = hashlib.sha256(body).digest()
        with self.lock:
            if self.after and self.passed >= self.after[0]:
                self.always, self.after = self.after[1], None
            self.seen[key] += 1
            draw = hashlib.sha256(b"%d %d " % (self.seed, self.seen[key]) + key).digest()
            failed = int.from_bytes(draw[:8], "big") / 2**64 < self.share
            kind = self.always or (self.kinds[draw[8] % len(self.kinds)] if failed else "")
            self.injected[kind] += bool(kind)
            self.passed += not kind
            return kind

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that left are part of the plan."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        kind = self.server.drawn(body + self.headers.get("X-Valve-Rollout", "").encode())
        if kind and kind not in ("half", "html", "timeout"):
            return self._fail(kind)
        status, answer = self._ask(body)
        if kind == "timeout":
            time.sleep(self.server.slow)
        if kind == "half":
            self._send(status, answer[: len(answer) // 2], length=len(answer))
            self.close_connection = True
            return None
        return (
            self._send(status, b"<html>sign in</html>", "text/html") if kind == "html" else self._send(status, answer)
        )

    def _ask(self, body: bytes) -> tuple[int, bytes]:
        keep = {k: v for k, v in self.headers.items() if k.lower() in ("content-type", "x-valve-rollout")}
        request = urllib.request.Request(self.server.target + self.path, body, keep)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=60) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as e:
            return e.code, e.read()

    def _fail(self, kind: str) -> None:
        json, html, later = "application/json", "text/html", {"Retry-After": "1"}
        match kind:
            case "429":
                self._send(429, _ERROR % (b"slow down", b'"rate_limit"'), headers={"Retry-After": "0"})
            case "429-later":
                self._send(429, _ERROR % (b"slow down", b'"rate_limit"'), headers=later)
            case "503-html":
                self._send(503, b"<html>bad gateway</html>", html)
            case "reset":
                self.close_connection = True
                self.connection.shutdown(2)
            case "garbage":
                self._send(200, b"\x00\xff{not json", json)
            case "empty":
                self._send(200, b"", json)
            case "no-choices":
                self._send(200, b'{"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": []}')
            case "error-in-200":
                self._send(200, _ERROR % (b"upstream died", b"null"))
            case "quota":
                self._send(429, _ERROR % (b"You exceeded your current quota", b'"insufficient_quota"'))
            case _:
                self._send(int(kind), _ERROR % (b"no", b"null"))

    def _send(
        self, status: int, body: bytes, kind: str = "application/json", *, length: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.send_response(status)
        for name, value in {"Content-Type": kind, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def before(target: str, seed: int, share: float, **more: object) -> Iterator[Proxy]:
    """Run a proxy before `target` (http://host:port) while the block lasts."""
    proxy = Proxy(target, seed, share, **more)  # type: ignore[arg-type]
    threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield proxy
    finally:
        proxy.shutdown()
        proxy.server_close()
