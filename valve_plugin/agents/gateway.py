"""The gateway: the only way out of the sandbox for an agent that makes its own model calls.

It listens on a Unix socket that is visible in the sandbox, and runs in the rollout's process, outside. It adds the key,
speaks only to the configured provider, asks only for the configured model, tries again after provider failures, counts
tokens and cost, and ends the rollout when a limit is reached. Answers pass through unchanged while they arrive.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from valve_plugin.agents.faults import Fault, call_seconds, class_names, classify_end, describe_error, find_fault
from valve_plugin.agents.protocol import RolloutReporter
from valve_plugin.agents.provider import Answer, Provider, Tokens
from valve_plugin.agents.retry import Tries, model_tries
from valve_plugin.config import Settings

WIRES = ("messages", "responses", "chat/completions")
_FREE = ("messages/count_tokens",)
"""Calls that produce nothing and cost nothing."""
_PASSED_ON = re.compile(r"(?i)content-type|accept|user-agent|anthropic-(?:version|beta)|openai-beta")
"""Headers of a request that reach the provider."""
_RETURNED = re.compile(r"(?i)content-type|retry-after.*|(?:x-|anthropic-|openai-)?request-id")
_REACH_OUT = ("web_search", "web_fetch", "mcp", "code_execution", "code_interpreter", "file_search")
"""Beginnings of the types of tools that the provider runs itself, with a network."""
_MAX_REQUEST = 256 * 2**20
_CONNECT_SECONDS = 30.0


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One answered model call."""

    wire: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    usd: float
    seconds: float


class GatewayStop(Exception):  # noqa: N818 (no error: the rollout is over)
    """The rollout is over: a limit is reached, or the provider failed."""


class ProviderError(Exception):
    """The provider answered with an error."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(body[:20_000].decode("utf-8", "replace"))
        self.status_code, self.headers, self.body = status, headers, body
        self.litellm_response_headers = headers  # where `find_fault` looks


class Gateway:
    """The calls of one rollout, and what ended them."""

    def __init__(
        self, provider: Provider, name: str, settings: Settings, reporter: RolloutReporter, redact: Callable[[str], str]
    ) -> None:
        """Set what it needs; `name` is litellm's name of the model, for its price."""
        self._provider, self._name, self._settings = provider, name, settings
        self._reporter, self._redact = reporter, redact
        self.calls: list[Call] = []
        self.fault: Fault | None = None
        """The provider's failure that ended the rollout."""
        self.shown = ""
        """The message of the provider's last failure."""
        self.used_up = False
        """Whether the limit of steps or cost is reached and another call was asked for."""
        self.waited_seconds = 0.0
        """Time spent waiting for the provider."""
        self._broken = 0
        self._free_of_charge = os.environ.get("MSWEA_COST_TRACKING") == "ignore_errors"

    @property
    def usd(self) -> float:
        """Cost of the answered calls."""
        return sum(call.usd for call in self.calls)

    @property
    def model(self) -> str:
        """Name of the model at its provider."""
        return self._provider.model

    def require_more(self) -> None:
        """Check that there is something left for the agent to do.

        Raises:
            GatewayStop: the rollout is over.
        """
        if self.fault or self.used_up:
            raise GatewayStop

    async def handle(self, request: Any) -> Any:
        """Answer one request of the agent."""
        from aiohttp import web

        path = request.path.removeprefix("/v1").lstrip("/")
        if request.method == "GET" and path == "models":
            return web.json_response({"object": "list", "data": [{"id": self._provider.model, "object": "model"}]})
        if request.method != "POST" or path not in (*WIRES, *_FREE):
            return _refuse(404, "The gateway passes on model calls only.")
        if path in WIRES and self._is_used_up():
            return _refuse(403, "The budget of steps or cost is used up.")
        try:
            body = self._body(json.loads(await request.read()), path)
        except (ValueError, TypeError, AttributeError):
            return _refuse(400, "The request is not a JSON object.")
        sent = {name: value for name, value in request.headers.items() if _PASSED_ON.fullmatch(name)}
        started = time.monotonic()
        try:
            return await self._pass_on(request, path, sent, body)
        finally:
            self.waited_seconds += time.monotonic() - started

    def _is_used_up(self) -> bool:
        limit = self._settings.cost_limit
        self.used_up |= len(self.calls) >= self._settings.step_limit or (0 < limit <= self.usd)
        return self.used_up

    def _body(self, body: dict[str, Any], path: str) -> bytes:
        """Return the request as it is sent: for the configured model, without tools that reach the network."""
        body["model"] = self._provider.model
        body.pop("mcp_servers", None)
        if isinstance(body.get("tools"), list):
            body["tools"] = [t for t in body["tools"] if not str(t.get("type", "")).startswith(_REACH_OUT)]
        if path == "chat/completions" and body.get("stream"):
            body["stream_options"] = {"include_usage": True}
        return json.dumps(body).encode("utf-8", "surrogatepass")

    async def _pass_on(self, request: Any, path: str, headers: Mapping[str, str], body: bytes) -> Any:
        from aiohttp import ClientError, web

        started = time.monotonic()
        try:
            response = await self._ask(request.app["session"], path, headers, body)
        except (ClientError, OSError, TimeoutError, asyncio.TimeoutError, ProviderError) as e:
            return self._failed(e)
        async with response:
            returned = {name: value for name, value in response.headers.items() if _RETURNED.fullmatch(name)}
            out = web.StreamResponse(status=response.status, headers=returned)
            await out.prepare(request)
            answer, streamed = Answer(), "event-stream" in response.headers.get("content-type", "")
            whole = bytearray()
            try:
                async for chunk in response.content.iter_any():
                    answer.feed(chunk) if streamed else whole.extend(chunk)
                    await out.write(chunk)
            except (ClientError, OSError, TimeoutError, asyncio.TimeoutError) as e:
                self._broke(e)
                request.transport.close()  # the agent notices that the answer is not complete
                return out
            if not streamed:
                answer.read(bytes(whole))
        if path in WIRES:
            self._account(path, answer, streamed, time.monotonic() - started)
        await out.write_eof()
        return out

    async def _ask(self, session: Any, path: str, headers: Mapping[str, str], body: bytes) -> Any:
        """Return the beginning of the provider's answer; try again after failures."""
        tries = Tries(model_tries(self._settings, os.environ), self._settings.model_pause, self._redact)
        sent = {**headers, **self._provider.headers(path), "Accept-Encoding": "identity"}
        sent |= {str(n): str(v) for n, v in (self._settings.model_kwargs.get("extra_headers") or {}).items()}
        while True:
            try:
                response = await session.post(self._provider.url(path), data=body, headers=sent, allow_redirects=False)
                if response.status == 200:
                    return response
                async with response:
                    raise ProviderError(response.status, dict(response.headers), await response.read())
            except Exception as e:
                wait = tries.after(e)
                if wait is None:
                    raise
                self._reporter.wait(wait)
                await asyncio.sleep(wait.seconds)

    def _failed(self, error: Exception) -> Any:
        """Return the answer to a call that failed for good: the provider's own, if the agent can do something."""
        from aiohttp import web

        self.shown = describe_error(error, self._redact)
        fault = find_fault(error) or Fault("connection")
        conversation = classify_end("", class_names(error), str(error))[0] == "unresolved"
        if isinstance(error, ProviderError) and (conversation or (fault.kind == "request" and self.calls)):
            kept = {name: value for name, value in error.headers.items() if _RETURNED.fullmatch(name)}
            return web.Response(status=error.status_code, body=error.body, headers=kept)
        self.fault = fault
        return _refuse(502, "The provider fails.")

    def _broke(self, error: Exception) -> None:
        """Count an answer that ended too early. The agent asks again; too many in a row are a fault."""
        self.shown = describe_error(error, self._redact)
        self._broken += 1
        if self._broken >= model_tries(self._settings, os.environ):
            self.fault = find_fault(error) or Fault("server")

    def _account(self, path: str, answer: Answer, streamed: bool, seconds: float) -> None:
        if answer.failed or (streamed and not answer.complete):
            self._broke(ConnectionError("the answer is not complete"))
            return
        self._broken, tokens = 0, answer.tokens
        usd = tokens.usd(self._name)
        if usd is None and not self._free_of_charge:
            self.fault = Fault("price" if tokens != Tokens() else "usage")
        self.calls.append(
            Call(
                wire=path,
                prompt_tokens=tokens.prompt,
                completion_tokens=tokens.reply,
                cached_tokens=tokens.cache_read,
                usd=usd or 0.0,
                seconds=seconds,
            )
        )
        self._reporter.pay(usd or 0.0)


