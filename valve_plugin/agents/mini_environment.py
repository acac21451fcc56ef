"""A mini-SWE-agent environment whose commands run in VALVE's sandbox. Importing it imports mini."""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING, Any

from minisweagent.exceptions import Submitted, TimeExceeded
from pydantic import BaseModel

from valve_plugin.sandbox.container import Container, RunningContainer
from valve_plugin.sandbox.supervisor import MIB, ProcessLimits, RunOptions
from valve_plugin.sandbox.workspace import TESTBED

if TYPE_CHECKING:
    from valve_plugin.sandbox.bubblewrap import Sandbox
    from valve_plugin.sandbox.supervisor import CommandResult
    from valve_plugin.sandbox.workspace import Workspace

SUBMIT_LINE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
KEPT_BYTES = 2**17
"""Bytes kept of the beginning and of the end of an output. (mini writes all output in each save of the trajectory.)"""
COMMAND_SECONDS = 2 * 3600.0
"""Wall time of all commands of a rollout, half of the rollout's own limit. Reaching it is the agent's doing."""
_LONGEST_ARGUMENT = 100_000
"""Bytes of a command above which it is passed by standard input. (Linux allows 128 KiB in one argument.)"""


class SandboxEnvironmentConfig(BaseModel):
    """The fields of mini's `environment` section that a sandbox uses; others are ignored."""

    env: dict[str, str] = {}
    """Additional variables of all commands. No variable of this process is passed on."""
    timeout: int = ProcessLimits().cpu_seconds
    """CPU limit of one command in seconds; unlike wall time it does not depend on the machine's load."""
    wall_timeout: int = ProcessLimits().wall_seconds
    """Wall limit of one command in seconds, for commands that wait without computing."""
    memory_mib: int = ProcessLimits().memory_bytes // MIB
    """MiB of memory that the processes of a rollout may use."""
    start: str = ""
    """Directory in which commands start, relative to the workspace. (`cwd` is an absolute path.)"""
    cwd: str = TESTBED
    """Directory in which commands start in a container."""
    interpreter: list[str] = ["bash", "-c"]
    """Shell in a container. Not a login shell: its start-up files put another Python first on PATH."""


class SandboxEnvironment:
    """Runs the agent's commands in a sandbox. A container runs for the whole rollout.

    Exceeded limits and failed commands are observations for the agent. A sandbox that does not work raises
    SandboxError, which ends the rollout as `errored`.
    """

    def __init__(self, sandbox: Sandbox, workspace: Workspace, **config: Any) -> None:
        self.config = SandboxEnvironmentConfig(**config)
        self._sandbox, self._workspace = sandbox, workspace
        self._container: RunningContainer | None = None
        self._seconds = 0.0
        if isinstance(sandbox, Container):
            self._container = sandbox.start(workspace, memory_bytes=self.config.memory_mib * MIB)

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run one action's command and return its output, as mini's environments do.

        Raises:
            Submitted: the command printed mini's final line.
            TimeExceeded: the commands of this rollout have used `COMMAND_SECONDS`.
            SandboxError: the sandbox itself failed.
        """
        if self._seconds > COMMAND_SECONDS:
            extra = {"exit_status": "TimeExceeded", "submission": ""}
            raise TimeExceeded({"role": "exit", "content": "TimeExceeded", "extra": extra})
        started = time.monotonic()
        try:
            command = action.get("command", "")
            config, script = self.config, b""
            limits = ProcessLimits(
                cpu_seconds=timeout or config.timeout,
                wall_seconds=config.wall_timeout,
                memory_bytes=config.memory_mib * MIB,
            )
            if len(data := command.encode("utf-8", "surrogatepass")) > _LONGEST_ARGUMENT:
                command, script = 'eval "$(cat)"', data
            options = RunOptions(limits=limits, env=config.env, stdin=script)
            if self._container is not None:
                options["cwd"] = cwd or config.cwd
                return observation(self._container.run([*config.interpreter, command], **options), limits)
            options["cwd"] = cwd or config.start
            return observation(self._sandbox.run(command, self._workspace, **options), limits)
        finally:
            self._seconds += time.monotonic() - started

    def cleanup(self) -> None:
        """Remove the container, and wait until it is removed."""
        container, self._container = self._container, None
        if container is not None:
            container.stop()

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return the variables of prompt templates: this section and the platform, but not the process environment."""
        return self.config.model_dump() | platform.uname()._asdict() | kwargs

    def serialize(self) -> dict[str, Any]:
        """Return this environment's part of the trajectory."""
        name = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"environment": self.config.model_dump(mode="json"), "environment_type": name}}}


def observation(done: CommandResult, limits: ProcessLimits) -> dict[str, Any]:
    """Return the result of a command as the agent sees it.

    Raises:
        Submitted: the command is the one that submits, which ends the run.
    """
    text = shorten(done.output).decode("utf-8", "replace")
    first, _, rest = text.lstrip().partition("\n")
    if first.strip() == SUBMIT_LINE and done.returncode == 0:
        extra = {"exit_status": "Submitted", "submission": rest}
        raise Submitted({"role": "exit", "content": rest, "extra": extra})
    stopped = f"The command was stopped: it {done.exceeded(limits)}." if done.limit else ""
    return {"output": text, "returncode": done.returncode, "exception_info": stopped}


def shorten(output: bytes) -> bytes:
    """Return an output, or its beginning and end with the number of omitted bytes in between."""
    omitted = len(output) - 2 * KEPT_BYTES
    if omitted <= 0:
        return output
    return output[:KEPT_BYTES] + b"\n... %d bytes left out ...\n" % omitted + output[-KEPT_BYTES:]
