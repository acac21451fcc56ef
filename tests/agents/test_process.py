"""Real rollouts: mini's own agent in a forked process, commands in the sandbox, its sure end, and the fork server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from msgspec.structs import replace

from tests.agents.support import SUBMIT, completion, provider_of, saying
from tests.tools import lives, need, running, until
from valve_plugin.agents import process
from valve_plugin.agents.protocol import Payment, RolloutResult, RolloutSpec, payment_of
from valve_plugin.config import Settings
from valve_plugin.sandbox import workspace as workspaces
from valve_plugin.sandbox.supervisor import python_command
from valve_plugin.sandbox.workspace import Workspace


@pytest.fixture
def workspace() -> Iterator[Workspace]:
    need("bwrap")
    with workspaces.open_workspace() as place:
        yield place


def _run(
    settings: Settings, workspace: Workspace, stop: threading.Event | None = None, **more: object
) -> RolloutResult:
    given: dict[str, object] = {"task_id": "t", "ordinal": 0, "issue": "An issue.", "block": ""} | more
    return process.run(RolloutSpec(settings=settings, workspace=workspace, **given), stop=stop)  # type: ignore[arg-type]


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
    settings = replace(said, mini_config=(*said.mini_config, "environment.env.GREETING=hello"))
    assert _outputs(_run(settings, workspace)) == ["hello\n"]


def test_a_command_that_burns_cpu_is_the_agents_doing(workspace: Workspace) -> None:
    said = saying("echo first; while :; do :; done", "echo still here", SUBMIT)
    result = _run(replace(said, mini_config=(*said.mini_config, "environment.timeout=1")), workspace)
    assert result.ended == "submitted"
    messages = json.loads(result.trajectory)["messages"]
    (stopped,) = [m for m in messages if "CPU time" in (m.get("extra", {}).get("exception_info") or "")]
    assert "first" in stopped["content"]
    assert _outputs(result)[1] == "still here\n"


_KEY = {"error": {"message": "Incorrect API key provided: sk-test-123456789"}}
_LONG = {"error": {"message": "This model's maximum context length is 8192 tokens", "code": "context_length_exceeded"}}
_TALK = completion({"role": "assistant", "content": "no call"}, "stop")


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
    with provider_of(lambda _: (status, body)) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        result = _run(settings, workspace)
    assert (result.ended, words in result.reason) == (ended, True), result
    assert "\n" not in result.reason


def test_nobody_listens(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_BASE", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "planted-key-1234")
    result = _run(Settings(model="openai/any", model_tries=1, model_kwargs={"max_retries": 0}), workspace)
    assert result.ended == "errored"
    assert "planted" not in result.reason
    assert "is it up? ([Errno 111] Connection refused)" in result.reason


def test_a_process_that_dies_is_an_error_that_quotes_it(workspace: Workspace) -> None:
    result = _run(Settings(model="m", model_class="tests.agents.support.Dying"), workspace)
    assert (result.ended, result.exit_status) == ("errored", "Died")
    assert "I am going" in result.reason


def test_a_killed_rollout_leaves_nothing(workspace: Workspace) -> None:
    stop, marker = threading.Event(), f"sleep 971.{os.getpid()}"
    threading.Thread(target=lambda: until(lambda: running(marker)) and stop.set(), daemon=True).start()
    with pytest.raises(CancelledError) as ended:
        _run(saying("echo early", f"{marker} & {marker}", SUBMIT), workspace, stop)
    assert payment_of(ended.value) == Payment(2, 2.0), "two calls were answered, a dollar each"
    until(lambda: not running(marker))


def test_the_wall_backstop_is_the_infrastructures_failure(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = f"sleep 972.{os.getpid()}"
    begun = list[bool]()  # hours pass as soon as the second command runs

    def clock() -> float:
        begun.extend([True] * bool(not begun and running(marker)))
        return time.monotonic() + 1e6 * len(begun)

    monkeypatch.setattr(process, "time", SimpleNamespace(monotonic=clock))
    result = _run(saying("echo early", marker, SUBMIT), workspace, wall_seconds=1e5)
    assert result.ended == "errored"
    assert "wall clock" in result.reason
    assert (result.steps, result.cost_usd) == (2, 2.0), "the call whose command went on was paid, too"
    assert _outputs(result) == ["early\n"]  # what was done is kept
    until(lambda: not running(marker))


ROLLOUT = """
import sys, psutil
from tests.agents.support import SUBMIT, saying
from valve_plugin.agents import process
from valve_plugin.agents.protocol import RolloutSpec
from valve_plugin.sandbox import workspace

