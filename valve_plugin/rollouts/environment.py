"""A mini-SWE-agent environment whose commands run in VALVE's sandbox."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from minisweagent.exceptions import Submitted
from pydantic import BaseModel

from valve_plugin.rollouts.limits import Limits

if TYPE_CHECKING:
    from valve_plugin.rollouts.sandbox import Sandbox
    from valve_plugin.rollouts.supervise import Completed
    from valve_plugin.rollouts.workspace import Workspace

FINISHED = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
KEPT_BYTES = 2**17
"""Kept of an output's beginning and of its end: mini repeats all of it in every save of the trajectory."""

_STOPPED = {
    "cpu": "used more than {cpu_seconds} s of CPU time",
    "wall": "ran longer than {wall_seconds} s",
    "memory": "used more than {memory_bytes} bytes of memory",
    "disk": "left more than {disk_bytes} bytes on disk",
}


class SandboxEnvironmentConfig(BaseModel):
    """The `environment` section of a mini configuration, as far as a sandbox has use for it."""

    env: dict[str, str] = {}
    """Variables of every command, on top of the sandbox's own few; nothing else of this process gets in."""
    timeout: int = Limits().cpu_seconds
    """CPU seconds of one command: unlike wall time, the machine's load does not change them."""
    wall_timeout: int = Limits().wall_seconds
    """Backstop in seconds of wall clock, for commands that wait without computing."""
    start: str = ""
    """Where commands start, relative to the workspace. Not `cwd`: there mini's configurations name absolute paths."""


class SandboxEnvironment:
    """Runs the agent's commands in a workspace through a sandbox.

    What a command does to itself (limits, failures) is an observation for the agent. A sandbox that does not work
    raises SandboxError, which ends the rollout as `errored`.
    """

    def __init__(self, sandbox: Sandbox, workspace: Workspace, **config: Any) -> None:
        self.config = SandboxEnvironmentConfig(**config)
        self._sandbox = sandbox
        self._workspace = workspace

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run one action's command and return its output, as mini's environments do.

        Args:
            action: `{"command": ...}`.
            cwd: relative to the workspace; empty: as configured.
            timeout: CPU seconds; None: as configured.

        Raises:
            Submitted: the command printed mini's final line.
            SandboxError: the sandbox itself failed.
        """
        limits = Limits(cpu_seconds=timeout or self.config.timeout, wall_seconds=self.config.wall_timeout)
        command = action.get("command", "")
        done = self._sandbox.run(
            command, self._workspace, limits=limits, cwd=cwd or self.config.start, env=self.config.env
        )
        text = clipped(done.output).decode("utf-8", "replace")
        _finish_if_submitted(text, done.returncode)
        return {"output": text, "returncode": done.returncode, "exception_info": _stopped(done, limits)}

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return what prompts may refer to: this section and the platform, never the process environment."""
        return self.config.model_dump() | platform.uname()._asdict() | kwargs

    def serialize(self) -> dict[str, Any]:
        """Return this environment's part of the trajectory."""
        return {
            "info": {
                "config": {
                    "environment": self.config.model_dump(mode="json"),
                    "environment_type": f"{type(self).__module__}.{type(self).__name__}",
                }
            }
        }


def clipped(output: bytes) -> bytes:
    """Return an output whole, or its beginning and its end with the number of bytes left out between them."""
    out = len(output) - 2 * KEPT_BYTES
    if out <= 0:
        return output
    return output[:KEPT_BYTES] + b"\n... %d bytes left out ...\n" % out + output[-KEPT_BYTES:]


def _finish_if_submitted(text: str, returncode: int) -> None:
    first, _, rest = text.lstrip().partition("\n")
    if first.strip() == FINISHED and returncode == 0:
        extra = {"exit_status": "Submitted", "submission": rest}
        raise Submitted({"role": "exit", "content": rest, "extra": extra})


def _stopped(done: Completed, limits: Limits) -> str:
    if not done.limit:
        return ""
    how = _STOPPED[done.limit].format_map({name: getattr(limits, name) for name in limits.__struct_fields__})
    return f"The command was stopped: it {how}."
