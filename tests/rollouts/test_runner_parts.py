"""The parts of a rollout that need no process: how runs end, the slot, clipping, kept trajectories, executors."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from minisweagent.exceptions import Submitted

from valve_plugin.config import Settings
from valve_plugin.errors import BankError, BankNotFoundError, SandboxError
from valve_plugin.records import Attempt
from valve_plugin.rollouts import trajectories
from valve_plugin.rollouts.environment import FINISHED, KEPT_BYTES, SandboxEnvironment, clipped
from valve_plugin.rollouts.executors import LocalExecutor, stopping
from valve_plugin.rollouts.exits import classify
from valve_plugin.rollouts.limits import Limits
from valve_plugin.rollouts.supervise import Completed, Limit
from valve_plugin.rollouts.system_slot import filled, with_slot
from valve_plugin.rollouts.worker import mini_config


@given(st.text(max_size=20), st.lists(st.text(max_size=20), max_size=3), st.text())
def test_every_end_has_a_class_and_a_reason_of_one_line(status: str, error: list[str], message: str) -> None:
    ended, reason = classify(status, error, message)
    assert (ended == "submitted") == (status == "Submitted" and not error)
    assert bool(reason) == (ended != "submitted")
    assert len(reason) <= 300
    assert reason.splitlines() in ([], [reason])


def test_an_effort_asked_for_is_insisted_on_where_litellm_is_the_client() -> None:
    given = {"reasoning_effort": "high"}
    for settings, insists in (
        (Settings(model="openai/gpt-4o", model_kwargs=given), True),
        (Settings(model="openai/gpt-4o"), False),
        (Settings(model="m", model_class="portkey", model_kwargs=given), False),
    ):
        spec: Any = SimpleNamespace(settings=settings, task_id="t", ordinal=0)
        sent = mini_config(spec)["model"]["model_kwargs"]
        assert sent["drop_params"] is True
        assert (sent.get("allowed_openai_params") == ["reasoning_effort"]) == insists


@pytest.mark.parametrize("status", ["LimitsExceeded", "TimeExceeded", "RepeatedFormatError"])
def test_used_up_budgets_and_missing_commands_are_the_agents_doing(status: str) -> None:
    assert classify(status)[0] == "unresolved"


@pytest.mark.parametrize(
    ("name", "ended"),
    [
        ("ContextWindowExceededError", "unresolved"),
        ("ContentPolicyViolationError", "unresolved"),
        ("RateLimitError", "errored"),
        ("Timeout", "errored"),
        ("APIConnectionError", "errored"),
        ("ServiceUnavailableError", "errored"),
        ("PermissionDeniedError", "errored"),
        ("BadRequestError", "errored"),
    ],
)
def test_litellms_errors_are_classified_by_name_and_bases(
    name: str, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else its import waits for a download
    import litellm

    kind = getattr(litellm.exceptions, name)  # a renamed class would be errored without this
    assert classify("x", [c.__name__ for c in kind.__mro__], "said so")[0] == ended


@given(st.text(), st.text())
def test_the_slot_leaves_the_template_alone_and_adds_the_block_verbatim(body: str, block: str) -> None:
    escaped = "{{ body }}" + body.replace("{", "").replace("}", "").replace("#", "").replace("%", "")
    plain = jinja2.Template(escaped).render(body="{{x}}")
    slotted = jinja2.Template(with_slot(escaped), undefined=jinja2.StrictUndefined)
    assert slotted.render(body="{{x}}") == plain
    assert slotted.render(body="{{x}}", **filled([block])) == (f"{plain}\n\n{block}" if block else plain)
    assert with_slot(with_slot(escaped)) == with_slot(escaped)


@given(st.binary(max_size=100), st.integers(0, 3 * KEPT_BYTES))
def test_long_outputs_keep_their_beginning_and_end(part: bytes, fill: int) -> None:
    output = part + b"x" * fill + part[::-1]
    short = clipped(output)
    if len(output) <= 2 * KEPT_BYTES:
        assert short == output
    else:
        assert len(short) <= 2 * KEPT_BYTES + 40
        assert short.startswith(output[:KEPT_BYTES])
        assert short.endswith(output[-KEPT_BYTES:])
        assert b"bytes left out" in short


class _Replies:
    """A sandbox that answers one thing, and notes what it was asked."""

    name, root = "replies", "/testbed"

    def __init__(self, output: bytes = b"", returncode: int = 0, limit: Limit = "") -> None:
        self.done = Completed(returncode=returncode, output=output, truncated=False, limit=limit)
        self.asked: dict[str, Any] = {}

    def run(self, command: str | Sequence[str], workspace: Any, **options: Any) -> Completed:
        self.asked = {"command": command, **options}
        return self.done


def _environment(sandbox: Any, **config: Any) -> SandboxEnvironment:
    return SandboxEnvironment(sandbox, None, **config)  # type: ignore[arg-type]


def test_limits_and_variables_reach_the_sandbox() -> None:
    sandbox = _Replies(b"\xff ok")
    done = _environment(sandbox, env={"A": "b"}, timeout=7, unknown="ignored, as by mini").execute({"command": "ls"})
    assert done == {"output": "\ufffd ok", "returncode": 0, "exception_info": ""}
    assert sandbox.asked["command"] == "ls"
    assert sandbox.asked["env"] == {"A": "b"}
    assert sandbox.asked["limits"] == Limits(cpu_seconds=7)
    _environment(sandbox).execute({"command": "ls"}, "sub", timeout=3)
    assert (sandbox.asked["limits"].cpu_seconds, sandbox.asked["cwd"]) == (3, "sub")


@pytest.mark.parametrize("limit", ["cpu", "wall", "memory", "disk"])
def test_a_limit_is_told_to_the_agent(limit: Limit) -> None:
    done = _environment(_Replies(b"part", -9, limit)).execute({"command": "x"})
    assert done["output"] == "part"
    assert "stopped" in done["exception_info"]


@pytest.mark.parametrize(
    ("output", "returncode", "submits"),
    [
        (FINISHED, 0, True),
        (f"\n  {FINISHED}  \nrest\n", 0, True),
        (FINISHED, 1, False),
        (f"first\n{FINISHED}", 0, False),
        (f"{FINISHED} and more", 0, False),
        ("", 0, False),
    ],
)
def test_submissions_are_recognised_as_mini_does(output: str, returncode: int, submits: bool) -> None:
    from minisweagent.environments.local import LocalEnvironment

    def submitted(check: Any) -> Mapping[str, Any] | None:
        try:
            check()
        except Submitted as e:
            return e.messages[0]
        return None

    ours = submitted(lambda: _environment(_Replies(output.encode(), returncode)).execute({"command": "x"}))
    minis = submitted(lambda: LocalEnvironment()._check_finished({"output": output, "returncode": returncode}))
    assert ours == minis
    assert (ours is not None) == submits


def test_prompts_cannot_read_this_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "planted")
    environment = _environment(_Replies())
    assert "planted" not in str(environment.get_template_vars()) + str(environment.serialize())
    assert environment.get_template_vars(a=1)["a"] == 1
    assert environment.get_template_vars()["system"]


def _attempt(name: str) -> Attempt:
    return Attempt(id="a", task_id="t", ordinal=0, source="panel", outcome="resolved", trajectory=name)


def test_trajectories_are_kept_by_content(data_dir: Path) -> None:
    name = trajectories.keep("abc", b"{}")
    assert trajectories.keep("abc", b"{}") == name
    assert trajectories.keep("abc", b'{"x":1}') != name
    assert trajectories.read(_attempt(name)) == b"{}"
    assert gzip.decompress((data_dir / "rollouts" / name).read_bytes()) == b"{}"
    assert trajectories.keep("abc", b"") == ""
    assert not list(data_dir.rglob("*.tmp"))


@pytest.mark.parametrize("name", ["", "../x", "gone.json.gz", "/etc/passwd"])
def test_absent_and_foreign_names_are_refused(data_dir: Path, name: str) -> None:
    with pytest.raises(BankNotFoundError):
        trajectories.read(_attempt(name))


def test_damaged_trajectories_are_refused(data_dir: Path) -> None:
    name = trajectories.keep("abc", b"{}" * 1000)
    path = data_dir / "rollouts" / name
    whole = path.read_bytes()
    for spoiled in (b"nothing", whole[:-9]):
        path.write_bytes(spoiled)
        with pytest.raises(BankError, match="delete it"):
            trajectories.read(_attempt(name))


def test_the_oldest_trajectories_go(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trajectories, "_MOST", 6)
    names = [trajectories.keep(f"r{n}", b"{}") for n in range(10)]
    left = {path.name for path in (data_dir / "rollouts").iterdir()}
    assert names[-1] in left
    assert len(left) <= 6


def test_jobs_know_whether_they_are_to_stop() -> None:
    assert stopping() is None
    started = threading.Event()

    def wait() -> bool:
        started.set()
        stop = stopping()
        assert stop is not None
        return stop.wait(20)

    executor = LocalExecutor(1)
    future = executor.submit(wait)
    assert started.wait(20)
    executor.kill()
    executor.kill()
    assert future.result(timeout=20) is True
    assert stopping() is None


def test_an_error_in_the_block_kills_what_runs() -> None:
    seen: list[bool] = []

    def job() -> None:
        stop = stopping()
        assert stop is not None
        seen.append(stop.wait(20))

    def fail() -> None:
        with LocalExecutor(1) as executor:
            executor.submit(job)
            raise SandboxError("gone")

    with pytest.raises(SandboxError):
        fail()
    assert seen in ([], [True])  # cancelled before it began, or told to stop
