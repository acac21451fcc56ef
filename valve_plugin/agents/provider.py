"""The provider behind the gateway: its address and key, and what its answers say about tokens and cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from valve_plugin.agents.faults import address, key_variable
from valve_plugin.client import client, cost
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError

Wire = Literal["messages", "responses", "chat/completions"]
"""The interface that an agent speaks: Anthropic's, OpenAI's newer or OpenAI's older one."""
_ENDS = frozenset({"message_stop", "response.completed", "response.incomplete"})
_FAILS = frozenset({"error", "response.failed"})
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

        Args:
            settings: `model_kwargs` with api_base and api_key, if they are given.
            name: the model.
            environ: of this process; it holds the key.

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
        named = address(f"{provider}/{model}", given, environ)
        own = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com/v1"}.get(provider, "")
        base = (named if "://" in named else "") or base or own
        if not base:
            raise ConfigError(
                f"the address of the provider {provider!r} is not known; give it with -c model_kwargs.api_base=URL"
            )
        token = environ.get("ANTHROPIC_AUTH_TOKEN", "") if provider == "anthropic" else ""
        key = str(given.get("api_key") or environ.get(key_variable(f"{provider}/{model}")) or token or key or "")
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
        self.failed |= kind in _FAILS or bool(event.get("error"))
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
