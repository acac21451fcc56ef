"""The server over real HTTP: the shape of OpenAI's replies, and draws that depend on nothing but the request."""

from __future__ import annotations

import json
import random
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.lab.simulation.rows import row, taskset
from valve_plugin.config import ROLLOUT_HEADER, SCRIPTED_MODEL, Settings
from valve_plugin.extract.reflect import reflect
from valve_plugin.lab.simulation.server import ServerAddress, start
from valve_plugin.records import Attempt, Bank

TASKS = [row("func_pm_op_change", 1), row("func_pm_ctrl_shuffle", 2)]
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]


@pytest.fixture
def server() -> Iterator[ServerAddress]:
    with start(taskset(*TASKS), seed=7) as running:
        yield running


def _post(server: ServerAddress, body: Any, header: str = "", path: str = "/v1/chat/completions") -> dict[str, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.base_url + path, data, {ROLLOUT_HEADER: header} if header else {})
    with urllib.request.urlopen(request, timeout=60) as reply:
        loaded: dict[str, Any] = json.load(reply)
        return loaded


def _commands(
    server: ServerAddress, task: int, ordinal: int, system: str = "You help.", with_header: bool = True
) -> list[str]:
    """Play one whole attempt."""
    header = f"{TASKS[task].instance_id}/{ordinal}" if with_header else ""
    user = f"Please solve this issue: {TASKS[task].problem_statement}"
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    commands = []
    while not commands or "COMPLETE_TASK" not in commands[-1]:
        reply = _post(server, {"model": "valve-scripted", "messages": messages, "tools": TOOLS}, header)
        message = reply["choices"][0]["message"]
        commands.append(json.loads(message["tool_calls"][0]["function"]["arguments"])["command"])
        messages += [message, {"role": "tool", "content": f"at {random.random()}"}]  # what comes back decides nothing
    return commands


def test_attempts_depend_on_task_ordinal_and_block_only(server: ServerAddress) -> None:
    first = {(t, o): _commands(server, t, o) for t in (0, 1) for o in range(6)}
    keys = list(first) * 2
    random.Random(3).shuffle(keys)
    with ThreadPoolExecutor(6) as pool:  # another order, other neighbours
        again = list(pool.map(lambda key: _commands(server, *key), keys))
    assert again == [first[key] for key in keys]
    assert len({tuple(c) for c in first.values()}) > 9
    assert [_commands(server, 0, o, "Other block.") for o in range(6)] != [first[0, o] for o in range(6)]


def test_a_task_is_recognised_by_its_issue(server: ServerAddress) -> None:
    assert _commands(server, 1, 0, with_header=False) == _commands(server, 1, 0)


def test_replies_have_the_shape_of_openai(server: ServerAddress) -> None:
    body = {"model": "valve-scripted", "messages": [{"role": "user", "content": "unknown"}], "tools": TOOLS}
    reply = _post(server, body)
    assert reply["object"] == "chat.completion"
    assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]
    choice = reply["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert "SIMULATION" in choice["message"]["content"]  # it does not know this task and says what it is


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"{}", b'{"messages": 1}', b'{"messages": ["x"]}', b"\xff\xfe", b"[" * 9999]
)
def test_malformed_requests_are_refused_and_the_server_goes_on(server: ServerAddress, body: bytes) -> None:
    with pytest.raises(urllib.error.HTTPError) as error:
        _post(server, body)
    assert error.value.code == 400
    assert "not a chat completion" in json.load(error.value)["error"]["message"]
    assert _commands(server, 0, 0)


def test_the_real_extract_step_gets_items_or_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [row("func_pm_remove_assign", n) for n in range(24)]
    settings = Settings(model=SCRIPTED_MODEL)
    proposals = []
    with start(taskset(*tasks), seed=3) as running:
        for name, value in running.environment().items():  # before litellm is imported, which reads one of them
            monkeypatch.setenv(name, value)
        for task in tasks:
            attempts = [
                Attempt(id=f"a{n}", task_id=task.instance_id, ordinal=n, source="evolve", outcome=outcome)
                for n, outcome in enumerate(("resolved", "unresolved"))
            ]
            bank = Bank(repo=task.repo)
            proposal = reflect(settings, bank, task.problem_statement, attempts, ["looked, repaired", "gave up"])
            assert proposal == reflect(settings, bank, task.problem_statement, attempts, ["other", "digests"])
            proposals.append(proposal)
    assert sum(bool(p.items) for p in proposals) >= 12
    assert any(p.empty and p.reason for p in proposals)  # a malformed reply
    assert len({item.name for p in proposals for item in p.items}) >= 5
