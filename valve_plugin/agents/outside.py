"""A rollout by an agent that is a program of its own: it runs in the sandbox, and its model calls leave by the gateway.

mini runs outside instead and sends single commands into the sandbox. Its model calls need no gateway, and the retries,
checks and costs of its calls are those of `model.RetryingModel`.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from valve_plugin.agents.adapter import Adapter, Job, Launch
from valve_plugin.agents.claude import Claude
from valve_plugin.agents.codex import Codex
from valve_plugin.agents.command import CommandAgent
from valve_plugin.agents.faults import EndKind, advice, class_names, classify_end, describe_error
from valve_plugin.agents.gateway import Gateway, GatewayStop, Provider, serve
from valve_plugin.agents.protocol import TRAJECTORY, RolloutReporter, RolloutResult, RolloutSpec
from valve_plugin.config import MINI, SCRIPTED_MODEL, Settings, model_of
from valve_plugin.errors import ConfigError
from valve_plugin.redact import Redactor
from valve_plugin.sandbox.bubblewrap import choose
from valve_plugin.sandbox.supervisor import MIB, CommandResult, ProcessLimits, Sample
from valve_plugin.sandbox.workspace import HOME, chown_tree
from valve_plugin.words import one_line

if TYPE_CHECKING:
    from valve_plugin.sandbox.workspace import Workspace

_ONE_INTERFACE = ("anthropic", "openai")
"""Providers that are known to have one interface; others may offer several."""
_FOLDER = ".agent"
"""In the home directory: the socket, the forwarder, and the agent's own files."""
_SOCKET = "gateway"
_FORWARDER = "forward.py"
_OUTPUT_BYTES = 64 * MIB


def adapter_of(agent: str) -> Adapter:
    """Return the adapter of an agent other than mini.

    Raises:
        ConfigError: it is neither a known name nor a command with a place for the task.
    """
    known: dict[str, Adapter] = {"claude": Claude(), "codex": Codex()}
    return known.get(agent) or CommandAgent(agent)


def require(settings: Settings) -> None:
    """Check that the agent of the settings is installed, and takes the other settings.

    Raises:
        ConfigError: it does not.
    """
    adapter_of(settings.agent).version()
    if settings.model == SCRIPTED_MODEL:
        raise ConfigError(f"a SIMULATION is of mini, not of agent {settings.agent!r}; leave out one of the two")
    for name, given in {"mini_config": settings.mini_config, "model_class": settings.model_class}.items():
        if given:
            raise ConfigError(f"{name} is a setting of mini and has no effect with another agent; leave it out")


def require_provider(settings: Settings, model: str) -> None:
    """Check that the agent speaks an interface of the model's provider.

    Raises:
        ConfigError: it does not, or the provider's address is not known.
    """
    adapter, provider = adapter_of(settings.agent), Provider.of(settings, model, os.environ)
    if adapter.provider and provider.name != adapter.provider and provider.name in _ONE_INTERFACE:
        raise ConfigError(
            f"the agent {settings.agent} speaks the interface of {adapter.provider}, but the model is {model}; "
            f"expected {adapter.provider}/NAME (with -c model_kwargs.api_base=URL for a compatible server)"
        )


def solver(settings: Settings) -> dict[str, Any]:
    """Return what of the agent changes how it solves tasks: its name or command, and its version like 2.1.

    These agents release patches almost daily, and one must not end a bank's baseline or a trial.
    """
    found = re.search(r"\d+\.\d+", adapter_of(settings.agent).version())
    return {"agent": settings.agent, "version": found[0] if found else ""}


def limits_of(settings: Settings) -> ProcessLimits:
    """Return the limits of an agent with all its commands; reaching one is the agent's doing."""
    seconds = math.ceil(3600 * settings.agent_hours)
    memory = settings.agent_memory * MIB
    return ProcessLimits(cpu_seconds=seconds, wall_seconds=seconds, memory_bytes=memory, output_bytes=_OUTPUT_BYTES)


def describe(settings: Settings) -> str:
    """Return the agent and its version, or "" for mini."""
    return "" if settings.agent == MINI else " ".join(filter(None, solver(settings).values()))


