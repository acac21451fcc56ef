"""What failed at a provider, by what clients raise: classes, status, headers, words."""

from __future__ import annotations

import queue
import socket
import threading
import time
from email.utils import formatdate
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from valve_plugin.rollouts.faults import LONGEST_PAUSE, Fault, advice, fault, key_variable, pause, retry_after
from valve_plugin.rollouts.patience import Patient, fault_of, patiently


@given(st.integers(1, 10_000), st.floats(0, 60), st.none() | st.floats(0, 1e6), st.floats(0, 1, exclude_max=True))
def test_a_pause_is_never_shorter_than_asked_and_its_own_part_is_bounded(number, first, asked, uniform):
    wait = pause(number, first, asked, uniform)
    assert (asked or 0) <= wait <= (asked or 0) + LONGEST_PAUSE
    assert pause(number, first, asked, uniform) <= pause(number + 1, first, asked, uniform)
    assert wait - (asked or 0) >= min(LONGEST_PAUSE, first) / 2 - 1e-6


@given(st.lists(st.text(max_size=20), max_size=4), st.text(max_size=200), st.none() | st.integers(0, 999), st.text())
def test_nothing_a_provider_says_breaks_the_reading(names, message, status, header):
    found = fault(names, message, status, {"Retry-After": header})
    assert found is None or found.kind
    assert found is None or found.asked is None or found.asked >= 0


@pytest.mark.parametrize(
    ("header", "message", "seconds"),
    [
        ("7", "", 7.0),
        ("0.5", "", 0.5),
        (formatdate(1_000_030, usegmt=True), "", 30.0),
        (formatdate(999_000, usegmt=True), "", 0.0),
        ("soon", "", None),
        ("-3", "", None),
        ("", '"retryDelay": "21s"', 21.0),
        ("", "Please try again. Retry after 12 s", 12.0),
        ("", "please retry in 900ms.", 0.9),
        ("", "no hurry", None),
    ],
)
def test_what_a_provider_asks_for(header, message, seconds):
    assert retry_after({"retry-AFTER": header}, message, now=1_000_000.0) == seconds


@pytest.mark.parametrize(
    ("names", "status", "message", "kind", "lasting"),
    [
        (["AuthenticationError"], 401, "bad key", "key", True),
        (["APIError"], 403, "forbidden", "key", True),
        (["APIError"], 402, "Insufficient Balance", "quota", True),
        (["RateLimitError"], 429, "slow down", "rate", False),
        (["RateLimitError"], 429, "insufficient_quota", "quota", True),
        (["RateLimitError"], 429, "exceeded your current quota, retry in 20s", "rate", False),
        (["RateLimitError"], 429, "come back: retry after 86400 s", "quota", True),
        (["NotFoundError"], 404, "no such model", "model", True),
        (["BadRequestError"], 400, "unknown parameter", "request", True),
        (["InternalServerError"], 500, "Connection error.", "connection", False),
        (["InternalServerError"], 500, "oops", "server", False),
        (["APIError"], 529, "overloaded", "server", False),
        (["Timeout"], 408, "timed out", "server", False),
        (["OpenRouterAPIError"], None, "HTTP 502", "server", False),
        (["OpenRouterAuthenticationError"], None, "no", "key", True),
        (["UnreadableReplyError", "IndexError"], None, "list index out of range", "server", False),
        (["RuntimeError"], None, "Error calculating cost for model m: ...", "price", True),
    ],
)
def test_kinds(names, status, message, kind, lasting):
    found = fault(names, message, status)
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
    assert fault(["InternalServerError"], "Connection error.", 500, behind=behind).kind == kind
    assert fault(["RuntimeError"], "oops", behind=behind) is None, "what is no provider's error does not become one"


def test_a_body_that_ends_early_is_a_fault_of_a_server_that_answers():
    def cut():
        with socket.create_server(("127.0.0.1", 0)) as server:
            ports.put(server.getsockname()[1])
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{")

    ports = queue.SimpleQueue()
    threading.Thread(target=cut, daemon=True).start()
    with pytest.raises(httpx.HTTPError) as raised:
        httpx.get(f"http://127.0.0.1:{ports.get(timeout=60)}")
    wrapped = APIConnectionError()
    wrapped.__cause__ = raised.value  # as openai's client and litellm do
    assert fault_of(wrapped) == Fault("server")


class APIConnectionError(Exception):
    pass


def test_what_is_no_fault_of_a_provider():
    assert fault(["FormatError", "InterruptAgentFlow", "Exception"], "no command") is None
    assert fault(["SandboxError", "RuntimeError"], "no sandbox") is None


def test_a_model_that_breaks_by_itself_is_no_provider():
    model = Patient(SimpleNamespace(query=lambda messages: [][0]), 9, 60.0)
    with pytest.raises(IndexError):
        model.query([])
    assert model.fault is None


def test_advice_names_the_variable_and_the_address():
    assert "check ANTHROPIC_API_KEY" in advice("key", "anthropic/claude", {}, {})
    assert "http://10.0.0.1/v1" in advice("connection", "openai/m", {"api_base": "http://10.0.0.1/v1"}, {})
    assert "http://there" in advice("server", "openai/m", {}, {"OPENAI_BASE_URL": "http://there"})
    assert (key_variable("claude-x"), key_variable("together_ai/m")) == ("ANTHROPIC_API_KEY", "TOGETHERAI_API_KEY")


def test_a_provider_that_wants_to_be_left_alone_for_long_is_said_to():
    later = fault(["RateLimitError"], "slow", 429, {"Retry-After": "3600"})
    assert later.lasting
    said = advice(later.kind, "openai/m", {"api_base": "http://there"}, {}, later.asked)
    assert said.startswith("http://there asks to wait 3600 s (60 minutes), and a run waits 600 s at most")
    assert advice("quota", "openai/m", {}, {}).startswith("the quota or credit at")


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
    answer = patiently(
        _failing(error, 3), 4, 1.0, sleep=waits.append, told=lambda e, found, number, s: told.append((number, s))
    )
    assert answer == "answer"
    assert told == list(enumerate(waits, 1)), "each wait is told before it begins"
    assert [7 + 0.5 * 2**n <= wait <= 7 + 2**n for n, wait in enumerate(waits)] == [True] * 3


@pytest.mark.parametrize(
    ("error", "times", "waits"), [(RateLimitError("slow"), 9, 3), (ContextWindowExceededError("long"), 1, 0),
                                  (RateLimitError("insufficient_quota"), 1, 0), (ZeroDivisionError(), 1, 0)]
)  # fmt: skip
def test_it_gives_up_where_no_try_helps(error, times, waits):
    waited = []
    with pytest.raises(type(error)):
        patiently(_failing(error, times), 4, 0.0, sleep=waited.append)
    assert len(waited) == waits


def test_a_patient_model_is_its_model_in_all_else():
    class Model:
        config = "c"

        def query(self, messages, **arguments):
            return self._parse_actions([])

        def _parse_actions(self, choices):
            return choices[0]

    model = Patient(Model(), 2, 0.0)
    started = time.monotonic()
    with pytest.raises(IndexError):
        model.query([])
    assert time.monotonic() - started < 5
    assert (model.config, model.fault.kind) == ("c", "server")
