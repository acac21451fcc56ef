"""One rollout inside a child process: mini's own agent, model and prompts, with our sandbox as its environment.

Light to import: the fork server has loaded litellm and mini-SWE-agent already, and the parent needs neither.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from valve_plugin.codec import canonical
from valve_plugin.config import Settings
from valve_plugin.records import FaultKind
from valve_plugin.rollouts import mini_settings, paid, waits
from valve_plugin.rollouts.arguments import insisted
from valve_plugin.rollouts.exits import Ended, classify, one_line
from valve_plugin.rollouts.faults import Fault, advice
from valve_plugin.rollouts.patience import Patient, tell_mini_to_try_once, tries
from valve_plugin.rollouts.system_slot import filled, with_slot

if TYPE_CHECKING:
    from minisweagent import Agent

    from valve_plugin.rollouts.workspace import Workspace

SCRIPTED_MODEL = "openai/valve-scripted"
"""The simulated model; only it is told which rollout asks."""
ROLLOUT_HEADER = "X-Valve-Rollout"
"""`<task id>/<ordinal>`: the draws of the simulated model depend on both."""

RESULT, TRAJECTORY, LOG = "result.json", "trajectory.traj.json", "log.txt"


class RolloutSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the agent."""

    task_id: str
    ordinal: int
    issue: str
    block: str
    """The context that ends the system message, verbatim; "": none."""
    workspace: Workspace
    settings: Settings
    wall_seconds: float = 4 * 3600.0
    """Backstop for the whole run. Reaching it is the infrastructure's failure: agents are limited by steps."""


class RolloutResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a run of the agent ended."""

    ended: Ended
    reason: str = ""
    """Why there is nothing to grade, in one line; first what a person can do, where the provider failed."""
    fault: FaultKind = ""
    exit_status: str = ""
    steps: int = 0
    """Model calls."""
    cost_usd: float = 0.0
    model: str = ""
    trajectory: bytes = b""
    """JSON in mini's own format; empty when the run ended before its first step."""


def work(spec: RolloutSpec, out: Path, environ: Mapping[str, str]) -> None:
    """Entry point of the child: run, write the result into `out`, exit. Nothing is printed.

    Args:
        spec: what to run.
        out: directory for the result, the trajectory and a log.
        environ: the complete process environment, keys included; commands of the agent see none of it.
    """
    os.setsid()  # a group of its own: one signal ends it, and the terminal's do not reach it
    _log_to(out / LOG)
    _set_environment(environ)
    result = _run(spec, out)
    temporary = out / f"{RESULT}.part"
    temporary.write_bytes(canonical(result))
    temporary.replace(out / RESULT)


def _run(spec: RolloutSpec, out: Path) -> RolloutResult:
    agent: Any = None
    error: list[str] = []
    message = shown = ""
    try:
        agent = build(spec, out / TRAJECTORY, waits.noting(out), paid.noting(out))
        agent.run(spec.issue, **filled([spec.block]))
    except Exception as e:  # noqa: BLE001  # the rollout boundary: whatever it was becomes this rollout's outcome
        error, message = [c.__name__ for c in type(e).__mro__], str(e)
        shown = waits.shown(e, spec.settings.model_kwargs)
    finally:
        if hasattr(getattr(agent, "env", None), "cleanup"):
            agent.env.cleanup()
    last = agent.messages[-1].get("extra", {}) if agent is not None and agent.messages else {}
    status = str(last.get("exit_status", "")) or (error[0] if error else "")
    ended, reason = classify(status, error, message)
    asked = getattr(agent, "model", None)
    model = getattr(asked, "config", None)
    failed: Fault | None = asked.fault if asked and ended == "errored" else None
    if failed:
        name, kwargs = str(getattr(model, "model_name", "")), getattr(model, "model_kwargs", {})
        todo = advice(failed.kind, name, kwargs, os.environ, failed.asked)
        reason = one_line(f"{todo} ({shown})")
    return RolloutResult(
        ended=ended,
        reason=reason,
        fault=failed.kind if failed else "",
        exit_status=status,
        steps=getattr(agent, "n_calls", 0),
        cost_usd=getattr(agent, "cost", 0.0),
        model=str(getattr(model, "model_name", "")),
    )


def build(
    spec: RolloutSpec, trajectory: Path, tell: waits.Tell = waits.tell, note: paid.Note = lambda usd: None
) -> Agent:
    """Return mini's agent for a rollout, with the slot for the context at the end of its system template."""
    from minisweagent.agents import get_agent
    from minisweagent.models import get_model

    from valve_plugin.rollouts.environment import environment_for

    config = mini_config(spec)
    environment = environment_for(spec.settings, spec.workspace, config["environment"])
    options = config["agent"] | {
        "output_path": trajectory,
        "system_template": with_slot(config["agent"]["system_template"]),
    }
    at_most = tries(spec.settings, os.environ)
    tell_mini_to_try_once()
    model = Patient(get_model(config=config["model"]), at_most, spec.settings.model_pause, tell, note)
    return get_agent(model, environment, options, default_type="default")


def mini_config(spec: RolloutSpec) -> dict[str, Any]:
    """Return mini's configuration of a rollout: mini.yaml, then `mini_config`, then the settings that name a thing."""
    from minisweagent.config import builtin_config_dir
    from minisweagent.utils.serialize import recursive_merge

    from valve_plugin.rollouts.mini_config import read

    settings = spec.settings
    model: dict[str, Any] = {"model_kwargs": settings.model_kwargs}
    if settings.model:
        model["model_name"] = settings.model
    if settings.model_class:
        model["model_class"] = settings.model_class
    if tracking := os.environ.get("MSWEA_COST_TRACKING"):  # mini reads it at import, which happened in the fork server
        model["cost_tracking"] = tracking
    if settings.model == SCRIPTED_MODEL:
        model["model_kwargs"] = recursive_merge(
            settings.model_kwargs, {"extra_headers": {ROLLOUT_HEADER: f"{spec.task_id}/{spec.ordinal}"}}
        )
    limits = {"step_limit": settings.step_limit, "cost_limit": settings.cost_limit}
    default = str(builtin_config_dir / "mini.yaml")  # by its bare name, one in the working directory would win
    merged: dict[str, Any] = recursive_merge(read([default, *settings.mini_config]), {"agent": limits, "model": model})
    if merged["model"].get("model_class", "") in ("", "litellm", "litellm_textbased"):
        # Else the client beneath litellm tries each call three times, out of sight.
        merged["model"]["model_kwargs"] = {"max_retries": 0, **insisted(merged["model"]["model_kwargs"])}
    return merged


def _set_environment(environ: Mapping[str, str]) -> None:
    """Become the parent's present environment: ours is the fork server's, as old as its start."""
    os.environ.clear()
    os.environ.update(environ)
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.update(MSWEA_SILENT_STARTUP="1", MSWEA_CONFIGURED="true")
    mini_settings.load()


def _log_to(path: Path) -> None:
    """Send what libraries print to a file: our parent's standard output may be a stream of results."""
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("ab") as log, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
