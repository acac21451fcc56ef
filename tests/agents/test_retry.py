"""How runs end, what failed at a provider, when a call is tried again, and what a rollout reports of that."""

from __future__ import annotations

from email.utils import formatdate
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.agents.faults import (
    Fault,
    advice,
    classify_end,
    classify_fault,
    describe_fault,
    key_variable,
    retry_after,
    without_wrappers,
)
from valve_plugin.agents.mini import RetryingModel
from valve_plugin.agents.protocol import Payment, RolloutProgress, RolloutReporter, RolloutResult
from valve_plugin.agents.retry import LONGEST_PAUSE_SECONDS, backoff_seconds, call_model, listen_to_waits
from valve_plugin.events import Waiting
from valve_plugin.redact import Redactor


@given(st.text(max_size=20), st.lists(st.text(max_size=20), max_size=3), st.text())
def test_every_end_has_a_class_and_a_reason_of_one_line(status: str, error: list[str], message: str) -> None:
    ended, reason = classify_end(status, error, message)
    assert (ended == "submitted") == (status == "Submitted" and not error)
    assert bool(reason) == (ended != "submitted")
    assert len(reason) <= 300
    assert reason.splitlines() in ([], [reason])


@pytest.mark.parametrize(
    ("name", "ended"),
    [
        ("ContextWindowExceededError", "unresolved"),
        ("ContentPolicyViolationError", "unresolved"),
        ("RateLimitError", "errored"),
        ("Timeout", "errored"),
        ("APIConnectionError", "errored"),
        ("ServiceUnavailableError", "errored"),
        ("PermissionDeniedError", "errored"),
        ("BadRequestError", "errored"),
    ],
)
def test_litellms_errors_are_classified_by_name_and_bases(
    name: str, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else its import waits for a download
    import litellm

    kind = getattr(litellm.exceptions, name)  # a renamed class would be errored without this
    assert classify_end("x", [c.__name__ for c in kind.__mro__], "said so")[0] == ended


@given(st.integers(1, 10_000), st.floats(0, 60), st.none() | st.floats(0, 1e6), st.floats(0, 1, exclude_max=True))
def test_a_pause_is_never_shorter_than_asked_and_its_own_part_is_bounded(number, first, asked, uniform):
    wait = backoff_seconds(number, first, asked, uniform)
    assert (asked or 0) <= wait <= (asked or 0) + LONGEST_PAUSE_SECONDS
    assert backoff_seconds(number, first, asked, uniform) <= backoff_seconds(number + 1, first, asked, uniform)
    assert wait - (asked or 0) >= min(LONGEST_PAUSE_SECONDS, first) / 2 - 1e-6


@given(st.lists(st.text(max_size=20), max_size=4), st.text(max_size=200), st.none() | st.integers(0, 999), st.text())
def test_nothing_a_provider_says_breaks_the_reading(names, message, status, header):
    found = classify_fault(names, message, status, {"Retry-After": header})
    assert found is None or found.kind
    assert found is None or found.wait_seconds is None or found.wait_seconds >= 0


@pytest.mark.parametrize(
    ("header", "message", "seconds"),
    [
        ("7", "", 7.0),
        (formatdate(1_000_030, usegmt=True), "", 30.0),
        ("soon", "", None),
        ("", '"retryDelay": "21s"', 21.0),
        ("", "Please try again. Retry after 12 s", 12.0),
        ("", "Rate limit reached ... Limit 30000, Used 29000, Requested 4000. Please try again in 6s. Visit", 6.0),
        ("", "Please try again in 5.289s.", 5.289),
        ("", "Please try again in 1h30m5.5s. Need more tokens?", 5405.5),
        ("", "try again in 2 minutes and 3 seconds", 123.0),
        ("", '{"retry_after": 1.5, "global": false}', 1.5),
        ("", "rate limited; Retry-After: 30", 30.0),
        ("", "try again at 14:05", None),
        ("", "connection reset by peer after 30 s", None),
        ("", "Limit 30000, Used 29000, try again later; 4 months of history", None),
    ],
)
def test_what_a_provider_asks_for(header, message, seconds):
    assert retry_after({"retry-AFTER": header}, message, now=1_000_000.0) == seconds


@given(st.integers(0, 99), st.integers(0, 59), st.integers(0, 59999), st.sampled_from(["", " ", ", ", " and "]))
def test_every_duration_is_read(hours, minutes, milliseconds, between):
    parts = [f"{hours}h"] * bool(hours) + [f"{minutes}m"] * bool(minutes) + [f"{milliseconds / 1000:.3f}s"]
    asked = retry_after({}, f"try again in {between.join(parts)}. Or not", now=0.0)
    assert asked == pytest.approx(hours * 3600 + minutes * 60 + milliseconds / 1000)


OVERFLOWS = (
    "openai: This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "vllm: The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
    "llama.cpp: the request exceeds the available context size, try increasing it",
    "tgi: Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000",
    "ollama: the input length exceeds the context length",
    "sglang: The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    "bedrock: Input is too long for requested model.",
    "anthropic: prompt is too long: 210000 tokens > 200000 maximum",
    "anthropic: request_too_large: Request exceeds the maximum size",
    "gemini: The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "openrouter: This endpoint's maximum context length is 131072 tokens. However, you requested about 140000 tokens",
    "groq: Please reduce the length of the messages or completion.",
    "dashscope: Range of input length should be [1, 30720]",
    "vllm: max_tokens must be at least 1, got -234.",
    "openai: Invalid 'messages[3].content': string too long. Expected a string with maximum length 10485760",
    "zhipu: Prompt 超长",
)
REFUSALS = (
    "openai: content_policy_violation: Your request was rejected as a result of our safety system.",
    "azure: The response was filtered due to the prompt triggering Azure OpenAI's content management policy",
    "anthropic: Output blocked by content filtering policy",
    "openrouter: Your chosen model requires moderation and your input was flagged for violence",
    "gemini: PROHIBITED_CONTENT",
    "dashscope: data_inspection_failed: Input data may contain inappropriate content.",
    "deepseek: Content Exists Risk",
    "vertex: Blocked by Model Armor Floor Setting: the prompt violated Responsible AI Safety settings",
    "zhipu: 系统检测到输入或生成内容可能包含不安全或敏感内容,请您避免输入易产生敏感内容的提示语",
)


@pytest.mark.parametrize("message", [*OVERFLOWS, *REFUSALS])
@pytest.mark.parametrize("name", ["BadRequestError", "APIError", "PermissionDeniedError", "InternalServerError"])
def test_servers_words_for_what_the_conversation_did(name, message):
    ended, reason = classify_end("x", [name, "APIStatusError", "OpenAIError"], message)
    assert (ended, "context window" in reason) == ("unresolved", message in OVERFLOWS)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("BadRequestError", "Your credit balance is too low to access the API. Go to Plans & Billing"),
        ("BadRequestError", "API key expired. Please renew the API key."),
        ("RateLimitError", "Too many tokens, please wait before trying again."),
        ("RateLimitError", "Request too large for gpt-4o: Limit 30000, Requested 40000 tokens per minute"),
        ("AuthenticationError", "Incorrect API key provided; see our content policy"),
        ("PermissionDeniedError", "Sorry, you have been blocked"),
        ("InternalServerError", "The server had an error while processing your request"),
    ],
)
def test_words_that_are_the_providers_own_failure(name, message):
    assert classify_end("x", [name, "APIStatusError"], message)[0] == "errored"


