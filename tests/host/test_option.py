"""`--plugin` in use: what the plugins see, what mini sees, and how it fails."""

from __future__ import annotations

import json
from typing import Any

import minisweagent.run.mini as runner
import pytest
from hypothesis import given
from hypothesis import strategies as st
from minisweagent.config import get_config_from_spec
from minisweagent.run.benchmarks import swebench

from tests.host.harness import PROBE, Mini, add_distribution
from tests.tools import some
from valve_plugin.host.instrument import Host
from valve_plugin.host.option import Request, config_specs
from valve_plugin.plugins import load

CONFIG = ("-c", "mini.yaml", "-c", "model.yaml")
HOSTILE = "<b>{{ task }} {% raw %} {# c #} #} %} \\n \\\\ é 漢\n\tlast line, trailing  \n\n"


def ours(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("valve:")]


def test_a_run_with_a_plugin(mini: Mini) -> None:
    (mini.directory / "block").write_text(HOSTILE)
    done = mini.task(*CONFIG, "--plugin", "probe", env={"PROBE_BLOCK": "block"})
    assert done.returncode == 0, done.stderr
    assert [e["event"] for e in mini.events()] == ["add_options", "configure", "pre_run", "post_run"]
    assert mini.system_message() == "You are a helpful assistant that can interact with a computer.\n\n" + HOSTILE
    info = mini.trajectory()["info"]
    assert info["plugins"] == ["probe"]
    assert info["config"]["agent_type"] == "minisweagent.agents.interactive.InteractiveAgent"
    assert mini.events("post_run")[0] == {
        "event": "post_run",
        "task": "the task",
        "error": None,
        "result": {"exit_status": "Submitted", "submission": "the-submission\n", "cost": 1.0, "api_calls": 2},
    }
    assert ours(done.stderr) == []


def test_unknown_plugin_lists_the_installed_ones(mini: Mini) -> None:
    done = mini.task(*CONFIG, "--plugin", "prob")
    assert done.returncode == 2
    assert "no plugin named 'prob'; installed: probe, valve" in done.stderr
    assert "Building agent config" not in done.stdout


def test_a_missing_model_is_one_line_with_what_to_set(mini: Mini) -> None:
    done = mini.task("-c", "mini.yaml", "--plugin", "probe")
    assert (done.returncode, mini.events("pre_run")) == (2, [])
    assert len(ours(done.stderr)) == 1
    for way in ("-m PROVIDER/NAME", "MSWEA_MODEL_NAME", "`mini-extra config setup`"):
        assert way in done.stderr
    assert "Traceback" not in done.stderr
    fresh = mini.task("-c", "mini.yaml", "--plugin", "probe", env={"MSWEA_CONFIGURED": ""})
    assert "MSWEA_CONFIGURED=true" in ours(fresh.stderr)[0]


HOOK = "from valve_plugin.hookspecs import hookimpl\n@hookimpl\n"
BROKEN = {
    "import": ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
    "hook": (HOOK + "def minisweagent_prerun(agent): ...", "minisweagent_prerun"),
    "argument": (HOOK + "def minisweagent_pre_run(agnet): ...", "agnet"),
    "class": ("class P:\n    def __init__(self, needed): ...", "TypeError"),
}


@pytest.mark.parametrize("kind", some(BROKEN, "import"))
def test_broken_plugin_costs_one_line(mini: Mini, kind: str) -> None:
    source, reason = BROKEN[kind]
    add_distribution(mini.plugins, "broken", source, entry="broken_plugin:P" if kind == "class" else "")
    done = mini.task(*CONFIG, "--plugin", "broken", "--plugin", "probe")
    assert done.returncode == 0, done.stderr
    (line,) = ours(done.stderr)
    assert line.startswith("valve: plugin 'broken' does not load: ")
    assert reason in line
    assert line.endswith("; going on without it")
    assert mini.trajectory()["info"]["plugins"] == ["probe"]
    assert len(mini.events("post_run")) == 1


@pytest.mark.parametrize("event", some(["add_options", "configure", "pre_run", "post_run"], "pre_run"))
def test_a_hook_that_raises_costs_one_line(mini: Mini, event: str) -> None:
    second = PROBE.replace("PROBE_RAISE", "SECOND_RAISE").replace("--probe-level", "--second-level")
    add_distribution(mini.plugins, "second", second)
    (mini.directory / "block").write_text("a block")
    env = {"PROBE_RAISE": event, "PROBE_BLOCK": "block"}
    done = mini.task(*CONFIG, "--plugin", "probe", "--plugin", "second", env=env)
    assert done.returncode == 0, done.stderr
    expected = f"valve: plugin 'probe' failed in {event}: RuntimeError: the probe fails on purpose: {event}"
    assert ours(done.stderr) == [expected]
    assert len(mini.events("post_run")) == 2
    blocks = 1 if event == "pre_run" else 2
    assert mini.system_message().count("a block") == blocks
    assert mini.trajectory()["info"]["submission"] == "the-submission\n"


def test_options_of_plugins(mini: Mini) -> None:
    shown = mini("--plugin", "probe", "--help")
    assert "How much to probe." in shown.stdout
    assert "Plugin probe" in shown.stdout
    mini.task(*CONFIG, "--plugin", "probe")
    mini.task(*CONFIG, "--probe-level", "3", "--plugin", "probe")
    assert [e["options"] for e in mini.events("configure")] == [{"level": 7}, {"level": 3}]
    wrong = mini.task(*CONFIG, "--plugin", "probe", "--probe-level", "high")
    assert wrong.returncode == 2
    assert "--probe-level" in wrong.stderr


