"""Running mini's real commands with plugins that are discovered as installed ones are, and a scripted model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent

# Writes down every host event; injects the file PROBE_BLOCK names; PROBE_RAISE names an event that fails.
PROBE = """
import json, os
from valve_plugin.hookspecs import hookimpl

def note(event, **data):
    with open(os.environ["PROBE_LOG"], "a") as log:
        log.write(json.dumps({"event": event, **data}) + "\\n")
    if os.environ.get("PROBE_RAISE") == event:
        raise RuntimeError("the probe fails on purpose:\\n" + event)

@hookimpl
def minisweagent_add_options():
    note("add_options")
    return [{"flag": "--probe-level", "dest": "level", "type": int, "default": 7, "help": "How much to probe."}]

@hookimpl
def minisweagent_configure(config, options):
    note("configure", valve=config.get("valve"), options=dict(options), sections=sorted(config),
         step_limit=config.get("agent", {}).get("step_limit"))

@hookimpl
def minisweagent_pre_run(agent, task):
    note("pre_run", task=task)
    block = os.environ.get("PROBE_BLOCK")
    return open(block, newline="").read() if block else None

@hookimpl
def minisweagent_post_run(agent, task, result, error):
    note("post_run", task=task, result=dict(result), error=type(error).__name__ if error else None)
"""

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo the-submission"


def add_distribution(directory: Path, name: str, source: str, *, entry: str = "") -> None:
    """Write a module and the metadata that makes it an installed plugin for whoever has `directory` on its path."""
    directory.mkdir(parents=True, exist_ok=True)
    module = f"{name.replace('-', '_')}_plugin"
    (directory / f"{module}.py").write_text(textwrap.dedent(source))
    info = directory / f"{module}-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[minisweagent.plugins]\n{name} = {entry or module}\n")


def deterministic(path: Path, *commands: str) -> Path:
    """Write a config file for mini's own scripted model: these commands, then a submission; 0.5 USD a call."""
    outputs = [
        {"role": "assistant", "content": f"step {n}", "extra": {"actions": [{"command": command}], "cost": 0.5}}
        for n, command in enumerate([*commands, SUBMIT])
    ]
    model = {"model_class": "deterministic", "model_name": "scripted", "cost_per_call": 0.5, "outputs": outputs}
    path.write_text(json.dumps({"model": model}))  # JSON is YAML
    return path


def without_times(value: Any) -> Any:
    """Return a trajectory without its time stamps, to compare it with another."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k != "timestamp"}
    return [without_times(v) for v in value] if isinstance(value, list) else value


@dataclass
class Mini:
    """One directory to run mini's commands in, with its plugins and what they wrote down."""

    directory: Path
    variables: dict[str, str]
    bin: Path = BIN
    """Where the commands are installed."""

    def __call__(
        self, *args: str, program: Sequence[str] = ("mini",), env: Mapping[str, str] | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of mini's to its end, without a terminal."""
        first = [str(self.bin / program[0]), *program[1:]]
        return subprocess.run(
            [*first, *args],
            cwd=self.directory,
            env={**os.environ, **self.variables, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def task(self, *args: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """Run an unattended task on the scripted model, with mini's default configuration."""
        return self("-y", "--exit-immediately", "-t", "the task", "-o", "t.json", *args, **kwargs)

    @property
    def plugins(self) -> Path:
        """Where distributions go that these runs shall find."""
        return self.directory / "plugins"

    def events(self, name: str = "") -> list[dict[str, Any]]:
        """Return what the probe wrote down."""
        log = self.directory / "probe.jsonl"
        every = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        return [e for e in every if not name or e["event"] == name]

    def trajectory(self, name: str = "t.json") -> dict[str, Any]:
        """Return the trajectory file of the last run."""
        loaded: dict[str, Any] = json.loads((self.directory / name).read_text())
        return loaded

    def system_message(self, name: str = "t.json") -> str:
        """Return the system message of the last run."""
        return str(self.trajectory(name)["messages"][0]["content"])


def make_mini(directory: Path) -> Mini:
    """Return mini's commands in a directory of their own, with the plugin `probe` installed and a scripted model."""
    made = Mini(directory, {})
    add_distribution(made.plugins, "probe", PROBE)
    deterministic(directory / "model.yaml", "echo working")
    made.variables |= {
        "PYTHONPATH": str(made.plugins),
        "PROBE_LOG": str(directory / "probe.jsonl"),
        "MSWEA_GLOBAL_CONFIG_DIR": str(directory / "global"),
        "VALVE_DATA": str(directory / "data"),
        "COLUMNS": "200",
        "NO_COLOR": "1",
    }
    return made
