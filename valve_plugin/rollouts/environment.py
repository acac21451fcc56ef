"""A mini-SWE-agent environment whose commands run in VALVE's sandbox."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from minisweagent.environments.docker import DockerEnvironment, DockerEnvironmentConfig
from minisweagent.exceptions import Submitted
from pydantic import BaseModel

from valve_plugin.errors import ConfigError
from valve_plugin.rollouts.container import Container, Started
from valve_plugin.rollouts.limits import MIB, Limits
from valve_plugin.rollouts.mini_config import class_named, refusal
from valve_plugin.rollouts.sandbox import TESTBED, choose

if TYPE_CHECKING:
    from valve_plugin.config import Settings
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
    memory_mib: int = Limits().memory_bytes // MIB
    """MiB of memory that the processes of a rollout may use."""
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
        limits = _limits(self.config, timeout)
        where, env = cwd or self.config.start, self.config.env
        command = action.get("command", "")
        return _observed(self._sandbox.run(command, self._workspace, limits=limits, cwd=where, env=env), limits)

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


class ContainerEnvironmentConfig(DockerEnvironmentConfig):
    """mini's docker section. Image, engine and options of `run` are not taken from it: they are what isolates."""

    cwd: str = TESTBED
    timeout: int = Limits().cpu_seconds
    """CPU seconds of one command, as in `SandboxEnvironmentConfig`."""
    wall_timeout: int = Limits().wall_seconds
    """As in `SandboxEnvironmentConfig`."""
    memory_mib: int = Limits().memory_bytes // MIB
    """As in `SandboxEnvironmentConfig`."""
    interpreter: list[str] = ["bash", "-c"]  # noqa: RUF012 (pydantic copies it)
    """Not a login shell: its start-up files would put another Python first on PATH."""


class ContainerEnvironment(DockerEnvironment):
    """mini's docker environment, started closed, with the sandbox's limits, and gone when the rollout is.

    Raises:
        SandboxError: the engine failed; that ends the rollout as `errored`.
    """

    def __init__(self, container: Container, workspace: Workspace, **config: Any) -> None:
        self._container, self._workspace = container, workspace
        self._started: Started | None = None
        ours = {"image": container.image.name, "executable": container.image.engine, "forward_env": [], "run_args": []}
        super().__init__(config_class=ContainerEnvironmentConfig, **(config | ours))

    def _start_container(self) -> None:
        self._started = self._container.start(self._workspace, memory_bytes=self.config.memory_mib * MIB)
        self.container_id = self._started.id

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run one action's command and return its output; see `SandboxEnvironment.execute`."""
        assert self._started is not None, "the container was stopped"
        limits = _limits(self.config, timeout)
        command = [*self.config.interpreter, action.get("command", "")]
        done = self._started.run(command, limits=limits, cwd=cwd or self.config.cwd, env=self.config.env)
        self.container_id = self._started.id
        return _observed(done, limits)

    def cleanup(self) -> None:
        """Remove the container, and wait until it is removed."""
        started, self._started = self._started, None
        if started is not None:
            started.stop()


def environment_for(
    settings: Settings, workspace: Workspace, section: dict[str, Any]
) -> SandboxEnvironment | ContainerEnvironment:
    """Return the environment of a rollout.

    Args:
        section: `environment` of a mini configuration; the class it names is refused unless ours can stand in for it.

    Raises:
        ConfigError: that class cannot hold what unattended rollouts need.
        SandboxError: there is no sandbox, or the engine failed.
    """
    if why := refusal(class_named(section)):
        raise ConfigError(why)
    section = {name: value for name, value in section.items() if name != "environment_class"}
    sandbox = choose(settings, workspace.image)
    if isinstance(sandbox, Container):
        return ContainerEnvironment(sandbox, workspace, **section)
    return SandboxEnvironment(sandbox, workspace, **section)


def clipped(output: bytes) -> bytes:
    """Return an output whole, or its beginning and its end with the number of bytes left out between them."""
    out = len(output) - 2 * KEPT_BYTES
    if out <= 0:
        return output
    return output[:KEPT_BYTES] + b"\n... %d bytes left out ...\n" % out + output[-KEPT_BYTES:]


def _limits(config: SandboxEnvironmentConfig | ContainerEnvironmentConfig, cpu_seconds: int | None) -> Limits:
    return Limits(
        cpu_seconds=cpu_seconds or config.timeout,
        wall_seconds=config.wall_timeout,
        memory_bytes=config.memory_mib * MIB,
    )


def _observed(done: Completed, limits: Limits) -> dict[str, Any]:
    """Return what the agent sees of a command; the one that submits ends the run instead."""
    text = clipped(done.output).decode("utf-8", "replace")
    _finish_if_submitted(text, done.returncode)
    return {"output": text, "returncode": done.returncode, "exception_info": _stopped(done, limits)}


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
