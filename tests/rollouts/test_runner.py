"""Real rollouts: mini's own agent in a forked process, commands in the sandbox, and its sure end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import psutil
import pytest

from tests.rollouts.runner_support import SUBMIT, provider, running, saying
from tests.tools import need
from valve_plugin.config import Settings
from valve_plugin.rollouts import paid
from valve_plugin.rollouts import workspace as workspaces
from valve_plugin.rollouts.runner import RolloutResult, RolloutSpec, run
from valve_plugin.rollouts.workspace import Workspace


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    need("bwrap")
    with workspaces.empty() as place:
        yield place


def _run(
    settings: Settings, workspace: Workspace, stop: threading.Event | None = None, **more: object
) -> RolloutResult:
    given: dict[str, object] = {"task_id": "t", "ordinal": 0, "issue": "An issue.", "block": ""} | more
    return run(RolloutSpec(settings=settings, workspace=workspace, **given), stop=stop)  # type: ignore[arg-type]


def _outputs(result: RolloutResult) -> list[str]:
    messages = json.loads(result.trajectory)["messages"]
    return [m["extra"]["raw_output"] for m in messages if m["role"] == "tool"]


def test_a_run_has_minis_prompts_the_block_and_minis_trajectory(workspace: Workspace) -> None:
    block = "Notes {{ not }} {% a %} {# template #} \\ é\n"
    result = _run(saying("echo hi > made.txt; pwd", SUBMIT), workspace, block=block)
    assert (result.ended, result.exit_status, result.steps) == ("submitted", "Submitted", 2)
    assert (workspace.path / "made.txt").read_text() == "hi\n"
    trajectory = json.loads(result.trajectory)
    assert trajectory["trajectory_format"] == "mini-swe-agent-1.1"
    system, user = trajectory["messages"][:2]
    assert system["content"] == f"You are a helpful assistant that can interact with a computer.\n\n{block}"
    assert user["content"].startswith("Please solve this issue: An issue.")
    assert _outputs(result) == ["/testbed\n"]


def test_without_a_block_the_system_message_is_minis_own(workspace: Workspace) -> None:
    messages = json.loads(_run(saying(SUBMIT), workspace).trajectory)["messages"]
    assert messages[0]["content"] == "You are a helpful assistant that can interact with a computer."


def test_commands_see_no_key_and_no_network(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "sk-planted-4f1b9c0e77"
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    look = "env; cat /proc/*/environ | tr '\\0' '\\n'; cat /proc/*/cmdline; cat ~/.bashrc"
    result = _run(saying(look, "cat < /dev/tcp/127.0.0.1/22; ls /sys/class/net", SUBMIT), workspace)
    assert secret not in result.trajectory.decode()
    seen = _outputs(result)
    assert "HOME=" in seen[0]
    assert "MSWEA" not in seen[0] + seen[1]
    assert "eth" not in seen[1]


def test_settings_reach_mini(workspace: Workspace) -> None:
    limited = _run(saying("true", "true", "true", SUBMIT, step_limit=2), workspace)
    assert (limited.ended, limited.exit_status, limited.steps) == ("unresolved", "LimitsExceeded", 2)
    assert "budget" in limited.reason
    said = saying("echo $GREETING", SUBMIT)
    settings = Settings(
        model=said.model,
        model_class=said.model_class,
        mini_config=(*said.mini_config, "environment.env.GREETING=hello"),
    )
    assert _outputs(_run(settings, workspace)) == ["hello\n"]


def test_a_command_that_burns_cpu_is_the_agents_doing(workspace: Workspace) -> None:
    said = saying("echo first; while :; do :; done", "echo still here", SUBMIT)
    settings = Settings(
        model=said.model, model_class=said.model_class, mini_config=(*said.mini_config, "environment.timeout=1")
    )
    result = _run(settings, workspace)
    assert result.ended == "submitted"
    messages = json.loads(result.trajectory)["messages"]
    (stopped,) = [m for m in messages if "CPU time" in (m.get("extra", {}).get("exception_info") or "")]
    assert "first" in stopped["content"]
    assert _outputs(result)[1] == "still here\n"


_KEY = {"error": {"message": "Incorrect API key provided: sk-test-123456789"}}
_LONG = {"error": {"message": "This model's maximum context length is 8192 tokens", "code": "context_length_exceeded"}}
_TALK = {
    "id": "x",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "no call"}}],
}


@pytest.mark.parametrize(
    ("status", "body", "ended", "words"),
    [
        (401, _KEY, "errored", "(HTTP 401: Incorrect API key provided"),
        (404, {"error": {"message": "no such model"}}, "errored", "(HTTP 404: no such model"),
        (429, {"error": {"message": "quota exceeded"}}, "errored", "(HTTP 429: quota exceeded"),
        (500, {"error": {"message": "overloaded"}}, "errored", "(HTTP 500: overloaded"),
        (400, {"error": {"message": "unknown parameter foo"}}, "errored", "(HTTP 400: unknown parameter foo"),
        (400, _LONG, "unresolved", "context window"),
        (200, _TALK, "unresolved", "usable command"),
    ],
    ids=["auth", "model", "quota", "down", "request", "overflow", "no-tool-call"],
)
def test_providers_fail_and_agents_fail(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, status: int, body: dict[str, object], ended: str, words: str
) -> None:
    settings = Settings(model="openai/any", model_tries=1, model_kwargs={"max_retries": 0})
    monkeypatch.setenv("MSWEA_COST_TRACKING", "ignore_errors")
    with provider(status, body) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        result = _run(settings, workspace)
    assert (result.ended, words in result.reason) == (ended, True), result
    assert "\n" not in result.reason


def test_nobody_listens(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_BASE", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    result = _run(Settings(model="openai/any", model_tries=1, model_kwargs={"max_retries": 0}), workspace)
    assert result.ended == "errored"
    assert "is it up? ([Errno 111] Connection refused)" in result.reason


def test_a_model_class_that_does_not_exist_is_an_error_with_a_reason(workspace: Workspace) -> None:
    result = _run(Settings(model="m", model_class="no.such.Class"), workspace)
    assert result.ended == "errored"
    assert "no.such.Class" in result.reason


def test_a_process_that_dies_is_an_error_that_quotes_it(workspace: Workspace) -> None:
    result = _run(Settings(model="m", model_class="tests.rollouts.runner_support.Dying"), workspace)
    assert (result.ended, result.exit_status) == ("errored", "Died")
    assert "I am going" in result.reason


def test_a_killed_rollout_leaves_nothing(workspace: Workspace) -> None:
    stop, marker = threading.Event(), f"sleep 971.{os.getpid()}"
    threading.Thread(target=lambda: (_until(lambda: bool(running(marker))), stop.set()), daemon=True).start()
    with pytest.raises(CancelledError) as ended:
        _run(saying("echo early", f"{marker} & {marker}", SUBMIT), workspace, stop)
    assert paid.of(ended.value) == paid.Paid(2, 2.0), "two calls were answered, a dollar each"
    assert _until(lambda: not running(marker))


def test_the_wall_backstop_is_the_infrastructures_failure(workspace: Workspace) -> None:
    marker = f"sleep 972.{os.getpid()}"
    result = _run(saying("echo early", marker, SUBMIT), workspace, wall_seconds=2.0)
    assert result.ended == "errored"
    assert "wall clock" in result.reason
    assert (result.steps, result.cost_usd) == (2, 2.0), "the call whose command went on was paid, too"
    assert _outputs(result) == ["early\n"]  # what was done is kept
    assert _until(lambda: not running(marker))


@pytest.mark.parametrize(
    "unsafe", [pytest.param(False, id="sandboxed"), pytest.param(True, id="unsafe-local", marks=pytest.mark.heavy)]
)
def test_nothing_outlives_the_process_that_asked(tmp_path: Path, unsafe: bool) -> None:
    need("bwrap")
    marker = f"sleep 973.{int(unsafe)}{os.getpid()}"
    script = tmp_path / "caller.py"
    # No __main__ guard: the children must not run this script again.
    script.write_text(
        textwrap.dedent(
            f"""
            from tests.rollouts.runner_support import saying
            from valve_plugin.rollouts import workspace
            from valve_plugin.rollouts.runner import RolloutSpec, run
            print("started", flush=True)
            settings = saying("{marker}", unsafe_local={unsafe})
            with workspace.empty() as place:
                run(RolloutSpec(task_id="t", ordinal=0, issue="i", block="", workspace=place, settings=settings))
            """
        )
    )
    if unsafe:  # taken where bubblewrap is missing
        monkey = tmp_path / "path"
        monkey.mkdir()
        for tool in ("bash", "sleep", "git", "prlimit", "setpriv", "python3"):
            found = subprocess.run(["which", tool], capture_output=True, text=True, check=True).stdout.strip()
            (monkey / tool).symlink_to(found)
    environ = os.environ | {"PYTHONPATH": str(Path.cwd())} | ({"PATH": str(tmp_path / "path")} if unsafe else {})
    caller = subprocess.Popen([sys.executable, str(script)], env=environ, stdout=subprocess.PIPE, text=True)
    try:
        assert _until(lambda: bool(running(marker)), 60)
        assert caller.stdout is not None
        assert caller.stdout.readline() == "started\n"
        everyone = psutil.Process(caller.pid).children(recursive=True)
        assert len(everyone) >= 3  # fork server, rollout, command
    finally:
        caller.send_signal(signal.SIGKILL)
        caller.wait()
    assert _until(lambda: not any(_alive(process) for process in everyone))
    assert not running(marker)
    assert caller.stdout.read() == ""


def test_importing_the_runner_is_cheap() -> None:
    heavy = "('litellm', 'minisweagent', 'numpy')"
    code = f"import sys, valve_plugin.rollouts.runner; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def _alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _until(true: object, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