@contextmanager
def serve(gateway: Gateway, path: Path, uid: int) -> Iterator[None]:
    """Serve a gateway at a Unix socket of user `uid`, in a thread, while the block runs.

    The path may be longer than a socket's can be.
    """
    listener = _listen(path, uid)
    loop = asyncio.new_event_loop()
    ready, done = threading.Event(), asyncio.Event()

    def work() -> None:
        try:
            loop.run_until_complete(_serve(gateway, listener, ready, done))
        finally:
            ready.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        ready.wait()
        yield
    finally:
        loop.call_soon_threadsafe(done.set)
        thread.join()
        loop.close()


def _listen(path: Path, uid: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        here = Path(f"/proc/self/fd/{folder}")
        listener.bind(str(here / path.name if here.exists() else path))
    finally:
        os.close(folder)
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, uid, uid)
    listener.listen(64)
    return listener


async def _serve(gateway: Gateway, listener: socket.socket, ready: threading.Event, done: asyncio.Event) -> None:
    import certifi
    from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

    trusted = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE") or certifi.where())
    silence = ClientTimeout(
        total=None, sock_connect=_CONNECT_SECONDS, sock_read=call_seconds(gateway._settings.model_kwargs)
    )
    app = web.Application(client_max_size=_MAX_REQUEST)
    app.router.add_route("*", "/{path:.*}", gateway.handle)
    async with ClientSession(connector=TCPConnector(ssl=trusted), timeout=silence, trust_env=True) as session:
        app["session"] = session
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.SockSite(runner, listener).start()
            ready.set()
            await done.wait()
        finally:
            await runner.cleanup()


def _refuse(status: int, why: str) -> Any:
    """Return an error in a shape that the clients of all interfaces read, and do not try again."""
    from aiohttp import web

    error = {"type": "error", "error": {"type": "gateway_error", "message": why}}
    return web.json_response(error, status=status, headers={"x-should-retry": "false"})