@pytest.mark.parametrize(
    ("option", "problem"),
    [
        ({"flag": "--task", "dest": "t"}, "option --task is taken"),
        pytest.param({"dest": "level"}, "KeyError: 'flag'", marks=pytest.mark.heavy),
        pytest.param({"flag": "--level", "dest": "level", "type": "nonsense"}, "NameError: ", marks=pytest.mark.heavy),
    ],
)
def test_options_that_cannot_be_added(mini: Mini, option: dict[str, Any], problem: str) -> None:
    add_distribution(mini.plugins, "odd", HOOK + f"def minisweagent_add_options(): return [{option}]")
    done = mini.task(*CONFIG, "--plugin", "odd")
    assert done.returncode == 0, done.stderr
    (line,) = ours(done.stderr)
    assert line.startswith("valve: plugin 'odd' failed in add_options: ")
    assert problem in line


# -- valve.* settings --


def test_settings_alone_keep_minis_default(default_config: Mini) -> None:
    done = default_config.task("--plugin", "probe", "-c", "valve.rho=0.02", "-c", "valve.check=pytest t.py -k 'a=b'")
    assert done.returncode == 0, done.stderr
    (seen,) = default_config.events("configure")
    assert seen["valve"] == {"rho": "0.02", "check": "pytest t.py -k 'a=b'"}
    assert seen["step_limit"] == 17
    assert "valve" not in json.dumps(default_config.trajectory()["info"]["config"]["model"])


def test_settings_in_a_config_file(mini: Mini) -> None:
    (mini.directory / "ours.yaml").write_text("valve: {attempts: 2, rho: '0.1'}")
    done = mini.task(*CONFIG, "-c", "ours.yaml", "-c", "valve.attempts=1", "--plugin", "probe")
    assert done.returncode == 0, done.stderr
    assert mini.events("configure")[0]["valve"] == {"attempts": 1, "rho": "0.1"}
    (mini.directory / "ours.yaml").write_text("valve: {atempts: 2}")
    done = mini.task(*CONFIG, "-c", "ours.yaml", "--plugin", "probe")
    assert done.returncode == 2
    assert ours(done.stderr) == ["valve: valve.*: unknown setting 'atempts'; did you mean 'attempts'?"]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("valve.chek=x", "unknown setting 'chek'; did you mean 'check'?"),
        pytest.param("valve.rho=2", "expected a number between 0 and 1", marks=pytest.mark.heavy),
        pytest.param("valve=3", "expected settings like valve.attempts=3", marks=pytest.mark.heavy),
    ],
)
def test_wrong_settings_are_refused_before_anything_runs(mini: Mini, spec: str, problem: str) -> None:
    done = mini.task("-c", spec, "--plugin", "probe")
    assert done.returncode == 2
    assert problem in done.stderr
    assert "Building agent config" not in done.stdout


@pytest.mark.parametrize("module", [runner, swebench])
def test_default_config_comes_first_and_once(module: Any) -> None:
    default = str(module.DEFAULT_CONFIG_FILE)
    assert config_specs(module, [default]) == [default]
    assert config_specs(module, ["valve.attempts=3"]) == [default, "valve.attempts=3"]
    assert config_specs(module, [default, "valve.attempts=3"]) == [default, "valve.attempts=3"]
    assert config_specs(module, ["valve.attempts=3", "a.yaml"]) == ["valve.attempts=3", "a.yaml"]
    assert config_specs(module, ["valve.yaml"]) == ["valve.yaml"]
    assert config_specs(module, []) == []


@given(st.text())
def test_text_settings_arrive_as_typed(value: str) -> None:
    (_, spec) = config_specs(runner, [f"valve.check={value}"])
    arrived = get_config_from_spec(spec)["valve"]["check"]
    try:
        typed = json.loads(value)
    except ValueError:
        typed = None
    assert arrived == (typed if isinstance(typed, str) else value)


def test_refused_agents_end_the_command_in_one_line(mini: Mini) -> None:
    source = """
    class Agent:
        def __init__(self, model, env, **config):
            self.config = config
        def run(self, task):
            raise AssertionError("ran all the same")
    """
    add_distribution(mini.plugins, "agents", source)
    done = mini.task(*CONFIG, "--plugin", "probe", "--agent-class", "agents_plugin.Agent")
    assert done.returncode == 2
    (line,) = ours(done.stderr)
    assert "agents_plugin.Agent has a dict as its config; expected an object" in line
    assert mini.events("pre_run") == []


@pytest.mark.parametrize("begun", [False, True])
def test_an_interrupt_before_the_first_step_has_a_last_line(capsys: pytest.CaptureFixture[str], *, begun: bool) -> None:
    host = Host(load([]))

    def interrupted(**_: Any) -> None:
        if begun:  # as when the agent runs: then what records the run says how it ended
            host.run(None, "")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Request(host).run(runner, "get_agent", interrupted, config_spec=[])
    said = [] if begun else ["valve: stopped before the first step: nothing was recorded, spent or changed"]
    assert ours(capsys.readouterr().err) == said