def rollout(*commands, unsafe=True):
    with workspace.open_workspace() as place:
        settings = saying(*(commands or (SUBMIT,)), unsafe_local=unsafe)
        spec = RolloutSpec(
            task_id="t", ordinal=0, issue="i", block="", workspace=place, settings=settings
        )
        return process.run(spec).ended

def servers():
    return [p for p in psutil.Process().children() if "agents.process" in " ".join(p.cmdline())]
"""


def _script(tmp_path: Path, body: str, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    """Start a program that makes rollouts. It has no __main__ guard: the children must not run it again."""
    path = tmp_path / "script.py"
    path.write_text(ROLLOUT + textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, str(path), *arguments],
        env=os.environ | {"PYTHONPATH": str(Path.cwd())} | environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    "unsafe", [pytest.param(False, id="sandboxed"), pytest.param(True, id="unsafe-local", marks=pytest.mark.heavy)]
)
def test_nothing_outlives_the_process_that_asked(tmp_path: Path, unsafe: bool) -> None:
    need("bwrap")
    marker, environ = f"sleep 973.{int(unsafe)}{os.getpid()}", {}
    if unsafe:  # a PATH without bubblewrap
        environ["PATH"] = str(tmp_path / "path")
        (tmp_path / "path").mkdir()
        for tool in ("bash", "sleep", "git", "prlimit", "setpriv", "python3"):
            (tmp_path / "path" / tool).symlink_to(shutil.which(tool) or "")
    caller = _script(tmp_path, f"print('started', flush=True); rollout('{marker}', unsafe={unsafe})", **environ)
    try:
        until(lambda: running(marker))
        assert caller.stdout is not None
        assert caller.stdout.readline() == "started\n"
        everyone = psutil.Process(caller.pid).children(recursive=True)
        assert len(everyone) >= 3  # fork server, rollout, command
    finally:
        caller.kill()
        caller.wait()
    until(lambda: not any(map(lives, everyone)))
    assert not running(marker)
    assert caller.stdout.read() == ""


def test_a_borrower_starts_no_server_of_its_own(tmp_path: Path, workspace: Workspace) -> None:
    body = """
    process.use_server(sys.argv[1])
    print(rollout(), len(psutil.Process().children()))
    """
    borrower = _script(tmp_path, body, process.server_address())
    assert borrower.communicate(timeout=600)[0].split() == ["submitted", "0"]
    assert _run(saying(SUBMIT), workspace).ended == "submitted"
    own = [p for p in psutil.Process().children() if lives(p) and "agents.process" in " ".join(p.cmdline())]
    assert len(own) == 1, "used by another process and here, it is the same one"


@pytest.mark.heavy
def test_a_server_that_died_is_replaced_also_a_borrowed_one(tmp_path: Path) -> None:
    need("bwrap")
    body = """
    rollout()
    (first,) = servers()
    first.kill()
    first.wait()
    process.use_server(sys.argv[1])
    print(rollout(), flush=True)
    (second,) = [p for p in servers() if p != first]
    print(second.pid, process.server_address(), flush=True)
    sys.stdin.read()
    """
    owner = _script(tmp_path, body, str(tmp_path / "nobody listens"))
    assert owner.stdout is not None
    assert owner.stdout.readline() == "submitted\n"
    pid, address = owner.stdout.readline().split()
    assert Path(address).is_socket()
    owner.kill()
    owner.communicate()
    until(lambda: not psutil.pid_exists(int(pid)))  # a server does not outlive its owner
    until(lambda: not Path(address).parent.exists())  # and leaves nothing


def test_the_working_directory_is_not_on_the_import_path(tmp_path: Path) -> None:
    """It may be the repository of an installed package, and what is installed must win."""
    (tmp_path / "pygments.py").write_text("raise SystemExit('the repository of the agent was imported')")
    command = python_command("import pygments, sys, json; print(json.dumps(sys.argv[1:]))", "a", "b c")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["a", "b c"]


@pytest.mark.heavy
def test_the_rehearsal_imports_what_a_first_call_would_and_leaves_no_thread() -> None:
    code = """
    import sys, threading
    from valve_plugin.agents import process
    before = {"httpcore", "litellm.llms.openai.openai"} <= set(sys.modules)
    process.warm_up()
    print(before, {"httpcore", "litellm.llms.openai.openai"} <= set(sys.modules), threading.active_count())
    """
    done = subprocess.run(python_command(textwrap.dedent("\n" + code)), capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "1"]


def test_importing_it_is_cheap() -> None:
    heavy = "('litellm', 'minisweagent', 'numpy', 'tenacity')"
    modules = "valve_plugin.agents.process, valve_plugin.agents.mini"
    code = f"import sys, {modules}; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
