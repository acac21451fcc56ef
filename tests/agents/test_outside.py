"""Real Claude Code, real Codex and other commands as agents: in the sandbox, with their model calls by the gateway."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests import calc
from tests.agents.clients import FIX, KEY, MODELS, ScriptedProvider, program, scripted_provider
from tests.agents.support import shop
from tests.tools import need, some
from valve_plugin.agents.adapter import run_version
from valve_plugin.config import Settings
from valve_plugin.errors import ConfigError
from valve_plugin.extract.digest import steps
from valve_plugin.records import Attempt, Context, Task
from valve_plugin.rollouts.attempt import attempt, read_trajectory, rollout_key, solver_of
from valve_plugin.sandbox.workspace import HOME
from valve_plugin.tasks.repository import PreparedRepository, prepare
from valve_plugin.tasks.task_set import TaskSet

NOTES = Context(text="--- skill: totals ---\nRead cart.py {{ 1/0 }} first.\n", items=(("skill", "totals"),))
SEARCH = """python - <<'EOF' > found.txt
import os, socket, stat
key = %r + %r
for top, folders, files in os.walk("/"):
    folders[:] = [f for f in folders if f not in ("usr", "sys", "dev", "lib", "bin", "node_modules")]
    for path in (os.path.join(top, name) for name in files):
        try:
            small = stat.S_ISREG(os.stat(path).st_mode) and os.path.getsize(path) < 5_000_000
            if small and (not path.startswith("/proc/") or path.endswith(("environ", "cmdline"))):
                if key.encode() in open(path, "rb").read():
                    print("KEY in", path)
        except OSError:
            pass
print("KEY in environ" if key in str(os.environ) else "looked")
try:
    socket.create_connection(("127.0.0.1", %d), 2)
    print("NETWORK")
except OSError:
    print("no network")
EOF"""
ALL = ["claude", "codex", "command"]
AGENTS = pytest.mark.parametrize("agent", ALL)
EACH = pytest.mark.parametrize("agent", some(ALL, "command"))


@pytest.fixture(scope="module")
def taskset(tmp_path_factory: pytest.TempPathFactory) -> TaskSet:
    need("bwrap")
    return shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedProvider]:
    with scripted_provider(FIX) as model:
        for name, value in model.environment().items():
            monkeypatch.setenv(name, value)
        yield model


def settings_of(agent: str, tmp_path: Path, **more: Any) -> Settings:
    return Settings(agent=program(agent, tmp_path), model=MODELS[agent], model_tries=2, model_pause=0.0, **more)


def _solve(settings: Settings, taskset: TaskSet, context: Context = NOTES) -> Attempt:
    return attempt(settings, taskset.tasks[0], context, 0, "panel")


@EACH
def test_a_right_edit_resolves_and_a_wrong_one_does_not(
    taskset: TaskSet, provider: ScriptedProvider, tmp_path: Path, agent: str
) -> None:
    settings = settings_of(agent, tmp_path)
    right = _solve(settings, taskset)
    assert (right.outcome, right.reason, right.exit_status) == ("resolved", "", "Submitted")
    assert right.patch.count("diff --git") == 1
    assert "shop/cart.py" in right.patch
    assert right.steps == 2
    assert 0 < right.cost_usd < 0.01
    sent = provider.texts()
    assert {r["request"]["model"] for r in provider.requests} == {MODELS[agent].partition("/")[2]}
    assert "web_search" not in sent
    assert "Totals are wrong, report number 1." in sent
    assert (json.dumps(NOTES.text.strip())[1:-1] in sent) == (agent != "command")
    (step, *_) = steps(read_trajectory(right))
    assert FIX in "".join((*step.commands, *step.outputs))

    provider.commands = ("echo '# nothing' >> shop/cart.py",)
    wrong = _solve(settings, taskset, Context(text=""))
    assert wrong.outcome == "unresolved"
    assert "Read cart.py" not in json.dumps(provider.requests[-1])


@EACH
def test_a_provider_that_fails_is_no_failure_of_the_agent(
    taskset: TaskSet, provider: ScriptedProvider, tmp_path: Path, agent: str
) -> None:
    settings = settings_of(agent, tmp_path)
    provider.status, provider.error = 503, "overloaded"
    made = _solve(settings, taskset)
    assert (made.outcome, made.fault, made.steps) == ("errored", "server", 0)
    assert "overloaded" in made.reason
    assert len(provider.requests) >= settings.model_tries
    provider.status, provider.error = 401, "invalid api key"
    made = _solve(settings, taskset)
    assert (made.outcome, made.fault) == ("errored", "key")
    assert KEY not in made.reason


@EACH
def test_a_rollout_ends_at_its_budget(taskset: TaskSet, provider: ScriptedProvider, tmp_path: Path, agent: str) -> None:
    provider.commands = ("echo x >> notes.txt",) * 9
    made = _solve(settings_of(agent, tmp_path, step_limit=2), taskset)
    assert (made.outcome, made.exit_status, made.steps) == ("unresolved", "LimitsExceeded", 2)
    made = _solve(settings_of(agent, tmp_path, cost_limit=1e-9), taskset)
    assert (made.outcome, made.exit_status, made.steps) == ("unresolved", "LimitsExceeded", 1)
    assert steps(read_trajectory(made))


@EACH
def test_the_sandbox_has_no_key_and_no_network(
    taskset: TaskSet, provider: ScriptedProvider, tmp_path: Path, agent: str
) -> None:
    look = SEARCH % (KEY[:10], KEY[10:], provider.port)
    provider.commands = (look,)
    made = _solve(settings_of(agent, tmp_path), taskset)
    assert [line[1:] for line in made.patch.splitlines() if line.startswith("+") and "++" not in line] == [
        "looked",
        "no network",
    ]
    assert KEY not in read_trajectory(made).decode()
    if agent == "command":  # the search finds what is there
        assert f"+KEY in {HOME}/" in _solve(settings_of(agent, tmp_path), taskset, Context(text=KEY)).patch


@pytest.mark.heavy
@AGENTS
def test_it_works_alike_in_a_container(
    image: str, calc_task: tuple[PreparedRepository, Task], provider: ScriptedProvider, tmp_path: Path, agent: str
) -> None:
    _, task = calc.with_image(calc_task)
    prepare(calc_task[0].repository)  # since it was, tests may have prepared others of its name
    provider.commands = ("sed -i '/x > high/{n;s/low/high/}' calc/ops.py", "env > env.txt; ls /sys/class/net > net.txt")
    made = attempt(settings_of(agent, tmp_path, sandbox="podman"), task, NOTES, 0, "panel")
    assert (made.outcome, made.steps) == ("resolved", 3), made.reason
    assert "+lo\n" in made.patch
    assert "+eth0" not in made.patch
    assert "GATEWAY_KEY=the-gateway-has-the-key" in made.patch or "ANTHROPIC_API_KEY=the-gateway" in made.patch
    assert KEY not in made.patch


@pytest.mark.heavy
def test_answers_that_break_off_are_asked_for_again(
    taskset: TaskSet, provider: ScriptedProvider, tmp_path: Path
) -> None:
    settings = settings_of("claude", tmp_path)
    provider.broken = 1
    assert _solve(settings, taskset).outcome == "resolved"
    provider.broken = 1000
    made = _solve(settings, taskset)
    assert (made.outcome, made.fault) == ("errored", "server")


ODD_CALLS = """python3 - <<'END'
import os, socket, time, urllib.error, urllib.parse, urllib.request
at = urllib.parse.urlparse(os.environ["OPENAI_BASE_URL"])
body = b'{"model": "x", "input": [], "messages": []}'
for wire in ["responses", "messages", "messages/count_tokens"] * 3:
    try:
        urllib.request.urlopen(os.environ["OPENAI_BASE_URL"] + "/" + wire, body)
    except urllib.error.HTTPError as e:
        print(wire, e.code)
