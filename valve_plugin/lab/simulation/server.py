"""The SIMULATED model behind an OpenAI-compatible HTTP server on this machine.

Stateless: a reply follows from the seed and the request alone, so neither the number of workers nor the order of
requests changes anything. The step is the number of assistant messages so far.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from msgspec.structs import replace

from valve_plugin.checkout import find as find_checkout
from valve_plugin.codec import digest, digest_bytes
from valve_plugin.config import ROLLOUT_HEADER, SAMPLING, SCRIPTED_MODEL, Settings
from valve_plugin.lab.simulation.extractor import answer, merged_patches, ranked_edits
from valve_plugin.lab.simulation.parameters import PROPOSALS, Draw, ProposalKind
from valve_plugin.lab.simulation.solver import SUBMIT, AgentStep, script, success_chance
from valve_plugin.paths import scripted_bank_dir
from valve_plugin.records import Task
from valve_plugin.tasks.task_set import TaskSet, find, load

BANNER = "VALVE SIMULATION: a scripted model, not a real one; what it scores says nothing about any model"
MODEL = SCRIPTED_MODEL.partition("/")[2]


class ScriptedModel:
    """Task set and seed of one simulated model; turns requests into replies. Holds no state."""

    def __init__(
        self,
        tasks: Sequence[Task],
        seed: int,
        chance: float | None = None,
        proposals: Mapping[ProposalKind, float] = PROPOSALS,
    ) -> None:
        self.seed, self.chance, self.proposals = seed, chance, proposals
        self._tasks = {task.instance_id: task for task in tasks}
        # An issue is recognised in a prompt by its beginning: whoever quotes it may cut it or wrap its end.
        self._issues = [(_squeezed(t.problem_statement)[:200], t) for t in tasks if t.problem_statement.strip()]

    def reply(self, request: Mapping[str, Any], header: str = "") -> dict[str, Any]:
        """Return the chat completion for a request body and the value of its rollout header."""
        messages = [(str(m.get("role", "")), _text(m)) for m in request["messages"]]
        prompt = "\n".join(text for _, text in messages)
        task_id, _, ordinal = header.rpartition("/")
        task = self._tasks.get(task_id) or self._recognised(prompt)
        tools, reply_id = bool(request.get("tools")), digest(messages)[:24]
        if not tools and "issue_summary" in prompt:  # the key that only extraction asks for
            message: dict[str, Any] = {"role": "assistant", "content": self._extract(task, prompt)}
        elif not tools and '"verdicts"' in prompt:  # the key that only the review of items asks for
            message = {"role": "assistant", "content": _cleared(messages[-1][1])}
        elif not tools and (answered := self._optimize(task, messages, prompt)):
            message = {"role": "assistant", "content": answered}
        else:
            message = _spoken(self._solve(task, int(ordinal or 0), messages), tools, reply_id)
        return _completion(message, prompt, str(request.get("model", MODEL)), reply_id)

    def _solve(self, task: Task | None, ordinal: int, messages: list[tuple[str, str]]) -> AgentStep:
        if task is None:
            return AgentStep(f"{BANNER}. I do not know this task.", SUBMIT)
        system = "\n".join(text for role, text in messages if role == "system")
        chance = success_chance(task.instance_id, system) if self.chance is None else self.chance
        block_hash = digest_bytes(system.encode("utf-8", "surrogatepass"))
        steps = script(task, chance, Draw(self.seed, task.instance_id, ordinal, "solver", block_hash))
        done = sum(role == "assistant" for role, _ in messages)
        return steps[min(done, len(steps) - 1)]

    def _extract(self, task: Task | None, prompt: str) -> str:
        if task is None:
            return '{"issue_summary": "unknown task", "principles": [], "skills": []}'
        draw = Draw(self.seed, task.instance_id, "extractor")
        return answer(task, prompt, draw, self.proposals)

    def _optimize(self, task: Task | None, messages: list[tuple[str, str]], prompt: str) -> str:
        """Answer as SkillOpt's optimizer, if the system message asks for one of its forms."""
        asked = "\n".join(text for role, text in messages if role == "system")
        if '"selected_indices"' in asked:
            return ranked_edits(prompt)
        if '"edits"' not in asked:
            return ""
        return self._extract(task, prompt) if '"patch"' in asked else merged_patches(prompt)

    def _recognised(self, prompt: str) -> Task | None:
        text = _squeezed(prompt)
        found = [(len(issue), task) for issue, task in self._issues if issue in text]
        return max(found, key=lambda pair: pair[0])[1] if found else None


