"""A tiny real repository with a real bug, a workspace of it, and models that say what a test wants."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.lab.simulation.rows import FIXED, row
from tests.lean import lean
from tests.tools import put
from valve_plugin.config import Settings
from valve_plugin.records import Task
from valve_plugin.tasks.repository import prepare
from valve_plugin.tasks.task_set import TaskSet, load

TESTS = """\
from shop.cart import in_stock, total


def test_total():
    assert total([1, 2], 1) == 4


def test_in_stock():
    assert in_stock(1)
    assert not in_stock(0)
"""
SCRIPTED = Settings(model="openai/valve-scripted", step_limit=20, model_tries=1)


def shop(folder: Path) -> TaskSet:
    """Write and prepare the shop repository; two rows about it."""
    put(folder / "source", {"shop/__init__.py": "", "shop/cart.py": FIXED, "tests/test_cart.py": TESTS})
    (folder / "repository.toml").write_text(
        f'name = "acme/shop"\nsource = "path:source"\nenvironment = "{lean()}"\ntest_roots = ["tests"]\n'
    )
    total, stock = "tests/test_cart.py::test_total", "tests/test_cart.py::test_in_stock"
    inverted = FIXED.replace("count >= 1", "count < 1")
    rows = [
        _line(row("func_pm_op_change", 1), [total, stock], []),
        _line(row("func_pm_ctrl_invert_if", 2, buggy=inverted), [stock], [total]),
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rows))
    taskset = load(folder)
    prepare(taskset.repository)
    return taskset


def _line(task: Task, failing: list[str], passing: list[str]) -> dict[str, Any]:
    return {
        "instance_id": task.instance_id,
        "repo": task.repo,
        "patch": task.patch,
        "FAIL_TO_PASS": failing,
        "PASS_TO_PASS": passing,
        "problem_statement": task.problem_statement,
    }


def saying(*commands: str, **more: Any) -> Settings:
    """Settings of an agent whose model answers with these commands, one a step."""
    outputs = []
    for number, command in enumerate(commands):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
        action = {"command": command, "tool_call_id": f"c{number}"}
        extra = {"actions": [action], "cost": 1.0}
        outputs.append({"role": "assistant", "content": "", "tool_calls": [call], "extra": extra})
    return Settings(
        model_class="minisweagent.models.test_models.DeterministicToolcallModel",
        model="said",
        cost_limit=0.0,
        mini_config=(f"model.outputs={json.dumps(outputs)}",),
        **more,
    )


SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class Dying:
    """A model that takes its whole process with it."""

    def __init__(self, **_: Any) -> None:
        print("I am going", flush=True)
        os._exit(9)


@contextmanager
def provider_of(reply: Callable[[dict[str, Any]], tuple[int, Any]]) -> Iterator[dict[str, str]]:
    """A provider that answers each request by a function; yields the environment that leads there."""
    with serve(reply) as address:
        yield {"OPENAI_API_BASE": address, "OPENAI_API_KEY": "sk-test-123456789"}


@contextmanager
def serve(reply: Callable[[dict[str, Any]], tuple[int, Any]]) -> Iterator[str]:
    """Answer each request by a function; yields the address of OpenAI's API."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])).decode("utf-8", "strict"))
            status, body = reply(request)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(OSError):  # who asked may have left
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def completion(message: Any, finish_reason: Any = "tool_calls") -> dict[str, Any]:
    """A chat completion with this message."""
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        "choices": [{"index": 0, "finish_reason": finish_reason, "message": message}],
    }


class Commands:
    """The n-th assistant turn of any conversation runs the n-th command, or the last."""

    def __init__(self, commands: Sequence[str]) -> None:
        self.commands, self.url = commands, ""
        self.requests: list[dict[str, Any]] = []

    def __call__(self, request: dict[str, Any]) -> tuple[int, Any]:
        self.requests.append(request)
        turn = sum(message["role"] == "assistant" for message in request["messages"])
        return 200, completion(tool_call(self.commands[min(turn, len(self.commands) - 1)], f"call_{turn}"))


@contextmanager
def commanding(commands: Sequence[str]) -> Iterator[Commands]:
    """A provider that answers with scripted bash calls, and keeps what it was asked."""
    model = Commands(commands)
    with serve(model) as model.url:
        yield model


def tool_call(command: Any, call_id: Any = "c1") -> dict[str, Any]:
    """A message that calls mini's tool."""
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