def solve(spec: RolloutSpec, folder: Path, reporter: RolloutReporter) -> RolloutResult:
    """Run the agent of the settings on a task. Never raises for what the agent or the provider did."""
    settings = spec.settings
    redact = Redactor.of(os.environ, config=settings.model_kwargs)
    model = model_of(settings)
    gateway: Gateway | None = None
    try:
        adapter = adapter_of(settings.agent)
        gateway = Gateway(Provider.of(settings, model, os.environ), model, settings, reporter, redact)
        output = bytearray()
        launch = _prepare(spec, adapter, gateway)
        done = _run(spec, launch, gateway, output)
        ended, status, reason = _end(gateway, adapter, done, limits_of(settings))
        # Write the transcript in the shape of mini's trajectories
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": spec.block},
            {"role": "user", "content": launch.stdin or spec.issue},
            *adapter.messages(output.decode("utf-8", "replace")),
        ]
        info = {
            "agent": spec.settings.agent,
            "version": adapter.version(),
            "command": list(launch.words),
            "model_stats": {"instance_cost": gateway.usd, "api_calls": len(gateway.calls)},
            "calls": msgspec.to_builtins(gateway.calls),
        }
        (folder / TRAJECTORY).write_text(json.dumps({"messages": messages, "info": info}))
    except Exception as e:  # noqa: BLE001  # the rollout boundary: any error becomes this rollout's outcome
        ended, reason = classify_end("", class_names(e), describe_error(e, redact))
        status = type(e).__name__
    fault = gateway.fault if gateway and ended == "errored" else None
    if fault and gateway:
        reason = one_line(f"{advice(fault, model, settings.model_kwargs, os.environ)} ({gateway.shown})")
    return RolloutResult(
        ended=ended,
        reason=one_line(reason),
        fault=fault.kind if fault else "",
        exit_status=status,
        steps=len(gateway.calls) if gateway else 0,
        cost_usd=gateway.usd if gateway else 0.0,
        model=model,
    )


def _prepare(spec: RolloutSpec, adapter: Adapter, gateway: Gateway) -> Launch:
    """Write the agent's own files into the workspace; return how it is started, behind the forwarder."""
    workspace, sandbox = spec.workspace, choose(spec.settings, spec.workspace.image)
    inside = sandbox.root is not None
    own, folder = workspace.home / _FOLDER, f"{HOME if inside else workspace.home}/{_FOLDER}"
    workdir = workspace.place if inside else str(workspace.path)
    with socket.socket() as probe:  # a free port
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    notes = spec.block if spec.block.strip() else ""
    launch = adapter.launch(Job(spec.issue, notes, gateway.model, f"http://127.0.0.1:{port}", workdir, folder))
    own.mkdir()
    for file, text in launch.files.items():
        (own / file).write_text(text, encoding="utf-8", errors="replace")
    shutil.copyfile(Path(__file__).with_name(_FORWARDER), own / _FORWARDER)
    chown_tree(own, workspace.uid)
    python, shown = _python(workspace, inside)
    forward = [python, "-I", "-S", f"{folder}/{_FORWARDER}", str(port), f"{folder}/{_SOCKET}"]
    return launch._replace(words=[*forward, *launch.words], shown=[*launch.shown, *shown])


def _run(spec: RolloutSpec, launch: Launch, gateway: Gateway, output: bytearray) -> CommandResult | None:
    """Run the agent in the sandbox; None: the gateway ended it. `output` is filled with what it prints."""
    workspace = spec.workspace

    def watch(sample: Sample) -> None:
        output.extend(sample.output[: _OUTPUT_BYTES - len(output)])
        gateway.require_more()

    with serve(gateway, workspace.home / _FOLDER / _SOCKET, workspace.uid), suppress(GatewayStop):
        done = choose(spec.settings, workspace.image).run(
            launch.words,
            workspace,
            limits=limits_of(spec.settings),
            env=launch.env,
            stdin=launch.stdin.encode("utf-8", "replace"),
            readonly=launch.shown,
            watcher=watch,
        )
        output[:] = done.output  # without what a container's start printed before it
        gateway.require_more()
        return done
    return None


def _python(workspace: Workspace, inside: bool) -> tuple[str, Sequence[Path]]:
    """Return the interpreter that runs the forwarder, and what of it has to be shown.

    Tests run by Python, so a task's environment or image has one. In other places it is that of this process.
    """
    if workspace.image is not None:
        return "python3", ()
    if workspace.bin is not None and (workspace.bin / "python").exists():
        return str(workspace.bin / "python"), ()
    own = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    return str(own), [Path(sys.base_prefix)] if inside else ()


def _end(
    gateway: Gateway, adapter: Adapter, done: CommandResult | None, limits: ProcessLimits
) -> tuple[EndKind, str, str]:
    if gateway.fault:
        return "errored", "ProviderFailed", ""
    if gateway.used_up or done is None:
        return "unresolved", "LimitsExceeded", classify_end("LimitsExceeded")[1]
    name = adapter.name.split()[0]
    last = done.output[-2000:].decode("utf-8", "replace").strip()
    if done.limit == "wall" and gateway.waited_seconds > limits.wall_seconds / 2:
        return "errored", "TimeExceeded", f"{name} waited {gateway.waited_seconds:.0f} s for the provider"
    if done.limit:
        return "unresolved", "TimeExceeded", f"the agent {done.exceeded(limits)}"
    if done.returncode and not gateway.calls:
        return "errored", "NotStarted", f"{name} ended with {done.returncode} before its first model call: {last}"
    if done.returncode:
        shown = gateway.shown or (last.splitlines() or [""])[-1][-300:]
        return "unresolved", f"Exit{done.returncode}", f"{name} ended with {done.returncode}: {shown}"
    if adapter.provider and not gateway.calls:
        return "errored", "NotStarted", f"{name} ended without a model call: {last}"
    return "submitted", "Submitted", ""
