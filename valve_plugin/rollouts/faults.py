"""What went wrong at a model provider, how long to wait before asking again, and what a person can do. Pure.

Every client library wraps a provider's failure in classes of its own, so the class's name, the HTTP status and the
headers are looked at together. What the conversation itself causes (too long, refused, no usable command) is no fault
of the provider: `exits.classify` knows those, and they are never asked again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from valve_plugin.client import how
from valve_plugin.records import FaultKind

LONGEST_PAUSE = 60.0
"""Seconds before another try, where the provider does not ask for more."""
LONGEST_ASKED = 600.0
"""A provider that asks for more seconds than this has closed for today: that is a quota, not a queue."""

LASTING: frozenset[FaultKind] = frozenset({"key", "quota", "model", "price", "request"})
"""No further try helps until a person has done something."""

_BY_STATUS: dict[int, FaultKind] = {
    401: "key", 402: "quota", 403: "key", 404: "model", 405: "model", 400: "request", 413: "request", 422: "request",
    429: "rate",
}  # fmt: skip
_BY_NAME: tuple[tuple[str, FaultKind], ...] = (
    ("AuthenticationError", "key"),
    ("PermissionDeniedError", "key"),
    ("NotFoundError", "model"),
    ("RateLimitError", "rate"),
    ("BadRequestError", "request"),
    ("UnsupportedParamsError", "request"),
    ("UnprocessableEntityError", "request"),
    ("APIConnectionError", "connection"),
    ("ConnectionError", "connection"),
    ("Timeout", "server"),
    ("TimeoutError", "server"),
    ("InternalServerError", "server"),
    ("ServiceUnavailableError", "server"),
    ("APIError", "server"),
    ("APIResponseValidationError", "server"),
    ("UnreadableReplyError", "server"),
)
_USED_UP = re.compile(r"(?i)insufficient[_ ](?:quota|balance|funds)|exceeded your current quota|credit balance|billing")
_ANSWERED = frozenset({"RemoteProtocolError", "ReadError", "ServerDisconnectedError", "ClientPayloadError"})
"""What ends a connection that stood, in the words of httpx and aiohttp: somebody is there, and is not well."""
_NO_PRICE = "Error calculating cost"
_ASKED = re.compile(r"""(?i)retry(?:[ _-]?(?:delay|after|in))["']?\s*[:=]?\s*["']?(\d+(?:\.\d+)?)\s*(m?s)\b""")


class Fault(NamedTuple):
    """A provider's failure."""

    kind: FaultKind
    asked: float | None = None
    """Seconds the provider asked to wait."""

    @property
    def lasting(self) -> bool:
        """Whether asking again is pointless until a person has done something."""
        return self.kind in LASTING or (self.asked or 0.0) > LONGEST_ASKED


def fault(
    names: Sequence[str], message: str, status: int | None = None, headers: Mapping[str, str] | None = None, *,
    now: float = 0.0, behind: Sequence[str] = (),
) -> Fault | None:  # fmt: skip
    """Return what failed at the provider; None for an error that is not a provider's.

    Args:
        names: the exception's class and its bases, most specific first.
        message: its text.
        status: of the HTTP reply, where there was one.
        headers: of the same reply.
        now: seconds since the epoch, for a Retry-After that is a date.
        behind: classes of the exceptions that led to it.
    """
    if _NO_PRICE in message:
        return Fault("price")
    kind = _kind(names, status)
    if kind is None:
        return None
    if kind == "server" and "Connection error" in message:  # litellm calls a refused connection a server error
        kind = "connection"
    if kind == "connection" and _ANSWERED.intersection(behind):
        kind = "server"
    asked = retry_after(headers or {}, message, now)
    used_up = kind == "rate" and asked is None and _USED_UP.search(message)
    return Fault("quota" if used_up or (asked or 0.0) > LONGEST_ASKED else kind, asked)


def retry_after(headers: Mapping[str, str], message: str, now: float) -> float | None:
    """Return the seconds a provider asks to wait: `Retry-After` (seconds or a date), or what its message says."""
    value = next((v for k, v in headers.items() if k.lower() == "retry-after"), "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value):
        return float(value)
    if value:
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - now)
        except (ValueError, TypeError, OverflowError):  # neither a number nor a date: it said nothing
            pass
    said = _ASKED.search(message)
    return float(said[1]) / (1000 if said[2] == "ms" else 1) if said else None


def pause(number: int, first: float, asked: float | None, uniform: float) -> float:
    """Return the seconds to wait before another try: exponential with jitter, never less than the provider asked for.

    Half of the wait is drawn, so that workers that failed together do not come back together.

    Args:
        number: of the try that failed, from 1.
        first: seconds after the first, before jitter.
        asked: what the provider asked for.
        uniform: a number in [0, 1).
    """
    wait = min(LONGEST_PAUSE, first * 2.0 ** min(number - 1, 30))
    return (asked or 0.0) + wait * (0.5 + uniform / 2)


def advice(
    kind: FaultKind,
    model: str,
    model_kwargs: Mapping[str, Any],
    environ: Mapping[str, str],
    asked: float | None = None,
) -> str:
    """Return what a person can do about a fault, in one short sentence without an end.

    Args:
        kind: of the fault.
        model: as it is named.
        model_kwargs: arguments of its calls.
        environ: of the process that called it.
        asked: seconds the provider asked to wait.
    """
    where = address(model, model_kwargs, environ)
    if kind == "quota" and asked:
        return (
            f"{where} asks to wait {asked:.0f} s ({asked / 60:.0f} minutes), and a run waits {LONGEST_ASKED:.0f} s at "
            "most: come back then, or raise the limit there"
        )
    return {
        "key": f"{where} refuses the key: check {key_variable(model)}",
        "quota": f"the quota or credit at {where} is used up: top it up, or wait until it is renewed",
        "model": f"{where} does not know {model}: check -c model=NAME and the address",
        "price": f"the price of {model} is unknown: {how(model)}, or set MSWEA_COST_TRACKING=ignore_errors",
        "request": "the provider refuses the request: check -c model_kwargs",
        "rate": f"the rate limit at {where} holds on: take fewer --workers, or wait",
        "connection": f"no connection to {where}: is it up?",
        "server": f"{where} keeps failing: wait until it is well again",
    }.get(kind, "")


def address(model: str, model_kwargs: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return where a model's calls go, as far as settings and environment say; else the provider's name."""
    provider = _provider(model)
    given = (model_kwargs.get("api_base"), model_kwargs.get("base_url"))
    known = (environ.get(f"{provider.upper()}_{end}", "") for end in ("API_BASE", "BASE_URL"))
    return next((str(a) for a in (*given, *known) if a), f"the provider {provider}")


def key_variable(model: str) -> str:
    """Return the environment variable that holds a provider's key, by litellm's rule."""
    provider = _provider(model).upper()
    return {"TOGETHER_AI": "TOGETHERAI_API_KEY", "BEDROCK": "AWS_ACCESS_KEY_ID",
            "VERTEX_AI": "GOOGLE_APPLICATION_CREDENTIALS"}.get(provider, f"{provider}_API_KEY")  # fmt: skip


def _provider(model: str) -> str:
    provider, slash, _ = model.partition("/")
    if slash:
        return provider
    return "anthropic" if "claude" in model else "gemini" if "gemini" in model else "openai"


def _kind(names: Sequence[str], status: int | None) -> FaultKind | None:
    if status is not None and (status in _BY_STATUS or status >= 500):
        return _BY_STATUS.get(status, "server")
    for name in names:
        for end, kind in _BY_NAME:
            if name.endswith(end):
                return kind
    return None
