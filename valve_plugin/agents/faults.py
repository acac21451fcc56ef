"""Classification of how a rollout ended and of provider errors, with advice for a person. Pure.

A bad bank can cause a context that is too long, a used-up budget or replies without a command, so these count as
`unresolved`. A failure of the host or the provider does not count and is tried again (`errored`).

Each client library wraps provider errors in its own classes, so class names, HTTP status and headers are used together.
"""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple

from valve_plugin.client import pricing_help
from valve_plugin.records import FaultKind
from valve_plugin.words import one_line

EndKind = Literal["submitted", "unresolved", "errored"]
"""How a run of the agent ended: with a patch to grade, by a failure of the agent, or of the infrastructure."""

CALL_SECONDS = 300.0
"""Time limit of one model call, unless `model_kwargs` has a `timeout`."""
LONGEST_WAIT_SECONDS = 600.0
"""If a provider asks for a longer wait, its quota counts as used up."""
LASTING_FAULTS: frozenset[FaultKind] = frozenset({"key", "quota", "model", "price", "usage", "request", "timeout"})
"""Kinds of faults for which another try is useless until a person has fixed the cause."""

_AGENT_STATUS = {
    "LimitsExceeded": "the budget of steps or cost is used up",
    "TimeExceeded": "the agent's time limit is used up",
    "RepeatedFormatError": "replies without a usable command",
}
_TOO_LONG = "the conversation does not fit the model's context window"
_REFUSED = "the provider refused the conversation's content"
_AGENT_ERRORS = {
    "ContextWindowExceededError": _TOO_LONG,
    "ContentPolicyViolationError": _REFUSED,
    "ConversationRefusedError": "the provider does not answer this conversation, but its first request",
}
# Most providers, also behind OpenAI's interface, report these as a bad request; moderation also with status 403, and
# llama.cpp's overflow also with status 500. Each phrase is that of a real server; the tests name them.
_AGENT_MESSAGES = (
    (_TOO_LONG, re.compile(
        r"(?i)context[ _-]?(?:window|length|size|limit)|exceeds?[^.]{0,40}\bcontext\b|too many (?:input )?tokens"
        r"|(?:maximum|max|model'?s) (?:model|prompt|context|input) length|(?:prompt|input) (?:is )?too (?:long|large)"
        r"|exceeds? the (?:maximum|model's|available|configured) (?:number of tokens|context|limit|size)"
        r"|maximum number of (?:input )?tokens|max_new_tokens` must be <=|`inputs` must have less than"
        r"|tokens_limit_reached|request[ _](?:body )?too[ _]large|too large for model|tokens? limit exceeded"
        r"|reduce the length of the (?:messages|prompt)|range of input length|string too long|max_model_len"
        r"|max_tokens must be at least 1, got -|(?:tokens?|prompt) .{0,60}exceeds?\b.{0,40}\b(?:limit|max|\d+$)"
        r"|exceeded model token limit|more than max tokens allowed|(?:conversation|messages?) (?:is )?too long"
        r"|超长|上下文|(?:输入|长度|tokens?).{0,20}(?:超过|超出|过长)|(?:超过|超出).{0,20}(?:长度|tokens?)"
    )),
    (_REFUSED, re.compile(
        r"(?i)content[ _-]?(?:filter|policy|management)|responsible ?ai|safety system|invalid_prompt|guardrail"
        r"|(?:input|prompt|content) was (?:flagged|blocked)|flagged (?:as|for)|requires moderation"
        r"|(?:input|prompt|content) violates|prohibited[ _]content|data_inspection_failed|inappropriate content"
        r"|content exists risk|considered high risk|blockreason|sensitive[ _]words?|moderation|harmful content"
        r"|(?:request|prompt|input|output|response)\b.{0,40}\b(?:was|has been|is) blocked|blocked by model armor"
        r"|敏感|违规|违反|不合规|不安全|不当内容|内容安全|未通过审核"
    )),
)  # fmt: skip
_KIND_BY_STATUS: dict[int, FaultKind] = {
    401: "key", 402: "quota", 403: "key", 404: "model", 405: "model", 400: "request", 413: "request", 422: "request",
    429: "rate",
}  # fmt: skip
_ENDS_OF_NAMES: dict[FaultKind, tuple[str, ...]] = {
    "key": ("AuthenticationError", "PermissionDeniedError"),
    "model": ("NotFoundError",),
    "rate": ("RateLimitError",),
    "request": ("BadRequestError", "UnsupportedParamsError", "UnprocessableEntityError"),
    "connection": ("ConnectionError",),
    "timeout": ("Timeout", "TimeoutError", "SilentProviderError"),
    "server": (
        *("InternalServerError", "ServiceUnavailableError", "APIError", "APIResponseValidationError"),
        "UnreadableReplyError",
    ),
}
_USED_UP = re.compile(
    r"(?i)insufficient[_ ](?:quota|balance|funds|credits?)|exceeded your current quota|credit balance|billing"
    r"|budget has been exceeded|余额不足|欠费"
)
_BAD_KEY = re.compile(
    r"(?i)api[ _-]?key (?:is )?(?:not valid|invalid|expired|missing|required|not set)"
    r"|(?:invalid|expired|incorrect|missing|no) (?:api[ _-]?key|credentials)|set the `?\w+_API_KEY"
)
_BROKEN_CONNECTION = frozenset({"RemoteProtocolError", "ReadError", "ServerDisconnectedError", "ClientPayloadError"})
"""Errors of httpx and aiohttp for a connection that breaks: the server exists, but fails."""
_NO_MESSAGE = re.compile(r"'choices': \[(?:(?!\{)|\{[^{}]*'message': (?!\{))")
_NO_NUMBERS = re.compile(r"\bUsage\(\*\*|validation errors? for \w*(?:Usage|TokensDetails)|map_finish_reason")
"""What the server writes around a message, in litellm's report of an answer that it cannot read."""
_NO_PRICE = "Error calculating cost"
_NO_USAGE = "Cost must be > 0.0"
"""mini's words for a price that is known and a reply without tokens. (A price of 0 is refused before a run starts.)"""
_UNIT = r"(?:ms|milliseconds?|d|days?|h|hours?|hrs?|m|mins?|minutes?|s|sec|seconds?)"
_RETRY = r"(?i)(?:retry|try again|wait|available|cool ?down|resets?[ _](?:in|after|at|on))[^.\d]{0,24}"
_RETRY_IN = re.compile(rf"{_RETRY}((?:\d+(?:\.\d+)?\s*{_UNIT}(?![a-z])[ ,]*(?:and )?)+)")
_RETRY_NUMBER = re.compile(
    r"(?i)retry[ _-]?(?:after|delay)(?:_?seconds)?[\"']?\s*[:=]\s*[\"']?(\d+(?:\.\d+)?)[\"']?\s*(?:[,}\s]|$)"
)
_DURATION = re.compile(rf"(?i)(\d+(?:\.\d+)?)\s*({_UNIT})")
_WRAPPERS = re.compile(r"(?:^|(?<=\())(?:(?:litellm\.)?\w+(?:Error|Exception)(?::| -)\s*)+")
"""Class names that client libraries put before the provider's message."""
_UNSPECIFIC = "Connection error."
"""The message of client libraries for any broken connection."""
_SHOWN_CHARACTERS = 160