head = b"POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body)
for _ in range(6):
    with socket.create_connection((at.hostname, at.port)) as asking:
        asking.sendall(head + body)
    time.sleep(0.2)
END"""


@pytest.mark.parametrize("status", [404, 415, 503])
def test_a_command_that_asks_the_provider_cannot_make_it_fail(
    taskset: TaskSet, provider: ScriptedProvider, tmp_path: Path, status: int
) -> None:
    provider.unknown, provider.unknown_status = ("responses", "messages", "count_tokens"), status
    provider.commands = (ODD_CALLS, FIX)
    made = _solve(settings_of("command", tmp_path), taskset)
    assert (made.outcome, made.fault) == ("resolved", "")
    asked = sum(r["path"].endswith("/chat/completions") for r in provider.requests)
    assert made.steps == asked > 3  # what nobody waits for is counted too


def test_an_agent_that_takes_too_long_fails(taskset: TaskSet, provider: ScriptedProvider) -> None:
    settings = Settings(agent="sleep 1000; : {task}", model=MODELS["command"], agent_hours=1 / 3600)
    made = _solve(settings, taskset)
    assert (made.outcome, made.exit_status, made.reason) == (
        "unresolved",
        "TimeExceeded",
        "the agent ran longer than 1 s",
    )


def test_another_agent_is_another_solver_and_a_patch_of_it_is_not(
    taskset: TaskSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mini = Settings(model="openai/gpt-5")
    other = replace(mini, agent=f"{program('command', tmp_path)} --fast")
    assert solver_of(mini) != solver_of(other)
    task = taskset.tasks[0]
    assert rollout_key(mini, task, NOTES, 0) != rollout_key(other, task, NOTES, 0)
    found = []
    for version in ("0.171.0", "0.171.1", "0.172.0"):
        folder = tmp_path / version
        folder.mkdir()
        (folder / "codex").write_text(f"#!/bin/sh\necho codex-cli {version}\n")
        (folder / "codex").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
        found.append(solver_of(replace(mini, agent="codex")))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("agent", ["claud", "python {tsk}", "fix {notes}", "fix '{task}", "no-such-program-1 {task}"])
def test_what_is_no_agent_is_refused(taskset: TaskSet, agent: str) -> None:
    from valve_plugin.agents.process import require_agent

    with pytest.raises(ConfigError, match="agent"):
        require_agent(Settings(agent=agent))


def test_the_version_of_an_agent_that_updated_itself_is_asked_again(tmp_path: Path) -> None:
    def install(version: str) -> None:
        new = tmp_path / "new"
        new.write_text(f"#!/bin/sh\necho {version}\necho >> {tmp_path}/asked\n")
        new.chmod(0o755)
        new.rename(tmp_path / "agent")

    for version in ("1.0", "1.1"):
        install(version)
        assert [run_version(tmp_path / "agent") for _ in range(2)] == [version] * 2
    assert (tmp_path / "asked").read_text() == "\n\n", "once for each"
    with pytest.raises(ConfigError):
        run_version(tmp_path / "none")
