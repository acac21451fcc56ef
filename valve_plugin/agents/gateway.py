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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from valve_plugin.agents import faults
from valve_plugin.agents.protocol import RolloutReporter
from valve_plugin.agents.retry import Tries, model_tries
from valve_plugin.client import client, cost
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError

WIRES = ("messages", "responses", "chat/completions")
_PASSED_ON = re.compile(r"(?i)content-type|accept|user-agent|anthropic-(?:version|beta)|openai-beta")
"""Headers of a request that reach the provider."""
_RETURNED = re.compile(r"(?i)content-type|retry-after.*|(?:x-|anthropic-|openai-)?request-id")
_REACH_OUT = ("web_search", "web_fetch", "mcp", "code_execution", "code_interpreter", "file_search")
"""Beginnings of the types of tools that the provider runs itself, with a network."""
_MAX_REQUEST = 256 * 2**20
_CONNECT_SECONDS = 30.0
_ENDS = frozenset({"message_stop", "response.completed", "response.incomplete"})
_MAX_LINE = 64 * 2**20


class Provider(NamedTuple):
    """Where the model calls of a rollout go, and with which key."""

    name: str
    """By litellm's word, like openai."""
    base: str
    """Address up to the version of its interface, like https://api.openai.com/v1, without a slash at the end."""
    key: str
    model: str
    """Name of the model there."""
    bearer: bool
    """Whether Anthropic's interface takes the key as a bearer token."""

    @classmethod
    def of(cls, settings: Settings, name: str, environ: Mapping[str, str]) -> Provider:
        """Return the provider of a litellm model name.

        Raises:
            ConfigError: the address is not known.
        """
        given = settings.model_kwargs
        litellm = client()
        try:
            model, provider, key, base = litellm.get_llm_provider(
                name, api_base=given.get("api_base") or given.get("base_url"), api_key=given.get("api_key")
            )
        except Exception as e:
            raise ConfigError(f"the provider of the model {name!r} is not known; expected PROVIDER/NAME") from e
        named = faults.address(f"{provider}/{model}", given, environ)
        own = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com/v1"}.get(provider, "")
        base = (named if "://" in named else "") or base or own
        if not base:
            raise ConfigError(
                f"the address of the provider {provider!r} is not known; give it with -c model_kwargs.api_base=URL"
            )
        token = environ.get("ANTHROPIC_AUTH_TOKEN", "") if provider == "anthropic" else ""
        key = str(given.get("api_key") or environ.get(faults.key_variable(f"{provider}/{model}")) or token or key or "")
        return cls(provider, base.rstrip("/"), key, model, bool(token) and key == token)

    def url(self, wire: str) -> str:
        """Return the address of an interface. Anthropic's base may end with /v1 or not, OpenAI's includes it."""
        base = self.base.removesuffix("/v1") + "/v1" if wire.startswith("messages") else self.base
        return f"{base}/{wire}"

    def headers(self, wire: str) -> dict[str, str]:
        """Return the headers that hold the key."""
        if wire.startswith("messages") and not self.bearer:
            return {"x-api-key": self.key}
        return {"Authorization": f"Bearer {self.key}"}


class Tokens(NamedTuple):
    """Tokens of one answered call."""

    prompt: int = 0
    """All of the prompt, including what was cached."""
    reply: int = 0
    cache_read: int = 0
    cache_written: int = 0

    def usd(self, model: str) -> float | None:
        """Return their price by litellm's list; None: unknown, or no tokens were reported."""
        litellm = client()
        usage = litellm.Usage(
            prompt_tokens=self.prompt,
            completion_tokens=self.reply,
            total_tokens=self.prompt + self.reply,
            cache_read_input_tokens=self.cache_read,
            cache_creation_input_tokens=self.cache_written,
        )
        return cost(litellm.ModelResponse(model=model, usage=usage), model)


class Answer:
    """Reads an answer while it passes: its tokens, and whether it is complete."""

    def __init__(self) -> None:
        self.complete = self.failed = False
        self._usage: dict[str, Any] = {}
        self._line = b""

    def feed(self, chunk: bytes) -> None:
        """Read a part of a stream of server-sent events."""
        *lines, self._line = (self._line + chunk).split(b"\n")
        self._line = self._line[:_MAX_LINE]
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                self.complete |= data == b"[DONE]"
                self.read(data)

    def read(self, data: bytes) -> None:
        """Read one event, or the whole of an answer that is not streamed."""
        try:
            event = json.loads(data)
        except ValueError:
            return
        if not isinstance(event, dict):
            return
        kind = event.get("type")
        self.complete |= kind in _ENDS
        self.failed |= kind in ("error", "response.failed") or bool(event.get("error"))
        for part in (event, event.get("message"), event.get("response")):
            usage = part.get("usage") if isinstance(part, dict) else None
            if isinstance(usage, dict):
                self._usage |= {name: value for name, value in usage.items() if value is not None}

    @property
    def tokens(self) -> Tokens:
        """The tokens that the answer reports. Anthropic counts cached tokens apart, OpenAI includes them."""
        used = self._usage
        details = used.get("prompt_tokens_details") or used.get("input_tokens_details") or {}
        read, written = _number(used, "cache_read_input_tokens"), _number(used, "cache_creation_input_tokens")
        prompt = _number(used, "prompt_tokens") or _number(used, "input_tokens") + read + written
        reply = _number(used, "completion_tokens") or _number(used, "output_tokens")
        return Tokens(prompt, reply, read or _number(details, "cached_tokens"), written)