def is_unreadable_answer(message: str) -> bool:
    """Whether an error says that an answer arrived, with a message that does not have the usual shape.

    Server and client pass the model's tool calls on as they are, and litellm reports a status of 500. An answer without
    any message, or with unreadable numbers of tokens, is the provider's failure. The client fails to write down an
    answer that holds half of a surrogate pair, or a NUL where it expects none.
    """
    if "codec can't encode" in message and "surrogates not allowed" in message:
        return True
    if "nul byte found in provided data" in message:
        return True
    if re.match(
        r"'(\w*ToolCall' object has no attribute|\w+' object has no attribute '(function|name|arguments|id)')", message
    ):
        return True  # a call of another type than function, or one whose parts are of another type
    reason = message.partition("received_args")[0]  # without the model's words
    return "Invalid response object" in message and not (_NO_MESSAGE.search(message) or _NO_NUMBERS.search(reason))


class UnreadableReplyError(Exception):
    """A provider's reply cannot be parsed."""


class SilentProviderError(Exception):
    """A provider accepted a call, but its reply is not complete within the time limit."""


class ConversationRefusedError(Exception):
    """A provider refuses a conversation, although it answers its first request."""


class Fault(NamedTuple):
    """A provider's failure."""

    kind: FaultKind
    wait_seconds: float | None = None
    """Seconds that the provider asks to wait, or None."""

    @property
    def lasting(self) -> bool:
        """Whether another try is useless until a person has fixed the cause."""
        return self.kind in LASTING_FAULTS or (self.wait_seconds or 0.0) > LONGEST_WAIT_SECONDS