def _cleared(items: str) -> str:
    """Clear each item: the scripted extractor writes no attacks, and its harmful items are there for the gate."""
    reason = "It is ordinary advice."
    rows = [{"name": item["name"], "verdict": "safe", "reason": reason} for item in json.loads(items)]
    return json.dumps({"verdicts": rows})


class ServerAddress:
    """The address of a running server."""

    def __init__(self, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}"

    def environment(self) -> dict[str, str]:
        """Return the variables that send an OpenAI client, litellm and mini to this server."""
        local = "127.0.0.1"
        no_proxy = ",".join(filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), local]))
        return {
            "OPENAI_API_BASE": f"{self.base_url}/v1",
            "OPENAI_BASE_URL": f"{self.base_url}/v1",
            "OPENAI_API_KEY": "valve-simulated-key",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "NO_PROXY": no_proxy,
            "no_proxy": no_proxy,
        }


@contextmanager
def start(
    taskset: TaskSet,
    seed: int = 0,
    chance: float | None = None,
    proposals: Mapping[ProposalKind, float] = PROPOSALS,
) -> Iterator[ServerAddress]:
    """Serve the simulated model on 127.0.0.1 until the block ends.

    Args:
        chance: of each attempt to be right; None: by task and lessons.
        proposals: how often which kind of answer an extraction gets.
    """
    server = _Server(("127.0.0.1", 0), ScriptedModel(taskset.tasks, seed, chance, proposals))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield ServerAddress(server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # clients keep connections open
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], simulation: ScriptedModel) -> None:
        self.simulation = simulation
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without asking a name server for the name of this machine."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing about clients that were killed in the middle of a reply."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # one packet per reply

    def do_POST(self) -> None:
        try:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            simulation = self.server.simulation  # type: ignore[attr-defined]  # the handler is only ever given a _Server
            status, reply = 200, simulation.reply(request, self.headers.get(ROLLOUT_HEADER, ""))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            message = f"not a chat completion request: {type(e).__name__}: {e}"
            status, reply = 400, {"error": {"message": message, "type": "invalid_request_error", "code": None}}
        body = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class names it so
        """Print nothing: standard error belongs to the command."""


def _text(message: Mapping[str, Any]) -> str:
    """The text of a message whose content is a string, a list of parts, or nothing."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(str(part.get("text", "")) for part in content)


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def _spoken(step: AgentStep, tools: bool, call_id: str) -> dict[str, Any]:
    if not tools:
        return {"role": "assistant", "content": f"{step.thought}\n\n```mswea_bash_command\n{step.command}\n```"}
    call = {"name": "bash", "arguments": json.dumps({"command": step.command})}
    calls = [{"id": f"call_{call_id}", "type": "function", "function": call}]
    return {"role": "assistant", "content": step.thought, "tool_calls": calls}


def _completion(message: dict[str, Any], prompt: str, model: str, reply_id: str) -> dict[str, Any]:
    finish = "tool_calls" if "tool_calls" in message else "stop"
    prompt_tokens, completion_tokens = len(prompt) // 4 + 1, len(json.dumps(message)) // 4 + 1
    return {
        "id": f"chatcmpl-{reply_id}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "system_fingerprint": "simulation",
        "choices": [{"index": 0, "finish_reason": finish, "message": message}],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }


@contextmanager
def serve_model(
    taskset: TaskSet, settings: Settings, proposals: Mapping[ProposalKind, float] = PROPOSALS
) -> Iterator[Settings]:
    """Serve the scripted model while the block runs; yields the settings that use it. For `proposals` see `start`."""
    with start(taskset, settings.seed, proposals=proposals) as server:
        before = {name: os.environ.get(name) for name in server.environment()}
        os.environ.update(server.environment())
        try:
            # The seed is part of what determines a rollout, so the journal must see it. No address, no key is kept.
            kept = {name: value for name, value in settings.model_kwargs.items() if name in SAMPLING}
            arguments = {**kept, "seed": settings.seed}
            yield replace(settings, model=SCRIPTED_MODEL, model_class="", model_kwargs=arguments)
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def own_bank(tasks: str = "") -> Path:
    """Return where the scripted model keeps its bank about a repository; it need not exist.

    Args:
        tasks: the task set of the repository; empty: the repository at hand or, outside of any, the only one that has
            such a bank.
    """
    if tasks:
        return scripted_bank_dir(load(find(tasks)).repository.name)
    checkout = find_checkout(Path.cwd())
    here = scripted_bank_dir(checkout.name)
    there = sorted(here.parent.glob("*/"))
    return there[0] if len(there) == 1 and not checkout.git else here