def _number(record: Mapping[str, Any], name: str) -> int:
    value = record.get(name)
    return value if isinstance(value, int) and value > 0 else 0


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
        self.model = provider.model
        self.calls: list[Call] = []
        self.fault: faults.Fault | None = None
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
            return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})
        if request.method != "POST" or path not in (*WIRES, "messages/count_tokens"):  # the last costs nothing
            return _refuse(404, "The gateway passes on model calls only.")
        limit = self._settings.cost_limit
        self.used_up |= path in WIRES and (len(self.calls) >= self._settings.step_limit or 0 < limit <= self.usd)
        if path in WIRES and self.used_up:
            return _refuse(403, "The budget of steps or cost is used up.")
        if path in WIRES and self.calls and path != self.calls[0].wire:  # the provider may not have it
            return _refuse(404, f"The gateway passes on {self.calls[0].wire} only, as this agent began with it.")
        try:
            # The request as it is sent: for the configured model, without tools that reach the network
            body = json.loads(await request.read())
            body["model"] = self.model
            body.pop("mcp_servers", None)
            if isinstance(body.get("tools"), list):
                body["tools"] = [t for t in body["tools"] if not str(t.get("type", "")).startswith(_REACH_OUT)]
            if path == "chat/completions" and body.get("stream"):
                body["stream_options"] = {"include_usage": True}
            body = json.dumps(body).encode("utf-8", "surrogatepass")
        except (ValueError, TypeError, AttributeError):
            return _refuse(400, "The request is not a JSON object.")
        sent = {name: value for name, value in request.headers.items() if _PASSED_ON.fullmatch(name)}
        started = time.monotonic()
        try:
            return await self._pass_on(request, path, sent, body)
        finally:
            self.waited_seconds += time.monotonic() - started

    async def _pass_on(self, request: Any, path: str, headers: Mapping[str, str], body: bytes) -> Any:
        from aiohttp import ClientError, web

        started = time.monotonic()
        try:
            response = await self._ask(request.app["session"], path, headers, body)
        except (ClientError, OSError, TimeoutError, asyncio.TimeoutError, ProviderError) as e:
            # The answer to a call that failed for good: the provider's own, if the agent can do something
            self.shown = faults.describe_error(e, self._redact)
            fault = faults.find_fault(e) or faults.Fault("connection")
            conversation = faults.classify_end("", faults.class_names(e), str(e))[0] == "unresolved"
            # Once it has answered, what it refuses is the request, perhaps a command's; and counting is no model call.
            theirs = conversation or path not in WIRES
            if isinstance(e, ProviderError) and self.calls and fault.kind not in ("key", "quota", "rate"):
                theirs |= e.status_code < 500
            if isinstance(e, ProviderError) and theirs:
                kept = {name: value for name, value in e.headers.items() if _RETURNED.fullmatch(name)}
                return web.Response(status=e.status_code, body=e.body, headers=kept)
            self.fault = fault
            return _refuse(502, "The provider fails.")
        async with response:
            returned = {name: value for name, value in response.headers.items() if _RETURNED.fullmatch(name)}
            out = web.StreamResponse(status=response.status, headers=returned)
            with suppress(ConnectionResetError):  # who asked has left; the answer is paid for, so all of it is read
                await out.prepare(request)
            answer, streamed = Answer(), "event-stream" in response.headers.get("content-type", "")
            whole = bytearray()
            try:
                async for chunk in response.content.iter_any():
                    answer.feed(chunk) if streamed else whole.extend(chunk)
                    with suppress(ConnectionResetError):
                        await out.write(chunk)
            except (ClientError, OSError, TimeoutError, asyncio.TimeoutError) as e:
                self._broke(e)
                request.transport.close()  # the agent notices that the answer is not complete
                return out
            if not streamed:
                answer.read(bytes(whole))
        if path in WIRES:
            self._account(path, answer, streamed, time.monotonic() - started)
        with suppress(ConnectionResetError):
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

    def _broke(self, error: Exception) -> None:
        """Count an answer that ended too early. The agent asks again; too many in a row are a fault."""
        self.shown = faults.describe_error(error, self._redact)
        self._broken += 1
        if self._broken >= model_tries(self._settings, os.environ):
            self.fault = faults.find_fault(error) or faults.Fault("server")

    def _account(self, path: str, answer: Answer, streamed: bool, seconds: float) -> None:
        if answer.failed or (streamed and not answer.complete):
            self._broke(ConnectionError("the answer is not complete"))
            return
        self._broken, tokens = 0, answer.tokens
        usd = tokens.usd(self._name)
        if usd is None and not self._free_of_charge:
            self.fault = faults.Fault("price" if tokens != Tokens() else "usage")
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


async def _serve(gateway: Gateway, listener: socket.socket, ready: threading.Event, done: asyncio.Event) -> None:
    import certifi
    from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

    trusted = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE") or certifi.where())
    silence = ClientTimeout(
        total=None, sock_connect=_CONNECT_SECONDS, sock_read=faults.call_seconds(gateway._settings.model_kwargs)
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
