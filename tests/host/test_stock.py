"""Without --plugin, mini with this package installed is mini without it."""

from __future__ import annotations

import json
import re

import pytest

from tests.host.harness import SUBMIT, Mini, deterministic, without_times
from tests.tools import some

OFF = {"VALVE_STARTUP": "0"}
RUN = ("-y", "--exit-immediately", "-t", "the task", "-o", "t.json", "-c", "mini.yaml")

STOCK_COMMANDS = {
    "a run": (("mini",), (*RUN, "-c", "model.yaml")),
    "a step limit": (("mini",), (*RUN, "-c", "model.yaml", "-c", "agent.step_limit=1")),
    "a key drops the default": (("mini",), ("-t", "x", "-c", "agent.step_limit=1")),
    "a missing file": (("mini",), ("-t", "x", "-c", "nowhere.yaml")),
    "an unknown option": (("mini",), ("--nonsense",)),
    "the model fails": (("mini",), (*RUN, "-c", "failing.yaml")),
    "mini-extra, unknown": (("mini-extra", "nonsense"), ()),
    "mini-extra config": (("mini-extra", "config"), ("set", "A_KEY", "a value")),
    "mini-extra swebench, wrong use": (("mini-extra", "swebench"), ("--workers", "many")),
}


def plain(text: str) -> str:
    """Drop what differs between any two runs: addresses, times."""
    return re.sub(r"0x[0-9a-f]+|\d{10}\.\d+", "", text)


@pytest.mark.parametrize("name", some(STOCK_COMMANDS, "a run", "mini-extra, unknown"))
def test_same_output_exit_code_and_trajectory(mini: Mini, name: str) -> None:
    deterministic(mini.directory / "failing.yaml")
    (mini.directory / "failing.yaml").write_text((mini.directory / "failing.yaml").read_text().replace(SUBMIT, "true"))
    program, args = STOCK_COMMANDS[name]
    seen = []
    for env in (OFF, {}):
        done = mini(*args, program=program, env=env)
        file = mini.directory / "t.json"
        trajectory = without_times(json.loads(file.read_text())) if file.exists() else None
        file.unlink(missing_ok=True)
        seen.append((done.returncode, plain(done.stdout), plain(done.stderr), trajectory))
    stock, ours = seen
    assert ours == stock


@pytest.mark.heavy
def test_shells_complete_the_option(mini: Mini) -> None:
    completing = {"_MINI_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    found = mini(env={**completing, "COMP_WORDS": "mini --p"})
    assert (found.returncode, found.stdout.split()) == (0, ["--plugin"])
    stock, ours = (mini(env={**completing, **env, "COMP_WORDS": "mini --mo"}) for env in (OFF, {}))
    assert (ours.returncode, ours.stdout) == (stock.returncode, stock.stdout)


HELPS = [
    ("mini",),
    ("python", "-m", "minisweagent.run.mini"),
    ("mini-extra", "swebench"),
    ("mini-extra", "swebench-single"),
    ("mini-extra", "programbench"),
    ("mini-extra", "config"),
]


@pytest.mark.parametrize("program", some(HELPS, ("mini",)), ids=" ".join)
def test_help_differs_by_the_option_alone(mini: Mini, program: tuple[str, ...]) -> None:
    stock = mini("--help", program=program, env=OFF)
    ours = mini("--help", program=program)
    assert (ours.returncode, ours.stderr) == (stock.returncode, stock.stderr) == (0, stock.stderr)

    def words(text: str) -> list[str]:
        return re.sub(r"[─╭╮╰╯│]", " ", text).split()

    added = [line for line in ours.stdout.splitlines() if "--plugin" in line]
    if program[-1] == "config":
        assert ours.stdout == stock.stdout
        return
    assert len(added) == 1
    assert "Use an installed plugin (repeatable)." in added[0]
    left = [line for line in ours.stdout.splitlines() if "--plugin" not in line]
    assert words("\n".join(left)) == words(stock.stdout)


DUMP = (
    "import atexit, sys; atexit.register(lambda: print('OURS', *sorted(m for m in sys.modules if m.startswith({}))));"
)


@pytest.mark.parametrize("runner", some(["mini", "benchmarks.swebench_single", "benchmarks.programbench"], "mini"))
def test_only_the_guard_is_imported(mini: Mini, runner: str) -> None:
    start = f"{DUMP.format(('valve', 'pluggy', 'msgspec'))} from minisweagent.run.{runner} import app; app()"
    done = mini("--help", program=("python", "-c", start))
    assert done.stdout.splitlines()[-1] == "OURS valve_plugin valve_plugin._boot"
    if runner == "mini":
        done = mini(*RUN, "-c", "model.yaml", program=("python", "-c", start))
        assert "Saved trajectory" in done.stdout
        assert done.stdout.splitlines()[-1] == "OURS valve_plugin valve_plugin._boot"


def test_switched_off_means_nothing_at_all(mini: Mini) -> None:
    start = f"{DUMP.format(('valve',))} from minisweagent.run.mini import app; app()"
    done = mini(*RUN, "-c", "model.yaml", program=("python", "-c", start), env=OFF)
    assert done.stdout.splitlines()[-1] == "OURS"
    refused = mini("--plugin", "probe", "-t", "x", env=OFF)
    assert refused.returncode == 2
    assert "No such option" in refused.stderr


def test_module_keeps_its_loader_source_and_command(mini: Mini) -> None:
    """What mini's own tests rely on: its `main` stays its `main`, patched globals are used, tools find the source."""
    script = mini.directory / "look.py"
    script.write_text(
        """
import inspect, sys
sys.orig_argv = [sys.orig_argv[0], "/bin/mini"]
from valve_plugin import _boot
_boot.start()
import minisweagent.run.mini as runner
from unittest.mock import Mock, patch
from typer.testing import CliRunner
assert type(runner.__loader__).__name__ == type(runner.__spec__.loader).__name__ == "SourceFileLoader"
assert "def main(" in inspect.getsource(runner)
assert runner.main.__module__ == "minisweagent.run.mini" and "plugin" not in inspect.signature(runner.main).parameters
with patch("minisweagent.run.mini.get_agent") as get_agent, patch("minisweagent.run.mini.get_model"):
    runner.main(model_name="m", model_class=None, agent_class=None, environment_class=None, task="direct", yolo=True,
                cost_limit=None, config_spec=["mini.yaml"], output=None, exit_immediately=True)
    get_agent.return_value.run.assert_called_once_with("direct")
    result = CliRunner().invoke(runner.app, ["-t", "through the command", "-y", "-m", "m"])
    assert result.exit_code == 0, result.output
    get_agent.return_value.run.assert_called_with("through the command")
print("fine")
"""
    )
    done = mini(str(script), program=("python",))
    assert done.stdout.splitlines()[-1:] == ["fine"], done.stderr