@pytest.mark.parametrize(
    ("names", "status", "message", "kind", "lasting"),
    [
        (["AuthenticationError"], 401, "bad key", "key", True),
        (["APIError"], 402, "Insufficient Balance", "quota", True),
        (["RateLimitError"], 429, "slow down", "rate", False),
        (["RateLimitError"], 429, "insufficient_quota", "quota", True),
        (["RateLimitError"], 429, "余额不足或无可用资源包,请充值", "quota", True),
        (["RateLimitError"], 429, "exceeded your current quota, retry in 20s", "rate", False),
        (["RateLimitError"], 429, "come back: retry after 86400 s", "quota", True),
        (["NotFoundError"], 404, "no such model", "model", True),
        (["BadRequestError"], 400, "unknown parameter", "request", True),
        (["InternalServerError"], 500, "Connection error.", "connection", False),
        (["Timeout"], 408, "timed out", "timeout", True),
        (["SilentProviderError"], None, "no complete answer within 300 s", "timeout", True),
        (["BadRequestError"], 400, "API key not valid. Please pass a valid API key.", "key", True),
        (["RuntimeError"], None, "Error calculating cost for model m: Cost must be > 0.0, got 0.0", "usage", True),
        (["OpenRouterAuthenticationError"], None, "no", "key", True),
        (["UnreadableReplyError", "IndexError"], None, "list index out of range", "server", False),
        (["RuntimeError"], None, "Error calculating cost for model m: ...", "price", True),
    ],
)
def test_kinds(names, status, message, kind, lasting):
    found = classify_fault(names, message, status)
    assert found
    assert (found.kind, found.lasting) == (kind, lasting)


@pytest.mark.parametrize(
    ("behind", "kind"),
    [
        ((), "connection"),
        (("OpenAIError", "APIConnectionError", "ConnectError", "ConnectionRefusedError"), "connection"),
        (("OpenAIError", "APIConnectionError", "RemoteProtocolError"), "server"),
        (("ReadError", "ConnectionResetError"), "server"),
    ],
)
def test_a_connection_that_stood_is_no_missing_server(behind, kind):
    assert classify_fault(["InternalServerError"], "Connection error.", 500, causes=behind).kind == kind
    assert classify_fault(["RuntimeError"], "oops", causes=behind) is None


