"""The stock `mini` script with --plugin valve, as a person starts it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.agents.support import commanding
from tests.host.harness import deterministic
from tests.live.conftest import CHECK, FINISH, FIX, QUICK, Project
from tests.tools import TEST_ALL, need

MINI = str(Path(sys.executable).with_name("mini"))
TASK = ("-t", "add gives wrong sums")
HTTP = {
    "OPENAI_API_KEY": "sk-" + "0planted" * 4,
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


def start(project: Project, *args: str, yolo: bool = True, **env: str) -> subprocess.Popen[str]:
    command = [MINI, "--plugin", "valve", "--exit-immediately", *(["-y"] if yolo else []), *args]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=project.root, env={**os.environ, **env}, text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def mini(project: Project, *args: str, yolo: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
    process = start(project, *args, yolo=yolo, **env)
    out, err = process.communicate(timeout=180)
    return subprocess.CompletedProcess(args, process.returncode, out, err)


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("valve:")]


@pytest.fixture
def scripted(tmp_path: Path) -> tuple[str, ...]:
    """Arguments for mini's own scripted model, which needs no litellm."""
    return ("-c", "mini.yaml", "-c", str(deterministic(tmp_path / "model.yaml", FIX)))


def test_against_a_server_with_a_check(project: Project, data_dir: Path, tmp_path: Path) -> None:
    need("bwrap")
    (project.root / ".env").write_text("DATABASE=planted-in-dotenv\n")
    output = tmp_path / "t.json"
    with commanding(["cat .env; env", FIX, FINISH]) as server:
        check = ("-c", f"valve.check={CHECK}")
        done = mini(project, *TASK, "-m", "openai/x", "-o", str(output), *check, OPENAI_API_BASE=server.url, **HTTP)
    assert done.returncode == 0, done.stderr
    system = server.requests[0]["messages"][0]["content"]
    assert "Check {{ the }} {% operator %} {# first #} \\n" in system
    attempt = project.attempt()
    assert said(done) == [
        "valve: trying the check on the starting tree",
        "valve: resolved: the check failed before the attempt and passes after it",
        f"valve: recorded as a resolved attempt: `valve attempts show {attempt.id}` shows it and the check's last "
        "lines",
    ]
    assert (attempt.outcome, attempt.steps, attempt.model) == ("resolved", 3, "openai/x")
    kept = project.local.trajectory(attempt)
    assert len(json.loads(kept)["messages"]) == len(json.loads(output.read_text())["messages"])
    for secret in (HTTP["OPENAI_API_KEY"], "planted-in-dotenv"):
        assert secret in output.read_text(), "mini's own file is mini's"
        assert secret.encode() not in kept
        assert not [
            p
            for d in (data_dir, project.bank)
            for p in d.rglob("*")
            if p.is_file() and secret.encode() in p.read_bytes()
        ]


def test_what_was_asked_for_wrongly_is_refused_in_one_line(project: Project, scripted: tuple[str, ...]) -> None:
    for arguments, expected in (
        (["-c", "valve.attempts=3"], "valve: valve.attempts runs unattended, but mini is in mode 'confirm'; add -y"),
        (["-c", "valve.bank=nowhere"], "nowhere: there is no bank here; make one with `valve init --bank nowhere`"),
    ):
        done = mini(project, *TASK, *scripted, *arguments, yolo=False)
        assert done.returncode == 2
        assert len(said(done)) == 1
        assert expected in said(done)[0]
    assert project.attempts() == []


def test_several_at_once_are_as_many_attempts(project: Project, scripted: tuple[str, ...], tmp_path: Path) -> None:
    count = 8 if TEST_ALL else 3
    running = [start(project, *TASK, *scripted, "-o", str(tmp_path / f"{n}.json")) for n in range(count)]
    for process in running:
        _, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
        (line,) = [line for line in err.splitlines() if line.startswith("valve:")]
        assert "recorded as an ungraded attempt: `valve attempts show " in line
    attempts = project.attempts()
    assert len({a.id for a in attempts}) == count
    assert len({a.context_hash for a in attempts}) == 1
    assert project.local.usage() == {("skill", "use-plus"): count}
    assert all(json.loads(project.local.trajectory(a))["messages"] for a in attempts)


@pytest.mark.heavy
def test_attempts_interrupted_before_the_first_answer_are_recorded(project: Project) -> None:
    """Ctrl-C as a terminal sends it, to the whole group; nobody answers where the provider should be."""
    need("bwrap")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        several = ("-c", "valve.attempts=3", "-c", f"valve.check={QUICK}")
        process = subprocess.Popen(
            [MINI, "--plugin", "valve", "--exit-immediately", "-y", *TASK, "-m", "openai/x", *several],
            cwd=project.root,
            env={**os.environ, **HTTP, "OPENAI_API_BASE": address},
            text=True,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        begun = next(line for line in process.stderr if line == "valve: attempt 1 of 3 starts\n")
        time.sleep(2)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=120)
    attempt = project.attempt()
    assert begun
    assert (attempt.outcome, attempt.exit_status) == ("ungraded", "KeyboardInterrupt")
    lines = [line for line in err.splitlines() if line.startswith("valve:")]
    assert lines[-1] == "valve: stopped: nothing was applied; 1 attempt recorded; `valve attempts list` lists them"
