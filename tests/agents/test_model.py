"""What a model can put into an answer is its own doing: told to it, or `unresolved`; never `errored`, never a crash."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.agents.support import SUBMIT, completion, provider_of, tool_call
from tests.tools import TEST_ALL, need, until
from valve_plugin.agents import mini, mini_environment
from valve_plugin.agents.mini import MAX_COMMANDS
from valve_plugin.agents.protocol import TRAJECTORY, RolloutProgress, RolloutReporter, RolloutResult, RolloutSpec
from valve_plugin.config import Settings
from valve_plugin.sandbox import workspace as workspaces
from valve_plugin.sandbox.workspace import Workspace

pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")

ODD_TEXT = st.text(st.characters(codec=None), max_size=8)  # with NUL and lone surrogates
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ODD_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD_TEXT, inner, max_size=3),
    max_leaves=5,
)
COMMANDS = (
    st.sampled_from(
        ["true", "echo hi; exit 3", "cat", "echo \0", "echo \ud800", "printf '\udfff\ud800'", "#" * 140_000]
    )
    | JSON
)
ARGUMENTS = (
    st.builds(lambda command: json.dumps({"command": command}), COMMANDS)
    | st.sampled_from(["", "{", '{"command": "ls"', "[" * 5000, '{"command": ' + "9" * 5000 + "}", "null", '{"a": 1}'])
    | JSON
)
CALLS = st.fixed_dictionaries(
    {"function": st.fixed_dictionaries({"name": st.just("bash") | JSON, "arguments": ARGUMENTS}) | JSON},
    optional={
        "id": st.just("c1") | JSON,
        "type": st.sampled_from(["function", "custom"]) | JSON,
        "custom": st.just({"name": "bash", "input": "ls"}) | JSON,
        "index": JSON,
    },
)
MESSAGES = st.fixed_dictionaries(
    {"content": st.just("") | JSON, "tool_calls": st.lists(CALLS | JSON, max_size=3) | JSON},
    optional={
        "role": st.just("assistant") | JSON,
        "function_call": JSON,
        "refusal": JSON,
        "reasoning_content": JSON,
        "thinking_blocks": JSON,
        "annotations": JSON,
        "audio": JSON,
        "images": JSON,
    },
)
ANSWERS = st.builds(completion, MESSAGES, st.sampled_from(["stop", "tool_calls", "length", "content_filter", None]))


@pytest.fixture(scope="module")
def workspace() -> Iterator[Workspace]:
    need("bwrap")
    with workspaces.open_workspace() as place:
        yield place


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
        "MSWEA_SILENT_STARTUP": "1",
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    import litellm

    litellm.suppress_debug_info = True


class Provider:
    """Answers a list of replies, one a request, then lets the agent submit; as strict as real servers are."""

    def __init__(self, *replies: Any) -> None:
        self.replies, self.requests = list(replies), 0

    def __call__(self, request: dict[str, Any]) -> tuple[int, Any]:
        self.requests += 1
        if problem := self.problem(request["messages"]):
            return 400, {"error": {"message": problem, "type": "invalid_request_error"}}
        return 200, self.replies.pop(0) if self.replies else completion(tool_call(SUBMIT))

    @staticmethod
    def problem(messages: list[dict[str, Any]]) -> str:
        asked: set[Any] = set()
        for message in messages:
            if message["role"] == "assistant":
                asked = {call["id"] for call in message.get("tool_calls") or () if isinstance(call["id"], str)}
            if message["role"] == "tool" and message.get("tool_call_id") not in asked:
                return "tool_call_id: no such call"
        return ""


def run(workspace: Workspace, reply: Any, **more: Any) -> tuple[RolloutResult, dict[str, Any], RolloutProgress]:
    """Run mini's own agent; the result, its trajectory and what it reported."""
    options: dict[str, Any] = {"model": "openai/any", "model_tries": 2, "model_pause": 0.0} | more
    progress = RolloutProgress()
    spec = RolloutSpec(
        task_id="t", ordinal=0, issue="An issue.", block="", workspace=workspace, settings=Settings(**options)
    )
    with provider_of(reply) as environment, tempfile.TemporaryDirectory() as folder:
        os.environ.update(environment)
        try:
            result = mini.solve(spec, Path(folder), RolloutReporter(progress.receive))
        finally:
            for name in environment:
                del os.environ[name]
        return result, json.loads((Path(folder) / TRAJECTORY).read_text()), progress


ODD_FUNCTION = {"id": "c1", "function": [], "custom": {"name": "bash", "input": "ls"}}


@given(st.lists(ANSWERS, min_size=1, max_size=3))
@example([completion({"content": "", "tool_calls": [ODD_FUNCTION]}, "stop")])
@example([completion({"content": "", "tool_calls": [ODD_FUNCTION | {"function": None}]}, "stop")])
@example([completion({"content": "", "tool_calls": [[{"\0": None}]]}, "stop")])
@settings(
    max_examples=200 if TEST_ALL else 20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_whatever_a_model_answers_is_told_to_it_or_unresolved(workspace: Workspace, answers: list[Any]) -> None:
    provider = Provider(*answers)
    result, trajectory, progress = run(workspace, provider)
    assert result.ended in ("submitted", "unresolved"), result
    assert result.fault == ""
    assert progress.paid.calls >= result.steps - 1
    json.dumps(trajectory, ensure_ascii=False).encode()  # no lone surrogate in what is kept
    if result.ended == "submitted":
        assert result.steps == len(answers) + 1


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ([tool_call(None)], "is null"),
        ([tool_call({"cmd": "ls"})], "is an object"),
        ([tool_call("echo \ud800")], "surrogate"),
        ([tool_call("true", 7)], "an id of its own"),
        ([tool_call("true", {})], "an id of its own"),
        ([tool_call("true"), tool_call("true")], "an id of its own"),
        ([{"tool_calls": [{"id": "c1", "type": "custom", "custom": {"name": "bash", "input": "ls"}}]}], "shape"),
    ],
)
def test_a_tool_call_that_cannot_run_or_be_answered_is_told_to_the_model(
    workspace: Workspace, calls: Any, told: str
) -> None:
    message = {"role": "assistant", "content": "", "tool_calls": [call["tool_calls"][0] for call in calls]}
    provider = Provider(completion(message))
    result, trajectory, _ = run(workspace, provider)
    assert (result.ended, result.steps, provider.requests) == ("submitted", 2, 2)
    (said,) = [m["content"] for m in trajectory["messages"] if m.get("extra", {}).get("interrupt_type")]
    assert told in said


