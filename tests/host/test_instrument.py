"""`instrument`: what an agent object does with plugins attached, and which agents are refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from minisweagent.agents.default import AgentConfig, DefaultAgent
from minisweagent.agents.interactive import InteractiveAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.exceptions import Submitted
from minisweagent.models.test_models import DeterministicModel, make_output
from pluggy import PluginManager

import valve_plugin
from tests.host.harness import SUBMIT
from valve_plugin.agents.mini import SLOT_VARIABLE, with_slot
from valve_plugin.bank.store import BankStore
from valve_plugin.config import Settings
from valve_plugin.errors import AgentError, ConfigError, PluginError
from valve_plugin.hookspecs import HostEvents, StepHooks, hookimpl
from valve_plugin.host.instrument import Host, attach, instrument


class Recorder:
    """A plugin that injects a block made from the task, and keeps what it is told."""

    def __init__(self, block: str = "<{task}>") -> None:
        self.block = block
        self.tasks: list[str] = []
        self.ends: list[tuple[str, dict[str, Any], BaseException | None]] = []
        self.fails: dict[str, BaseException] = {}

    @hookimpl
    def minisweagent_pre_run(self, agent: Any, task: str) -> str:
        self.tasks.append(task)
        if "pre_run" in self.fails:
            raise self.fails["pre_run"]
        return self.block.replace("{task}", task)

    @hookimpl
    def minisweagent_post_run(self, agent: Any, task: str, result: Any, error: BaseException | None) -> None:
        self.ends.append((task, dict(result), error))
        if "post_run" in self.fails:
            raise self.fails["post_run"]


def host(*plugins: Any) -> Host:
    manager = PluginManager("minisweagent")
    manager.add_hookspecs(HostEvents)
    manager.add_hookspecs(StepHooks)
    for number, plugin in enumerate(plugins):
        manager.register(plugin, name=f"plugin{number}")
    return Host(manager)


def agent(*commands: str, runs: int = 1, kind: type[DefaultAgent] = DefaultAgent, **config: Any) -> DefaultAgent:
    outputs = [make_output("do it", [{"command": c}], cost=0.25) for c in (*commands, SUBMIT)]
    settings = {"system_template": "You help.", "instance_template": "Solve {{ task }}.", "cost_limit": 0.0} | config
    return kind(DeterministicModel(outputs=outputs * runs), LocalEnvironment(), **settings)


# -- the slot --


@given(
    template=st.text(st.sampled_from(" \n\r{}%#-+ab'|"), max_size=12),
    block=st.text() | st.sampled_from(["{{ x }}", "{% raw %}", "#}", "\\", "  \n\n"]),
)
@example(template="ends in {", block="{{ x }}")
@example(template="ends in {#", block="#}")
@example(template="ends in {#-\n", block="-#}")
@example(template="two newlines\n\n", block="")
@example(template="{% if a %}x{% endif -%}  \n", block=" y")
@example(template="windows\r\n", block="z")
def test_slot_adds_the_block_verbatim_and_changes_nothing_else(template: str, block: str) -> None:
    def render(text: str, **variables: str) -> str:
        return jinja2.Template(text, undefined=jinja2.StrictUndefined).render(a="A", b="B", **variables)

    try:
        stock = render(template)
    except jinja2.TemplateError:
        return
    opened = with_slot(template)
    assert render(opened) == stock
    assert render(opened, **{SLOT_VARIABLE: block}) == stock + block
    assert with_slot(opened) == opened


# -- runs --


def test_every_run_gets_its_own_block_and_record() -> None:
    recorder = Recorder()
    tested = attach(agent("true", runs=2), host(recorder))
    for task in ("first", "second"):
        assert tested.run(task)["submission"] == "the-submission\n"
        assert tested.messages[0]["content"] == f"You help.\n\n<{task}>"
        assert tested.messages[1]["content"] == f"Solve {task}."
    expected = {"exit_status": "Submitted", "submission": "the-submission\n", "cost": 0.5, "api_calls": 2}
    assert recorder.ends == [("first", expected, None), ("second", expected, None)]


def test_blocks_come_in_the_order_of_the_plugins_and_none_means_none() -> None:
    tested = attach(agent(), host(Recorder("one"), Recorder(""), Recorder("two\n ")))
    tested.run("t")
    assert tested.messages[0]["content"] == "You help.\n\none\n\ntwo\n "
    stock = agent(system_template="You help.\n\n")
    silent = attach(agent(system_template="You help.\n\n"), host(Recorder("")))
    assert stock.run("t") == silent.run("t")
    assert silent.messages[0] == stock.messages[0]


def test_attaching_twice_gives_one_block_and_one_record() -> None:
    first, second = Recorder("first"), Recorder("second")
    tested = attach(attach(agent(runs=2), host(first)), host(second))
    tested.run("t")
    assert tested.messages[0]["content"] == "You help.\n\nsecond"
    assert (len(first.ends), len(second.ends)) == (0, 1)
    assert tested.serialize()["info"]["plugins"] == ["plugin0"]


# -- endings --


class Exploding(LocalEnvironment):
    """An environment whose command raises what it is told to."""

    error: BaseException = RuntimeError("boom")

    def execute(self, action: Any, *args: Any, **kwargs: Any) -> Any:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt(), SystemExit(3)])
def test_post_run_is_told_about_errors_and_they_pass(error: BaseException) -> None:
    recorder = Recorder()
    tested = attach(agent(runs=2), host(recorder))
    tested.run("fine")
    tested.env = Exploding()
    tested.env.error = error
    with pytest.raises(type(error)) as caught:
        tested.run("fails")
    assert caught.value is error
    task, result, seen = recorder.ends[-1]
    assert (task, seen) == ("fails", error)
    assert result == {"exit_status": type(error).__name__, "submission": "", "cost": 0.25, "api_calls": 1}


@pytest.mark.parametrize("error", [RuntimeError("two\nlines"), KeyboardInterrupt(), SystemExit(1)])
def test_a_failing_post_run_keeps_the_result(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    failing, other = Recorder(), Recorder()
    failing.fails["post_run"] = error
    tested = attach(agent(), host(failing, other))
    assert tested.run("t")["submission"] == "the-submission\n"
    assert len(other.ends) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"valve: plugin 'plugin0' failed in post_run: {type(error).__name__}")


class Taking(Recorder):
    """A plugin that runs the task itself."""

    answer: Any = None

    @hookimpl
    def minisweagent_run(self, agent: Any, task: str) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def test_a_plugin_may_take_the_run() -> None:
    first, second = Taking(), Taking()
    second.answer = {"exit_status": "Best", "submission": "a patch"}
    tested = attach(agent(), host(first, second))
    assert tested.run("t") is second.answer
    assert tested.messages == []
    expected = {"exit_status": "Best", "submission": "a patch", "cost": 0.0, "api_calls": 0}
    assert first.ends == second.ends == [("t", expected, None)]


def test_a_plugin_that_fails_in_the_run_it_took_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    taking = Taking()
    taking.answer = RuntimeError("no sandbox")
    tested = attach(agent(), host(taking))
    assert tested.run("t") == {"exit_status": "RuntimeError", "submission": ""}
    assert tested.messages == []
    assert "plugin 'plugin0' failed in run: RuntimeError: no sandbox" in capsys.readouterr().err


def test_a_follow_up_task_is_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["now add a test", ""])
    monkeypatch.setattr("minisweagent.agents.interactive.prompt_session.prompt", lambda *_, **__: next(answers))
    recorder = Recorder()
    tested = attach(agent(SUBMIT, "true", kind=InteractiveAgent, mode="yolo"), host(recorder))
    tested.run("first task")
    assert any("now add a test" in str(m["content"]) for m in tested.messages)
    assert recorder.tasks == ["first task"]
    (ending,) = recorder.ends
    assert ending[1] == {"exit_status": "Submitted", "submission": "the-submission\n", "cost": 0.75, "api_calls": 3}


# -- refusals --


class Slotted:
    __slots__ = ("config", "messages")

    def __init__(self) -> None:
        self.config = AgentConfig(system_template="s", instance_template="i")

    def run(self, task: str, **_: Any) -> dict[str, Any]:
        raise Submitted


class Frozen(AgentConfig, frozen=True):
    """A config that cannot be changed."""


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (Slotted(), "Slotted does not let attributes be set"),
        (SimpleNamespace(config={"system_template": "s"}), "has a dict as its config; expected an object"),
        (SimpleNamespace(config=Frozen(system_template="s", instance_template="i")), "system_template cannot be set"),
        (SimpleNamespace(config=AgentConfig(system_template="s", instance_template="i")), "has no method 'run'"),
    ],
)
def test_refused_agents_are_told_why_and_left_alone(refused: Any, reason: str) -> None:
    before = dict(getattr(refused, "__dict__", {}))
    with pytest.raises(AgentError, match=reason) as caught:
        attach(refused, host(Recorder()))
    assert isinstance(caught.value, TypeError)
    assert getattr(refused, "__dict__", {}) == before


# -- the public function --


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the installed plugin `valve` is configured with."""
    calls: list[dict[str, Any]] = []
    original = Host.configure

    def configure(self: Host, config: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        calls.append(json.loads(json.dumps(config)))
        original(self, config, *args, **kwargs)

    monkeypatch.setattr(Host, "configure", configure)
    return calls


def test_settings_reach_the_plugins(seen: list[dict[str, Any]], tmp_path: Path, data_dir: Path) -> None:
    bank = tmp_path / "bank"
    BankStore.create(bank, "me/it", {})
    tested = valve_plugin.instrument(agent(), bank=bank, settings={"learn": "off", "bank": "ignored"})
    assert seen == [{"valve": {"learn": "off", "bank": str(bank)}}]
    assert tested.serialize()["info"]["plugins"] == ["valve"]
    instrument(agent(), settings=Settings(learn="off"))
    assert seen[1:] == [{"valve": {"learn": "off"}}]


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'lern'; did you mean 'learn'"):
        instrument(agent(), settings={"lern": "off"})
    with pytest.raises(PluginError, match=r"no plugin named 'nope'; installed: .*valve"):
        instrument(agent(), plugins=["nope"])
