"""Issue texts by a model: taken when they say nothing about the fix, paid for once."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.rollouts import calc
from valve_plugin.errors import InfrastructureError
from valve_plugin.tasks.issue_model import by_litellm, rewrite
from valve_plugin.tasks.load import Row


def row(name: str) -> Row:
    changes = {k.lower(): v for k, v in calc.row(instance_id=name, problem_statement=f"{name} fails").items()}
    return Row(**changes)  # type: ignore[arg-type]


def test_answers_are_checked_and_kept(tmp_path: Path) -> None:
    answers = {"good": "# Clamping is off\n", "tells": "look into calc/ops.py", "empty": "  "}
    asked: list[str] = []

    def ask(prompt: str) -> str:
        asked.append(prompt)
        return next(text for name, text in answers.items() if prompt.endswith(f"{name} fails"))

    said: list[str] = []
    journal = tmp_path / "work/issues.jsonl"
    rows = [row(name) for name in answers]
    done = rewrite(rows, ask, "m", journal, said.append)
    assert [r.problem_statement for r in done] == ["# Clamping is off\n", "tells fails", "empty fails"]
    assert said == [
        "tells: the model's text names calc/ops.py; the plain one stays",
        "empty: the model's text is empty; the plain one stays",
    ]
    journal.write_bytes(journal.read_bytes() + b'["torn')
    assert rewrite(rows, lambda _: pytest.fail("asked again"), "m", journal, said.append) == done
    assert len(asked) == 3


class Server(BaseHTTPRequestHandler):
    """Answers every chat with the last words it was sent."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = asked["messages"][-1]["content"][-11:]
        message = {"role": "assistant", "content": f"said: {text}"}
        body = {"id": "1", "object": "chat.completion", "created": 1, "model": asked["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}  # fmt: skip
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.heavy
def test_over_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OPENAI_API_BASE", f"http://127.0.0.1:{server.server_port}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        assert by_litellm("openai/any")("what is it that fails here") == "said:  fails here"
        server.shutdown()
    with pytest.raises(InfrastructureError, match="openai/any did not answer"):
        by_litellm("openai/any")("again")
