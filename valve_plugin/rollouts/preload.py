"""What the fork server does once, so that no rollout pays for it: litellm and mini-SWE-agent take seconds to import.

Both read some variables while they are imported, so those are set first.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from unittest import mock

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else litellm waits for a download
os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
os.environ.setdefault("MSWEA_CONFIGURED", "true")

import litellm
import minisweagent.agents.default
import minisweagent.config
import minisweagent.models.litellm_model
import psutil  # noqa: F401

import valve_plugin.rollouts.environment  # noqa: F401

litellm.suppress_debug_info = True

_CALL = {"name": "bash", "arguments": '{"command": "true"}'}
_REPLY = json.dumps(
    {
        "id": "rehearsal",
        "object": "chat.completion",
        "created": 0,
        "model": "rehearsal",
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "1", "type": "function", "function": _CALL}],
                },
            }
        ],
    }
).encode()


def rehearse() -> None:
    """Make one model call, to this very process: litellm imports as much again during its first call.

    It leaves no thread behind, for those would not be there after a fork. Where it fails, a rollout's first call is
    slow, as it would have been.
    """
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"  # here; a fork gets its asker's environment
    with HTTPServer(("127.0.0.1", 0), _Reply) as server:
        server.timeout = 10
        answer = threading.Thread(target=server.handle_request)
        answer.start()
        with suppress(Exception), _without_threads():
            model = minisweagent.models.litellm_model.LitellmModel(
                model_name="openai/rehearsal",
                model_kwargs={
                    "api_base": f"http://127.0.0.1:{server.server_port}",
                    "api_key": "none",
                    "max_retries": 0,
                },
                cost_tracking="ignore_errors",
            )
            model.query([{"role": "user", "content": "rehearsal"}])
        answer.join()


@contextmanager
def _without_threads() -> Iterator[None]:
    """Run at once what litellm would give to its pool of threads."""
    from litellm.litellm_core_utils.thread_pool_executor import executor

    def now(job: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(job(*args, **kwargs))
        return done

    with mock.patch.object(executor, "submit", now):
        yield


class _Reply(BaseHTTPRequestHandler):
    """Answers every request with one tool call."""

    def do_POST(self) -> None:
        """See BaseHTTPRequestHandler."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(_REPLY)))
        self.end_headers()
        self.wfile.write(_REPLY)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""