def classify_end(exit_status: str, error: Sequence[str] = (), message: str = "") -> tuple[EndKind, str]:
    """Return (how a run of the agent ended, the reason in one line; empty for "submitted").

    Args:
        exit_status: mini's exit status; empty if an exception ended the agent.
        error: names of the exception's class and bases, most specific first; empty if there was none.
    """
    if error:
        if why := next((_AGENT_ERRORS[name] for name in error if name in _AGENT_ERRORS), "") or _agent_fault(
            error, message
        ):
            return "unresolved", one_line(f"{why}: {message}")
        return "errored", one_line(f"{error[0]}: {message}")
    if exit_status == "Submitted":
        return "submitted", ""
    if exit_status in _AGENT_STATUS:
        return "unresolved", _AGENT_STATUS[exit_status]
    return "errored", one_line(f"the agent stopped with {exit_status or 'no exit status'}")


def _agent_fault(names: Sequence[str], message: str) -> str:
    """Return what the conversation did, if a provider's message says so; else ""."""
    if _kind(names, None) not in ("request", "server", "key") or "AuthenticationError" in names:
        return ""
    if is_unreadable_answer(message):
        return "the model's answer cannot be read"
    if _USED_UP.search(message) or _BAD_KEY.search(message):
        return ""
    return next((why for why, words in _AGENT_MESSAGES if words.search(message)), "")


def class_names(error: BaseException) -> list[str]:
    """Return the names of an exception's class and bases, most specific first."""
    return [kind.__name__ for kind in type(error).__mro__]


def find_fault(error: BaseException) -> Fault | None:
    """Return the provider's fault behind an exception, or None if it is not a provider error."""
    headers = getattr(error, "litellm_response_headers", None) or getattr(
        getattr(error, "response", None), "headers", None
    )
    status = getattr(error, "status_code", None)
    names = class_names(error)
    # mini raises one of these if it cannot parse a reply, for example one without choices.
    if isinstance(error, LookupError | AttributeError | TypeError | ValueError) and any(
        frame.name == "_parse_actions" for frame in traceback.extract_tb(error.__traceback__)
    ):
        names.insert(0, UnreadableReplyError.__name__)
    return classify_fault(
        names,
        str(error),
        status if isinstance(status, int) else None,
        dict(headers or {}),
        now=time.time(),
        causes=[type(cause).__name__ for cause in _causes(error)],
    )


def classify_fault(
    names: Sequence[str],
    message: str,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    now: float = 0.0,
    causes: Sequence[str] = (),
) -> Fault | None:
    """Return the provider's fault, or None if it is not a provider error.

    Args:
        names: names of the exception's class and bases, most specific first.
        now: seconds since the epoch, for a Retry-After that is a date.
        causes: class names of the exceptions that caused it.
    """
    if _NO_PRICE in message:
        return Fault("usage" if _NO_USAGE in message else "price")
    kind = _kind(names, status)
    if kind is None:
        return None
    if kind == "server" and _UNSPECIFIC.removesuffix(".") in message:  # litellm's class for a refused connection
        kind = "connection"
    if kind == "connection" and _BROKEN_CONNECTION.intersection(causes):
        kind = "server"
    if kind in ("request", "server") and _BAD_KEY.search(message):  # clients call a missing key a server's error
        kind = "key"
    wait = retry_after(headers or {}, message, now)
    used_up = kind in ("rate", "request", "key") and wait is None and _USED_UP.search(message)
    return Fault("quota" if used_up or (wait or 0.0) > LONGEST_WAIT_SECONDS else kind, wait)


def retry_after(headers: Mapping[str, str], message: str, now: float) -> float | None:
    """Return the seconds that a provider asks to wait, from `Retry-After` (seconds or a date) or its message."""
    known = {name.lower(): value.strip() for name, value in headers.items()}
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", known.get(name, "")):
            return float(known[name]) * unit
    if value := known.get("retry-after"):
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - now)
        except (ValueError, TypeError, OverflowError):  # neither a number nor a date
            pass
    if match := _RETRY_IN.search(message):
        return sum(float(number) * _unit_seconds(unit.lower()) for number, unit in _DURATION.findall(match[1]))
    match = _RETRY_NUMBER.search(message)
    return float(match[1]) if match else None


def _unit_seconds(unit: str) -> float:
    return 0.001 if unit.startswith(("ms", "mil")) else {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}[unit[0]]


def call_seconds(model_kwargs: Mapping[str, Any]) -> float:
    """Return the time limit of one model call in seconds."""
    given = model_kwargs.get("timeout")
    return float(given) if isinstance(given, int | float) and given > 0 else CALL_SECONDS


