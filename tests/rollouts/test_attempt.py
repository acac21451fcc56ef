"""Attempts end to end: the simulated model over HTTP, real mini, real bubblewrap, real git, real pytest."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.support import SCRIPTED, SUBMIT, saying, shop
from tests.lab.simulation.rows import requests
from tests.tools import need
from valve_plugin.config import Settings
from valve_plugin.lab.simulation.server import start
from valve_plugin.paths import data_dir as bank_data_dir
from valve_plugin.records import Attempt, Context, Task
from valve_plugin.rollouts.attempt import attempt, read_trajectory, rollout_key
from valve_plugin.sandbox import workspace
from valve_plugin.tasks.task_set import TaskSet

NONE = Context(text="")


@pytest.fixture(scope="module")
def taskset(tmp_path_factory: pytest.TempPathFactory) -> TaskSet:
    need("bwrap")
    return shop(tmp_path_factory.mktemp("shop"))


@pytest.fixture
def simulated(taskset: TaskSet, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The simulated model as shipped."""
    with start(taskset, seed=5) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield


def _attempt(task: Task, ordinal: int = 0, context: Context = NONE) -> Attempt:
    return attempt(SCRIPTED, task, context, ordinal, "evolve")


def _commands(made: Attempt) -> list[str]:
    messages = json.loads(read_trajectory(made))["messages"]
    calls = [call for m in messages for call in m.get("tool_calls") or []]
    return [json.loads(call["function"]["arguments"])["command"] for call in calls]


@pytest.mark.parametrize("right", [True, False])
def test_the_grade_is_what_the_tests_say(taskset: TaskSet, monkeypatch: pytest.MonkeyPatch, right: bool) -> None:
    with start(taskset, seed=1, chance=float(right)) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        made = [_attempt(task) for task in taskset.tasks]
    assert [x.outcome for x in made] == ["resolved" if right else "unresolved"] * 2
    for x in made:
        assert x.exit_status == "Submitted"
        assert (x.reason == "") == right
        assert (x.steps, x.cost_usd, x.model) == (len(_commands(x)), 0.0, "openai/valve-scripted")
        assert x.patch == "" or x.patch.startswith("diff --git a/shop/cart.py")


@pytest.mark.parametrize("model_class", ["litellm", "litellm_textbased"])
def test_other_model_classes_work_and_send_the_effort_asked_for(
    taskset: TaskSet, monkeypatch: pytest.MonkeyPatch, model_class: str
) -> None:
    config = ("mini_textbased.yaml",) if "text" in model_class else ()
    settings = Settings(
        model="openai/valve-scripted", model_class=model_class, mini_config=config, step_limit=20,
        model_kwargs={"reasoning_effort": "high"},
    )  # fmt: skip
    asked = requests(monkeypatch)
    with start(taskset, seed=1, chance=1.0) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        made = attempt(settings, taskset.tasks[0], NONE, 0, "evolve")
    assert made.outcome == "resolved", made
    assert asked
    assert {request.get("reasoning_effort") for request in asked} == {"high"}


def test_the_agent_finds_no_history_no_hidden_test_and_no_other_attempt(taskset: TaskSet) -> None:
    places = f"/testbed /home /tmp {Path.cwd()} {bank_data_dir()}"
    find = f"find {places} -name 'tasks.jsonl' -o -name '*.json.gz' -o -name 'bank.json'"
    look = f"git log --all --format=%s; ls tests; {find}; cat tests/*"
    made = attempt(saying(look, SUBMIT), taskset.tasks[0], NONE, 0, "panel")
    messages = json.loads(read_trajectory(made))["messages"]
    (seen,) = [m["extra"]["raw_output"] for m in messages if m["role"] == "tool"]
    assert seen.splitlines()[0] == "Initial commit"
    assert "test_total" not in seen
    assert "tasks.jsonl" not in seen
    assert ".json" not in seen
    assert made.outcome == "unresolved"
    assert "empty" in made.reason


