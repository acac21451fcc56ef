"""A mini-SWE-agent environment whose commands run in VALVE's sandbox."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minisweagent.exceptions import Submitted
from pydantic import BaseModel

if TYPE_CHECKING:
    from valve_plugin.rollouts.sandbox import Completed, Sandbox

FINISHED = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class SandboxEnvironmentConfig(BaseModel):
    """The `environment` section of a mini configuration, as far as a sandbox has use for it."""

    cwd: str = "/testbed"
    """Where the workspace appears to the agent."""
    env: dict[str, str] = {}
    """Variables of every command, on top of the sandbox's own few; nothing else of this process gets in."""
    timeout: int = 60
    """CPU seconds of one command: unlike wall time, the machine's load does not change them."""
    wall_timeout: int = 600
    """Backstop in seconds of wall clock, for commands that wait without computing."""
    memory_bytes: int = 4 * 2**30
    """Memory of one command."""


class SandboxEnvironment:
    """Runs the agent's commands in a workspace through a sandbox.

    What a command does to itself (limits, failures) is an observation for the agent. A sandbox that does not work
    raises InfrastructureError or SandboxError, which ends the rollout as `errored`.
    """

    def __init__(self, sandbox: Sandbox, workspace: Path, **config: Any) -> None:
        self.config = SandboxEnvironmentConfig(**config)
        self._sandbox = sandbox
        self._workspace = workspace

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run one action's command and return its output, as mini's environments do.

        Raises:
            Submitted: the command prints mini's final line.
            InfrastructureError: the sandbox itself failed.
        """
        done = self._sandbox.run(
            action.get("command", ""),
            self._workspace,
            cpu_seconds=timeout or self.config.timeout,
            wall_seconds=self.config.wall_timeout,
            memory_bytes=self.config.memory_bytes,
            env=self.config.env,
        )
        text = done.output.decode("utf-8", "replace")
        _finish_if_submitted(text, done.returncode)
        return {"output": text, "returncode": done.returncode, "exception_info": _limit(done)}

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


def _finish_if_submitted(text: str, returncode: int) -> None:
    first, _, rest = text.lstrip().partition("\n")
    if first.strip() == FINISHED and returncode == 0:
        extra = {"exit_status": "Submitted", "submission": rest}
        raise Submitted({"role": "exit", "content": rest, "extra": extra})


def _limit(done: Completed) -> str:
    return "The command was stopped: it used up its time." if done.timed_out else ""