def advice(fault: Fault, model: str, model_kwargs: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return what a person can do about a fault, in one short sentence without a full stop."""
    where = address(model, model_kwargs, environ)
    if fault.kind == "quota" and fault.wait_seconds:
        return (
            f"{where} asks to wait {fault.wait_seconds:.0f} s ({fault.wait_seconds / 60:.0f} minutes), but a run waits "
            f"at most {LONGEST_WAIT_SECONDS:.0f} s: start it again later, or raise the limit at the provider"
        )
    return {
        "key": f"{where} refuses the key: check {key_variable(model)}",
        "quota": f"the quota or credit at {where} is used up: top it up, or wait until it is renewed",
        "model": f"{where} does not know {model}: check -c model=NAME and the address",
        "price": f"the price of {model} is unknown: {pricing_help(model)}, or set MSWEA_COST_TRACKING=ignore_errors",
        "usage": f"the replies of {where} hold no `usage`, so their cost is unknown: export "
        "MSWEA_COST_TRACKING=ignore_errors, and limit the run with --max-rollouts N or --max-hours H",
        "timeout": f"{where} accepts calls, but does not answer within {call_seconds(model_kwargs):.0f} s: wait until "
        "it works again, or give a slow model more time with -c 'model_kwargs={\"timeout\": SECONDS}'",
        "request": "the provider refuses the request: check -c model_kwargs",
        "rate": f"the rate limit at {where} persists: use fewer --workers, or wait",
        "connection": f"no connection to {where}: is it up?",
        "server": f"{where} keeps failing: wait until it works again",
    }.get(fault.kind, "")


def address(model: str, model_kwargs: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return the address of a model's calls from settings or environment, else the provider's name."""
    provider = _provider(model)
    given = (model_kwargs.get("api_base"), model_kwargs.get("base_url"))
    known = (environ.get(f"{provider.upper()}_{end}", "") for end in ("API_BASE", "BASE_URL"))
    return next((str(a) for a in (*given, *known) if a), f"the provider {provider}")


def key_variable(model: str) -> str:
    """Return the environment variable of a provider's key, by litellm's rule."""
    provider = _provider(model).upper()
    return {"TOGETHER_AI": "TOGETHERAI_API_KEY", "BEDROCK": "AWS_ACCESS_KEY_ID",
            "VERTEX_AI": "GOOGLE_APPLICATION_CREDENTIALS"}.get(provider, f"{provider}_API_KEY")  # fmt: skip


def describe_fault(error: BaseException, fault: Fault, redact: Callable[[str], str]) -> str:
    """Return a description of a fault, with the error message in brackets, without secrets."""
    what = {"rate": "the provider asks to slow down", "connection": "the provider cannot be reached"}
    asks = f"the provider asks to wait {fault.wait_seconds:.0f} s" if fault.wait_seconds else ""
    return f"{asks or what.get(fault.kind, 'the provider fails')} ({describe_error(error, redact)})"


def describe_error(error: BaseException, redact: Callable[[str], str]) -> str:
    """Return the HTTP status and message of a failed call, or why the connection broke, without secrets."""
    text = _WRAPPERS.sub("", one_line(redact(str(error)))).strip() or type(error).__name__
    for cause in _causes(error):
        status = getattr(getattr(cause, "response", None), "status_code", None)
        if type(cause).__name__ == "HTTPStatusError" and isinstance(status, int):
            words = text.removeprefix(f"Error code: {status}").removeprefix(" - ")
            text = f"HTTP {status}: {words}" if words else f"HTTP {status}"
            break
        if text == _UNSPECIFIC and _UNSPECIFIC not in str(cause):
            text = one_line(redact(str(cause))) or text
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def without_wrappers(text: str) -> str:
    """Return a message without class names that client libraries put before it, also inside brackets."""
    return _WRAPPERS.sub("", text).strip() or text


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions that led to this one, at most ten."""
    for _ in range(10):
        if (cause := error.__cause__ or error.__context__) is None:
            return
        yield cause
        error = cause


def _kind(names: Sequence[str], status: int | None) -> FaultKind | None:
    if status is not None and (status in _KIND_BY_STATUS or status >= 500):
        return _KIND_BY_STATUS.get(status, "server")
    return next((kind for name in names for kind, ends in _ENDS_OF_NAMES.items() if name.endswith(ends)), None)


def _provider(model: str) -> str:
    provider, slash, _ = model.partition("/")
    if slash:
        return provider
    return "anthropic" if "claude" in model else "gemini" if "gemini" in model else "openai"