def test_a_command_that_bash_cannot_take_is_one_that_fails(workspace: Workspace) -> None:
    result, trajectory, _ = run(workspace, Provider(completion(tool_call("echo \0"))))
    assert (result.ended, result.steps) == ("submitted", 2)
    (seen,) = [m["extra"] for m in trajectory["messages"] if m["role"] == "tool"]
    assert (seen["returncode"], "it has a NUL character" in seen["raw_output"]) == (126, True)


def test_a_script_longer_than_an_argument_runs(workspace: Workspace) -> None:
    text = "".join(f"line {number}\n" for number in range(40_000))
    script = f"cat > made.txt <<'EOF'\n{text}EOF\ncat; wc -l < made.txt; false"
    assert len(script) > 2 * 128 * 1024
    result, trajectory, _ = run(workspace, Provider(completion(tool_call(script))))
    assert result.ended == "submitted"
    (seen,) = [m["extra"] for m in trajectory["messages"] if m["role"] == "tool"]
    assert (seen["raw_output"], seen["returncode"]) == ("40000\n", 1)
    assert (workspace.path / "made.txt").read_text() == text


def test_many_calls_in_one_answer(workspace: Workspace) -> None:
    def message(number: int) -> dict[str, Any]:
        calls = [tool_call(f"echo {n}", f"c{n}")["tool_calls"][0] for n in range(number)]
        return {"role": "assistant", "content": "", "tool_calls": calls}

    result, trajectory, _ = run(workspace, Provider(completion(message(12)), completion(message(MAX_COMMANDS + 1))))
    assert result.ended == "submitted"
    assert [m["extra"]["raw_output"] for m in trajectory["messages"] if m["role"] == "tool"] == [
        f"{n}\n" for n in range(12)
    ]


def test_commands_that_take_the_rollouts_time_are_the_agents_doing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mini_environment, "COMMAND_SECONDS", 0.2)
    result, _, _ = run(workspace, Provider(*[completion(tool_call("sleep 0.3"))] * 5))
    assert (result.ended, result.exit_status, result.steps) == ("unresolved", "TimeExceeded", 2)


@pytest.mark.parametrize("answers_again", [True, False])
def test_a_conversation_that_is_refused_is_not_a_provider_that_refuses(
    workspace: Workspace, answers_again: bool
) -> None:
    def reply(request: dict[str, Any]) -> tuple[int, Any]:
        first[0] = first[0] or len(request["messages"]) == 2
        if len(request["messages"]) > 2 or (asked and not answers_again):
            return 400, {"error": {"message": "something in it is wrong"}}
        asked.append(1)
        return 200, completion(tool_call("true"))

    asked: list[int] = []
    first = [False]
    result, _, progress = run(workspace, reply)
    assert (result.ended, result.fault) == (("unresolved", "") if answers_again else ("errored", "request")), result
    assert "something in it is wrong" in result.reason
    assert progress.paid.calls == (2 if answers_again else 1)


def test_a_reply_without_usage_is_said_as_that(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSWEA_COST_TRACKING", "default")
    reply = completion(tool_call("true"))
    del reply["usage"]
    priced = {"timeout": 5}
    result, _, _ = run(workspace, lambda _: (200, reply), model="openai/gpt-4o", model_kwargs=priced)
    assert (result.ended, result.fault) == ("errored", "usage")
    assert "hold no `usage`, so their cost is unknown" in result.reason


@contextmanager
def silent(drip: bool, calls: list[int]) -> Iterator[dict[str, str]]:
    """A provider that accepts and says nothing, or a byte now and then."""

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(65536)
            calls.append(1)
            if drip:
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
                )
            while not ended.wait(0.1):
                connection.sendall(b" " * drip)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield {"api_base": f"http://127.0.0.1:{server.getsockname()[1]}/v1"}
        ended.set()


@pytest.mark.parametrize("drip", [False, True])
def test_a_provider_that_stays_silent_is_noticed(workspace: Workspace, drip: bool) -> None:
    calls = list[int]()
    with silent(drip, calls) as where:
        result, _, _ = run(
            workspace, Provider(), model_tries=10, model_kwargs={"timeout": 0.5, "api_key": "x", **where}
        )
    assert (result.ended, result.fault) == ("errored", "timeout"), result
    assert "accepts calls, but does not answer within" in result.reason
    until(lambda: len(calls) >= 2)
    assert len(calls) == 2


@pytest.mark.parametrize(
    "odd", [{"choices": [{"message": None}]}, {"choices": []}, {"usage": []}, {"usage": {"prompt_tokens": "many"}}]
)
def test_what_the_server_writes_around_a_message_is_the_providers_doing(workspace: Workspace, odd: Any) -> None:
    result, _, _ = run(workspace, lambda _: (200, completion(tool_call("true")) | odd))
    assert (result.ended, result.fault) == ("errored", "server")