DIG = """python3 -c "import os; [(os.mkdir('{name}'), os.chdir('{name}')) for _ in range({depth})]" """


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (DIG.format(name="a" * 200, depth=40), "has more than 2,048 bytes"),
        ("for i in $(seq 30); do truncate -s 500M f$i; done", "the files have 15,728,640,"),
        ("mkfifo .gitignore shop/.gitignore; chmod 0 shop", "the patch is empty"),
    ],
)
def test_what_an_agent_does_to_its_tree_is_its_own_failure(taskset: TaskSet, harm: str, reason: str) -> None:
    made = attempt(saying(harm, SUBMIT), taskset.tasks[0], NONE, 0, "panel")
    assert made.outcome == "unresolved"
    assert reason in made.reason
    assert [p.name for p in (bank_data_dir() / "workspaces").iterdir() if p.is_dir()] == []


def test_a_defect_ends_one_attempt_and_can_be_found(taskset: TaskSet, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(_: object) -> str:
        raise MemoryError("planted-value-5566778899")

    monkeypatch.setenv("MY_SERVICE_TOKEN", "planted-value-5566778899")
    monkeypatch.setattr(workspace, "diff", out_of_memory)
    made = attempt(saying(SUBMIT), taskset.tasks[0], NONE, 0, "panel")
    assert made.outcome == "errored"
    assert made.reason.startswith("MemoryError: [redacted:MY_SERVICE_TOKEN] (a defect; its traceback is in defects.log")
    log = (bank_data_dir() / "defects.log").read_text()
    assert (bank_data_dir() / "defects.log").stat().st_mode & 0o077 == 0
    assert "in out_of_memory" in log
    assert "planted" not in log.replace('MemoryError("planted-value-5566778899")', "")


def test_secrets_are_not_kept(taskset: TaskSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SERVICE_TOKEN", "planted-value-5566778899")
    commands = ["echo planted-value-5566778899", """echo "token == 'k9Xv2mQ7tR4w'; token != '<end>'\"""", SUBMIT]
    made = attempt(saying(*commands), taskset.tasks[0], NONE, 0, "panel")
    kept = read_trajectory(made)
    assert b"planted-value" not in kept
    assert b"k9Xv2mQ7tR4w" not in kept
    assert b"[redacted:MY_SERVICE_TOKEN]" in kept
    assert len(json.loads(kept)["messages"]) == 2 + 2 * len(commands)  # however it was escaped, it stays JSON


def test_minis_own_default_model_and_keys_are_used(
    taskset: TaskSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MSWEA_MODEL_NAME", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "x")  # so that what is loaded is taken away again afterwards
        monkeypatch.delenv(name)
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path))
    with start(taskset, seed=5) as server:
        (tmp_path / ".env").write_text("MSWEA_MODEL_NAME='openai/any'\nOPENAI_API_KEY='kept-by-mini-1234'\n")
        for name, value in server.environment().items():
            if name != "OPENAI_API_KEY":
                monkeypatch.setenv(name, value)
        unnamed = rollout_key(Settings(), taskset.tasks[0], NONE, 0)  # the same before and after anything ran
        made = attempt(Settings(step_limit=20, model_tries=1), taskset.tasks[0], NONE, 0, "evolve")
    assert (made.model, made.exit_status) == ("openai/any", "Submitted")
    assert unnamed == rollout_key(Settings(), taskset.tasks[0], NONE, 0)
    assert unnamed == rollout_key(Settings(model="openai/any"), taskset.tasks[0], NONE, 0)


def test_the_key_counts_what_determines_a_rollout(
    taskset: TaskSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import msgspec

    task, replace = taskset.tasks[0], msgspec.structs.replace
    extra = tmp_path / "extra.yaml"
    extra.write_text("agent: {}\n")
    with_file = replace(SCRIPTED, mini_config=(str(extra),))
    keys = [
        rollout_key(SCRIPTED, task, NONE, 0),
        rollout_key(SCRIPTED, task, NONE, 1),
        rollout_key(SCRIPTED, task, Context(text="x"), 0),
        rollout_key(SCRIPTED, replace(task, problem_statement="Another issue."), NONE, 0),
        rollout_key(replace(SCRIPTED, step_limit=21), task, NONE, 0),
        rollout_key(with_file, task, NONE, 0),
    ]
    extra.write_text("agent: {step_limit: 3}\n")
    keys.append(rollout_key(with_file, task, NONE, 0))
    assert len(set(keys)) == len(keys)
    assert rollout_key(replace(SCRIPTED, workers=9, rho="0.1"), task, NONE, 0) == keys[0]
