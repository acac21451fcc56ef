"""One rollout, from task to record: workspace, agent, patch, grade and trajectory."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from valve_plugin.agents import mini, outside, process
from valve_plugin.agents.protocol import RolloutResult, RolloutSpec
from valve_plugin.codec import digest, digest_bytes
from valve_plugin.config import MINI, SAMPLING, Settings, model_of
from valve_plugin.errors import BankNotFoundError, InfrastructureError, SandboxError, TaskError, ValveError
from valve_plugin.files import make_private_dir, pack, unpack, write_atomic
from valve_plugin.paths import data_dir
from valve_plugin.records import Attempt, Context, Source, Task
from valve_plugin.redact import Redactor
from valve_plugin.rollouts.workers import stop_event
from valve_plugin.sandbox import bubblewrap, workspace
from valve_plugin.tasks.grading.grade import Grade, grade
from valve_plugin.tasks.image import available_image, place_in_image
from valve_plugin.tasks.repository import PreparedRepository, find_prepared
from valve_plugin.tasks.states import open_task
from valve_plugin.words import one_line

_DEFECTS = "defects.log"
_MAX_DEFECTS_BYTES = 1_000_000
_MAX_TRAJECTORIES = 4000
"""Maximum number of files. Beyond it the oldest half is removed; banks have their own copies."""


def attempt(settings: Settings, task: Task, context: Context, ordinal: int, source: Source) -> Attempt:
    """Run the agent once on a task and grade its patch.

    The agent sees the task's files in one commit, the issue and the context, but no history, hidden tests, other
    attempts or keys. Failures of the agent are `unresolved`; only those of host or provider are `errored`.

    Raises:
        TaskError: the task's repository is not prepared on this machine, or its patch does not apply.
        SandboxError: there is no sandbox, and running without one is not allowed.
        CancelledError: the rollout was cancelled, or its executor killed.
    """
    started = time.monotonic()
    mini.load_user_settings()
    where = place_in_image(find_prepared(task.repo), task, settings)
    bubblewrap.choose(settings, where.image)  # refuse before anything runs
    redact = Redactor.of(os.environ, config=settings.model_kwargs)
    result, patch, graded = _run_and_grade(settings, task, context, ordinal, where, redact)
    rollout_id = rollout_key(settings, task, context, ordinal)[:16]
    text = result.trajectory.decode("utf-8", "replace")
    try:  # it stays JSON: its strings are redacted, not the text that escapes them
        trajectory = json.dumps(redact.tree(json.loads(text)), indent=2).encode()
    except (ValueError, RecursionError):
        trajectory = redact(text).encode()
    return Attempt(
        id=rollout_id,
        task_id=task.instance_id,
        ordinal=ordinal,
        source=source,
        outcome=graded.outcome,
        reason=one_line(redact(graded.reason)),
        failed_tests=tuple(replace(t, reason=one_line(redact(t.reason))[:500]) for t in graded.failed_tests),
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
        trajectory=keep_trajectory(rollout_id, trajectory),
    )


def _run_and_grade(
    settings: Settings, task: Task, context: Context, ordinal: int, where: PreparedRepository, redact: Redactor
) -> tuple[RolloutResult, str, Grade]:
    """Return (how the agent ended, its patch, the grade)."""
    result, patch = RolloutResult(ended="errored", exit_status="NotStarted"), ""
    try:
        with open_task(where, task, keep_history=settings.keep_history) as place:
            spec = RolloutSpec(
                task_id=task.instance_id,
                ordinal=ordinal,
                issue=task.problem_statement,
                block=context.text,
                workspace=place,
                settings=settings,
            )
            result = process.run(spec, stop=stop_event())
            try:
                patch, too_large = workspace.diff(place), ""
            except TaskError as e:  # the patch exceeds the limits: the agent is at fault
                too_large = str(e)
        if result.ended != "submitted":
            return result, patch, Grade(outcome=result.ended, reason=result.reason)
        if too_large:
            return result, patch, Grade(outcome="unresolved", reason=too_large)
        return result, patch, grade(where, task, patch, settings)
    except (InfrastructureError, SandboxError, OSError) as e:
        return result, patch, Grade(outcome="errored", reason=f"{type(e).__name__}: {e}")
    except (CancelledError, ValveError):
        raise
    except Exception as e:  # noqa: BLE001  # a bug in VALVE ends this attempt, not the whole run
        reason = log_defect(e, f"attempt {ordinal} of {task.instance_id}", redact)
        return result, patch, Grade(outcome="errored", reason=reason)


def log_defect(error: Exception, activity: str, redact: Callable[[str], str]) -> str:
    """Append the traceback of an unexpected error to `defects.log` in user data; return a one-line message."""
    lines = "".join(traceback.format_exception(error))
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    with suppress(OSError):
        path = data_dir() / _DEFECTS
        path.touch(mode=0o600)
        path.chmod(0o600)
        full = path.stat().st_size > _MAX_DEFECTS_BYTES
        with path.open("w" if full else "a", encoding="utf-8", errors="replace") as file:
            file.write(redact(f"{when} {activity}\n{lines}\n"))
    message = one_line(redact(f"{type(error).__name__}: {error}"))[:200]
    return f"{message} (a defect; its traceback is in {_DEFECTS} of the user data directory, please report it)"


# Keys of rollouts


def rollout_key(settings: Settings, task: Task, context: Context, ordinal: int) -> str:
    """Return the digest (64 hex digits) of all that determines a rollout; its first 16 are the attempt's id.

    Of the settings only the solver's count (`solver_configuration`), of the context only the bytes of the block.
    """
    content = [task.instance_id, task.content_hash, digest_bytes(task.problem_statement.encode("utf-8", "replace"))]
    solver = solver_configuration(settings)
    if image := available_image(task, settings):
        solver["image"] = image[1]
    if settings.keep_history:
        solver["keep_history"] = True
    return digest([content, context.hash, ordinal, solver])


def solver_configuration(settings: Settings) -> dict[str, Any]:
    """Return the settings, file digests and versions that influence how the agent solves a task."""
    if not settings.model:
        mini.load_user_settings()  # sets mini's default model
    files = [given for given in settings.mini_config if "=" not in given and Path(given).is_file()]  # not mini's own
    return {
        **({"mini": _mini_version()} if settings.agent == MINI else outside.solver(settings)),
        "model": model_of(settings),
        "model_class": settings.model_class,
        "model_kwargs": settings.model_kwargs,
        "mini_config": [
            [given, digest_bytes(Path(given).read_bytes()) if given in files else ""] for given in settings.mini_config
        ],
        "step_limit": settings.step_limit,
        "cost_limit": settings.cost_limit,
    }


@cache
def _mini_version() -> str:
    return version("mini-swe-agent")  # which parses the package's metadata each time


def solver_of(settings: Settings) -> str:
    """Return the digest (64 hex digits) of the solver in ledgers, without addresses, keys and time limits.

    Machines with the same ledger may use different servers and time limits.
    """
    sampling = {name: value for name, value in settings.model_kwargs.items() if name in SAMPLING}
    return digest(solver_configuration(settings) | {"model_kwargs": sampling})


# Trajectories of finished rollouts, redacted and compressed in user data, until a bank's local store takes them


def keep_trajectory(rollout_id: str, trajectory: bytes) -> str:
    """Store a trajectory and return its file name. The name includes a content hash, because banks may share ids."""
    if not trajectory:
        return ""
    name = f"{rollout_id}-{digest_bytes(trajectory)[:12]}.json.gz"
    folder = data_dir() / "rollouts"
    make_private_dir(folder)
    write_atomic(folder / name, pack(trajectory))
    with os.scandir(folder) as entries:
        kept = [entry for entry in entries if entry.name.endswith(".json.gz")]
    if len(kept) > _MAX_TRAJECTORIES:
        with suppress(FileNotFoundError):  # another process removes some at the same time
            for entry in sorted(kept, key=lambda e: e.stat().st_mtime)[: _MAX_TRAJECTORIES // 2]:
                os.unlink(entry.path)
    return name


def read_trajectory(attempt: Attempt) -> bytes:
    """Return the stored trajectory of a rollout's attempt: JSON in mini's format.

    Raises:
        BankNotFoundError: it has no trajectory, or the file was removed.
        BankError: the file is damaged.
    """
    name = attempt.trajectory
    if not name or name != Path(name).name:
        raise BankNotFoundError(f"attempt {attempt.id} has no trajectory (it names {name!r})")
    return unpack(data_dir() / "rollouts" / name, "trajectory")
