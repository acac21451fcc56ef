"""What VALVE has to know about an agent that is a program of its own: how to start it, and how to read its output."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from valve_plugin.errors import ConfigError

Messages = list[dict[str, Any]]
"""A transcript in the shape of mini's trajectories."""


class Job(NamedTuple):
    """One task for an agent, with all paths as they are inside the sandbox."""

    issue: str
    notes: str
    """The context, verbatim; may be empty."""
    model: str
    """Name of the model at its provider."""
    url: str
    """Address of the gateway, like http://127.0.0.1:4000."""
    workdir: str
    folder: str
    """Directory of the launch's own files."""


class Launch(NamedTuple):
    """How an agent is started."""

    words: Sequence[str]
    """Command line; it may name files of `files` by their paths in the job's folder."""
    files: Mapping[str, str] = {}
    """Text files by name, written into the job's folder."""
    env: Mapping[str, str] = {}
    stdin: str = ""
    shown: Sequence[Path] = ()
    """Files and directories of this machine that the sandbox has to show."""


class Adapter(Protocol):
    """One agent. Adding one is a file with these three methods, and a line in `outside.adapter_of`."""

    name: str
    provider: str
    """The provider whose interface it speaks, by litellm's word; empty: any."""

    def version(self) -> str:
        """Return its version; attempts of different versions are not compared.

        Raises:
            ConfigError: it is not installed.
        """
        ...

    def launch(self, job: Job) -> Launch:
        """Return how it is started on a task, without anything that asks a person."""
        ...

    def messages(self, output: str) -> Messages:
        """Return its turns (role assistant, with commands) and what followed (role tool) from what it printed."""
        ...


def prompt(job: Job) -> str:
    """Return the task as it is put to an agent that has a prompt of its own."""
    return (
        f"Solve this issue in the repository at {job.workdir}. Edit its source files in place. Nobody can answer "
        f"questions, so decide yourself.\n\n{job.issue}\n"
    )


def objects(output: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of an output with one a line, as agents and transcripts have it; other lines are not."""
    for line in output.splitlines():
        with suppress(ValueError):
            if isinstance(event := json.loads(line), dict):
                yield event


def turn(text: str, *commands: str) -> dict[str, Any]:
    """Return a turn of the agent."""
    return {"role": "assistant", "content": text, "extra": {"actions": [{"command": c} for c in commands]}}


def result(output: str, returncode: int | None = None) -> dict[str, Any]:
    """Return what followed a command."""
    extra = {} if returncode is None else {"returncode": returncode}
    return {"role": "tool", "content": output, "extra": {"raw_output": output, **extra}}


def find_program(name: str, package: str) -> Path:
    """Return the path of an agent's program.

    Raises:
        ConfigError: it is not on PATH; `package` of npm has it.
    """
    found = shutil.which(name)
    if found is None:
        raise ConfigError(f"the agent {name!r} is not on PATH; install it with `npm install -g {package}`")
    return Path(found)


def native_program(found: Path, pattern: str) -> Path:
    """Return the executable that an npm package's launcher starts, or the program itself if it is no script.

    The launcher needs Node.js, which a task's image may not have; the executable needs nothing. `pattern` says where it
    is below a `node_modules`, beside the package or inside it.
    """
    real = Path(os.path.realpath(found))
    with real.open("rb") as file:
        if file.read(2) != b"#!":
            return real
    for above in real.parents:
        if inside := sorted((above / "node_modules").glob(pattern)):
            return inside[0]
    raise ConfigError(f"{found} is a script, and its executable is not found; expected {pattern} in node_modules")


def run_version(program: Path) -> str:
    """Return the version that a program prints; asked again once its file changed, as after an update."""
    try:
        file = program.stat()
    except OSError as e:
        raise ConfigError(f"{program} --version: {e}") from e
    return _version(program, file.st_mtime_ns, file.st_ino)


@lru_cache(maxsize=8)
def _version(program: Path, _changed: int, _inode: int) -> str:
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise ConfigError(f"{program} --version: {e}") from e
    if done.returncode:
        raise ConfigError(f"{program} --version ends with {done.returncode}: {(done.stdout + done.stderr)[-300:]}")
    return done.stdout.strip()
