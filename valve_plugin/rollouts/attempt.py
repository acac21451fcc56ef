"""One rollout from task to record: workspace, agent, patch, grade."""

from __future__ import annotations

import os
import time
from concurrent.futures import CancelledError
from importlib.metadata import version
from pathlib import Path
from typing import Any

from valve_plugin.bank.redact import Redactor
from valve_plugin.codec import digest, digest_bytes
from valve_plugin.config import SAMPLING, Settings
from valve_plugin.errors import InfrastructureError, SandboxError, TaskError, ValveError
from valve_plugin.records import Attempt, Context, Source, Task
from valve_plugin.rollouts import mini_settings, sandbox, trajectories, workspace
from valve_plugin.rollouts.defects import noted
from valve_plugin.rollouts.executors import stopping
from valve_plugin.rollouts.exits import one_line
from valve_plugin.rollouts.grade import Grade, grade
from valve_plugin.rollouts.runner import RolloutResult, RolloutSpec, run
from valve_plugin.tasks.image import here, placed
from valve_plugin.tasks.repository import Prepared, prepared


def attempt(settings: Settings, task: Task, context: Context, ordinal: int, source: Source) -> Attempt:
    """Run the agent once on a task and grade its patch.

    The agent sees the task's files in one commit, the issue and the context: no history, no hidden tests, no other
    attempts, no keys. What it or its context does is `unresolved`; only the host's or provider's failure is `errored`.

    Args:
        settings: model, limits, sandbox.
        task: the row.
        context: the block that ends the system message.
        ordinal: this rollout's number for (task, block).
        source: what the rollout is for.

    Raises:
        TaskError: the task's repository is not prepared on this machine, or its patch does not apply.
        SandboxError: there is no sandbox, and running without one was not allowed.
        CancelledError: the executor that runs it was killed.
    """
    started = time.monotonic()
    mini_settings.load()
    where = placed(prepared(task.repo), task, settings)
    sandbox.choose(settings, where.image)  # refuse before anything runs
    result, patch, graded = _run_and_grade(settings, task, context, ordinal, where)
    rollout_id = rollout_key(settings, task, context, ordinal)[:16]
    redact = Redactor.of(os.environ, config=settings.model_kwargs)
    trajectory = redact(result.trajectory.decode("utf-8", "replace")).encode()
    return Attempt(
        id=rollout_id,
        task_id=task.instance_id,
        ordinal=ordinal,
        source=source,
        outcome=graded.outcome,
        reason=one_line(redact(graded.reason)),
        fault=result.fault if graded.outcome == "errored" else "",
        patch=patch,
        dropped_paths=graded.dropped_paths,
        exit_status=result.exit_status,
        steps=result.steps,
        cost_usd=result.cost_usd,
        seconds=time.monotonic() - started,
        recorded_at=time.time(),
        model=result.model,
        task_text=task.problem_statement,
        context_hash=context.hash,
        context_items=context.items,
        trajectory=trajectories.keep(rollout_id, trajectory),
    )


def rollout_key(settings: Settings, task: Task, context: Context, ordinal: int) -> str:
    """Return the digest (64 hex digits) of all that determines a rollout; its first 16 are the attempt's id.

    Args:
        settings: the solver's part counts, see `solver_configuration`.
        task: id, content and issue count.
        context: the block's bytes count.
        ordinal: number of the rollout for (task, block).
    """
    about = [task.instance_id, task.content_hash, digest_bytes(task.problem_statement.encode("utf-8", "replace"))]
    return digest([about, context.hash, ordinal, solver_configuration(settings) | _surroundings(settings, task)])


def _surroundings(settings: Settings, task: Task) -> dict[str, Any]:
    """Return what the agent finds around the task, as far as it is not the default."""
    image = here(task, settings)
    return ({"image": image[1]} if image else {}) | ({"keep_history": True} if settings.keep_history else {})


def solver_configuration(settings: Settings) -> dict[str, Any]:
    """Return what of the settings (and of the files and versions they name) changes how the agent solves a task."""
    mini_settings.load()  # where no model is named, mini's default counts
    return {
        "mini": version("mini-swe-agent"),
        "model": settings.model or os.environ.get("MSWEA_MODEL_NAME", ""),
        "model_class": settings.model_class,
        "model_kwargs": settings.model_kwargs,
        "mini_config": [[given, _content(given)] for given in settings.mini_config],
        "step_limit": settings.step_limit,
        "cost_limit": settings.cost_limit,
    }


def solver_of(settings: Settings) -> str:
    """Return the digest (64 hex digits) of the solver as ledgers name it, without addresses, keys and time limits.

    Where a model is served, and how long one waits for it, differs between machines that have the same ledger.
    """
    sampling = {name: value for name, value in settings.model_kwargs.items() if name in SAMPLING}
    return digest(solver_configuration(settings) | {"model_kwargs": sampling})


def _run_and_grade(
    settings: Settings, task: Task, context: Context, ordinal: int, where: Prepared
) -> tuple[RolloutResult, str, Grade]:
    result, patch = RolloutResult(ended="errored", exit_status="NotStarted"), ""
    try:
        with workspace.open(where, task, keep_history=settings.keep_history) as place:
            spec = RolloutSpec(
                task_id=task.instance_id,
                ordinal=ordinal,
                issue=task.problem_statement,
                block=context.text,
                workspace=place,
                settings=settings,
            )
            result = run(spec, stop=stopping())
            patch, too_large = _patch(place)
        if result.ended != "submitted":
            return result, patch, Grade(outcome=result.ended, reason=result.reason)
        if too_large:
            return result, patch, Grade(outcome="unresolved", reason=too_large)
        return result, patch, grade(where, task, patch, settings)
    except (InfrastructureError, SandboxError, OSError) as e:
        return result, patch, Grade(outcome="errored", reason=f"{type(e).__name__}: {e}")
    except (CancelledError, ValveError):
        raise
    except Exception as e:  # noqa: BLE001  # a defect of ours ends this attempt, not the run with all the others
        redact = Redactor.of(os.environ, config=settings.model_kwargs)
        reason = noted(e, f"attempt {ordinal} of {task.instance_id}", redact)
        return result, patch, Grade(outcome="errored", reason=reason)


def _patch(place: workspace.Workspace) -> tuple[str, str]:
    """Return (patch, why there is none); a patch beyond all reason is the agent's doing."""
    try:
        return workspace.diff(place), ""
    except TaskError as e:
        return "", str(e)


def _content(mini_config: str) -> str:
    """The hash of a configuration file; "" for KEY=VALUE and for the files that come with mini."""
    path = Path(mini_config)
    return digest_bytes(path.read_bytes()) if "=" not in mini_config and path.is_file() else ""