def test_a_model_that_breaks_by_itself_is_no_provider():
    model = RetryingModel(SimpleNamespace(query=lambda messages: [][0]), 9, 60.0, RolloutReporter([].append), str)
    with pytest.raises(IndexError):
        model.query([])
    assert model.fault is None


def test_advice_names_the_variable_and_the_address():
    assert "check ANTHROPIC_API_KEY" in advice(Fault("key"), "anthropic/claude", {}, {})
    assert "http://10.0.0.1/v1" in advice(Fault("connection"), "openai/m", {"api_base": "http://10.0.0.1/v1"}, {})
    assert "http://there" in advice(Fault("server"), "openai/m", {}, {"OPENAI_BASE_URL": "http://there"})
    assert (key_variable("claude-x"), key_variable("together_ai/m")) == ("ANTHROPIC_API_KEY", "TOGETHERAI_API_KEY")


class RateLimitError(Exception):
    status_code = 429


class ContextWindowExceededError(Exception):
    status_code = 400


def _failing(error, times):
    left = [error] * times

    def call():
        if left:
            raise left.pop()
        return "answer"

    return call


def test_it_asks_again_and_honours_the_wait():
    error = RateLimitError("slow")
    error.litellm_response_headers = {"Retry-After": "7"}
    waits, told = [], []
    answer = call_model(
        _failing(error, 3), tries=4, first_pause=1.0, redact=str, sleep=waits.append, on_wait=told.append
    )
    assert answer == "answer"
    assert [(wait.tried, wait.of, wait.seconds) for wait in told] == [(n, 4, s) for n, s in enumerate(waits, 1)]
    assert [7 + 0.5 * 2**n <= wait <= 7 + 2**n for n, wait in enumerate(waits)] == [True] * 3


@pytest.mark.parametrize(
    ("error", "times", "waits"), [(RateLimitError("slow"), 9, 3), (ContextWindowExceededError("long"), 1, 0),
                                  (RateLimitError("insufficient_quota"), 1, 0), (ZeroDivisionError(), 1, 0)]
)  # fmt: skip
def test_it_gives_up_where_no_try_helps(error, times, waits):
    waited = []
    with pytest.raises(type(error)):
        call_model(_failing(error, times), tries=4, first_pause=0.0, redact=str, sleep=waited.append)
    assert len(waited) == waits


def test_a_retrying_model_is_its_model_in_all_else():
    class Model:
        config = "c"

        def query(self, messages, **arguments):
            return self._parse_actions([])

        def _parse_actions(self, choices):
            return choices[0]

    model = RetryingModel(Model(), 2, 0.0, RolloutReporter([].append), str)
    with pytest.raises(IndexError):
        model.query([])
    assert (model.config, model.fault.kind) == ("c", "server")


WAITS = st.builds(
    Waiting, said=st.text(max_size=20), tried=st.integers(1, 9), of=st.integers(1, 9), seconds=st.floats(0, 600)
)


@given(st.lists(WAITS, max_size=6))
def test_waits_and_costs_are_passed_on(waits):
    messages, seen, progress = [], [], RolloutProgress()
    reporter = RolloutReporter(messages.append)
    for wait in waits:
        reporter.wait(wait)
        reporter.pay(0.5)
    with listen_to_waits(seen.append):
        for message in messages:
            progress.receive(message)
    assert seen == waits
    assert progress.paid == Payment(len(waits), 0.5 * len(waits))
    assert progress.result is None
    reporter.finish(RolloutResult(ended="submitted"))
    progress.receive(messages[-1])
    assert progress.result == RolloutResult(ended="submitted")


@pytest.mark.parametrize(
    ("error", "found", "expected"),
    [("litellm.InternalServerError: InternalServerError: OpenAIException - overloaded", Fault("server"),
      "the provider fails (overloaded)"),
     ("litellm.RateLimitError: slow\n down", Fault("rate", 40.0), "the provider asks to wait 40 s (slow down)"),
     ("slow down", Fault("rate", 0.0), "the provider asks to slow down (slow down)"),
     ("", Fault("connection"), "the provider cannot be reached (OSError)"),
     ("bad key sk-0123456789abcdef0123", Fault("server"), "sk-0"), ("x" * 999, Fault("server"), "x...)")],
)  # fmt: skip
def test_what_a_provider_is_said_to_have_said(error, found, expected):
    redact = Redactor.of({}, config={"api_key": "sk-0123456789abcdef0123"})
    text = describe_fault(OSError(error) if error else OSError(), found, redact)
    assert (expected in text) == (expected != "sk-0")
    assert len(text) < 250


def test_what_client_libraries_put_before_it_is_left_out_also_in_brackets():
    twice = "litellm.ServiceUnavailableError: ServiceUnavailableError: OpenAIException - overloaded"
    assert without_wrappers(f"ServiceUnavailableError: {twice}") == "overloaded"
    assert without_wrappers(f"it keeps failing (ServiceUnavailableError: {twice})") == "it keeps failing (overloaded)"
    assert without_wrappers("TimeoutError:") == "TimeoutError:", "something is said"
