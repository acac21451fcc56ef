"""Several isolated attempts at a person's task. The best one that passes the check is applied to their files.

Each attempt runs mini's own agent with the person's configuration, in a sandboxed copy of the starting tree. The
person's directory is changed only once, at the end, and only if nothing else changed in it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from valve_plugin.agents import process
from valve_plugin.agents.protocol import RolloutResult, RolloutSpec
from valve_plugin.config import MINI, Settings
from valve_plugin.errors import InfrastructureError, SandboxError, TaskError, ValveError
from valve_plugin.live import record
from valve_plugin.live.check import Check, CheckResult, open_copy, shell_environment
from valve_plugin.live.trees import Base
from valve_plugin.records import Attempt
from valve_plugin.rollouts.attempt import log_defect
from valve_plugin.rollouts.workers import Workers, stop_event
from valve_plugin.sandbox import workspace
from valve_plugin.sandbox.bubblewrap import choose
from valve_plugin.words import one_line, plural

_STOPPED = RolloutResult(
    ended="errored",
    exit_status="KeyboardInterrupt",
    reason="stopped by the person; its steps and what they cost are not known",
)
"""Result of an attempt that was stopped with Ctrl-C; its steps and cost are not known."""


@dataclass(frozen=True)
class FinishedAttempt:
    """One finished attempt."""

    number: int
    """Counted from 1."""
    attempt: Attempt
    end: str
    """The final tree."""
    result: RolloutResult


def run_attempts(run: record.Run, agent: Any) -> Mapping[str, Any]:
    """Run `settings.attempts` attempts, record them, and apply the best; return a result like that of `agent.run`.

    The agent object gets the messages of the applied attempt (or of the last one), and the cost and calls of all.
    """
    run.recorded = True
    try:
        mode = getattr(agent.config, "mode", "yolo")
        if mode != "yolo":
            raise ValveError(f"valve.attempts runs unattended, but the agent is in mode {mode!r}; add -y")
        if run.base is None:
            why = "; ".join(run.notes) or "the agent does not work on this machine's files"
            raise ValveError(f"valve.attempts needs copies of the directory: {why}")
        choose(run.settings)
        base = run.base
        if not run.settings.check:
            run.say("no check was given (valve.check): the attempts are recorded, but none is applied")
        record.require_grading(run, agent)
    except ValveError as e:
        return record.refused(run, e)
    except KeyboardInterrupt:
        run.say("stopped before the first attempt: nothing was recorded, spent or changed")
        raise
    settings = attempt_settings(run.settings, agent, Path(run.scratch.name), base)
    job = partial(_attempt, run, base, settings, record.next_ordinal(run.local, run.task_id, run.context.hash))
    try:
        with Workers(run.settings.workers) as executor:
            jobs = [executor.submit(partial(job, number)) for number in range(1, run.settings.attempts + 1)]
            for future in as_completed(jobs):
                _report(run, future.result())
            done = [future.result() for future in jobs]
    except KeyboardInterrupt:
        run.say(f"stopped: nothing was applied; {plural(len(run.kept), 'attempt')} recorded{_list_hint(run)}")
        raise
    chosen = None
    if check := run.check:
        chosen = best(done, lambda end: _changed_lines(base, check, end))
        if chosen is not None:
            _apply(run, base, check, chosen)
        else:
            run.say("no attempt passes the check; your files are unchanged")
    for one in done:
        record.learn_from(run.bank_dir, run.local, one.attempt, run.settings.learn, run.say)
    shown = chosen or done[-1]
    if shown.attempt.id in run.kept:
        run.say(f"{record.show_hint(shown.attempt, run.settings, f'attempt {shown.number}')}{_list_hint(run)}")
    return _hand_over(agent, done, shown)


def _list_hint(run: record.Run) -> str:
    return f"; {record.show_command('list', run.settings)} lists them" if run.kept else ""


def attempt_settings(settings: Settings, agent: Any, scratch: Path, base: Base) -> Settings:
    """Return settings for rollouts with the person's agent and model. They use a new file in `scratch`."""
    model, own, environment = (
        record.plain_config(agent.model),
        record.plain_config(agent),
        record.plain_config(agent.env),
    )
    interactive = ("output_path", "mode", "confirm_exit", "whitelist_actions")
    sections = {
        "agent": {name: value for name, value in own.items() if name not in interactive},
        "model": {**model, "model_class": _class_path(agent.model)},
        "environment": {
            "env": {**environment.get("env", {}), **shell_environment(base)},
            "start": base.below,
            **({"timeout": environment["timeout"]} if "timeout" in environment else {}),
        },
    }
    if not type(agent).__module__.startswith(("minisweagent.", "__main__")):  # a class that a child can import
        sections["agent"]["agent_class"] = _class_path(agent)
    path = scratch / "attempt.yaml"
    path.write_text(json.dumps(sections, default=str))  # JSON is YAML
    return msgspec.structs.replace(
        settings,
        agent=MINI,
        model=str(model.get("model_name", "")),
        model_class="",
        model_kwargs={},
        mini_config=(str(path),),
        step_limit=int(own.get("step_limit") or settings.step_limit),
        cost_limit=float(own.get("cost_limit") or 0.0),
    )


def _class_path(part: Any) -> str:
    return f"{type(part).__module__}.{type(part).__qualname__}"


def best(done: Sequence[FinishedAttempt], lines: Callable[[str], int]) -> FinishedAttempt | None:
    """Return the resolved attempt with the fewest changed lines (the earlier one of equals), or None."""
    passing = [one for one in done if one.attempt.outcome == "resolved"]
    return min(passing, key=lambda one: (lines(one.end), one.number), default=None)


def _changed_lines(base: Base, check: Check, end: str) -> int:
    return sum(change.lines for change in base.trees.changes(base.tree, check.graded_tree(end)[0]))


def _attempt(run: record.Run, base: Base, settings: Settings, first: int, number: int) -> FinishedAttempt:
    """Make one attempt, grade and record it; `first` is the ordinal of number 1."""
    run.say(f"attempt {number} of {run.settings.attempts} starts")
    started, ordinal = time.monotonic(), first + number - 1
    result, end = RolloutResult(ended="errored", exit_status="Died"), base.tree
    try:
        with open_copy(base, base.tree, choose(run.settings)) as place:
            spec = RolloutSpec(
                task_id=run.task_id,
                ordinal=ordinal,
                issue=run.task,
                block=run.context.text,
                workspace=place,
                settings=settings,
            )
            try:
                result = process.run(spec, stop=stop_event())
            except CancelledError:
                result = _STOPPED
            end = base.trees.apply(base.tree, workspace.diff(place))
        ended = None if result is _STOPPED else result.ended
        graded = record.grade(run, end, ended, result.reason)
    except TaskError as e:
        graded = CheckResult("unresolved", one_line(str(e)))
    except (InfrastructureError, SandboxError, OSError) as e:
        graded = CheckResult("errored", one_line(str(e)))
    except ValveError:
        raise
    except Exception as e:  # noqa: BLE001  # a bug in VALVE ends this attempt, not the whole run
        graded = CheckResult("errored", log_defect(e, f"live attempt {number}", run.redactor(None)))
    return FinishedAttempt(number, _record(run, end, result, graded, ordinal, time.monotonic() - started), end, result)


def _record(
    run: record.Run, end: str, result: RolloutResult, graded: CheckResult, ordinal: int, seconds: float
) -> Attempt:
    """Record an attempt and return it. An attempt that cannot be recorded may still be applied."""
    make = partial(
        record.make_attempt, run, graded, ordinal=ordinal, seconds=seconds, exit_status=result.exit_status,
        steps=result.steps, cost_usd=result.cost_usd, model=result.model,
    )  # fmt: skip
    try:
        trajectory = json.loads(result.trajectory or b"{}")
        redactor = run.redactor(trajectory.get("info"))
        patch, notes = record.readable_patch(run, end, redactor)
        kept = record.keep_attempt(run.local, make(notes, patch=patch), trajectory, redactor)
        run.kept.append(kept.id)
        return kept
    except (ValveError, OSError, ValueError) as e:
        run.say(f"this attempt was not recorded: {one_line(str(e))}")
        return make(())


def _report(run: record.Run, done: FinishedAttempt) -> None:
    took = f"{done.attempt.seconds:.0f} s, {plural(done.attempt.steps, 'step')}"
    outcome = f"{done.attempt.outcome}: {done.attempt.reason}"
    run.say(f"attempt {done.number} of {run.settings.attempts} ended after {took}: {outcome}")


def _apply(run: record.Run, base: Base, check: Check, chosen: FinishedAttempt) -> None:
    """Apply the graded patch to the person's files if these are unchanged; else say where the patch is."""
    trees = base.trees
    graded, dropped = check.graded_tree(chosen.end)
    paths = [change.path for change in trees.changes(base.tree, graded)]
    try:
        if meanwhile := [change.path for change in trees.changes(base.tree, trees.capture())]:
            raise InfrastructureError(f"files changed during the attempts: {', '.join(meanwhile[:5])}")
        trees.apply_to_root(trees.patch(base.tree, graded))
    except (InfrastructureError, OSError) as e:
        run.say(f"nothing was applied: {one_line(str(e))}; {_show_patch(run, chosen.attempt)}")
        return
    lines = _changed_lines(base, check, chosen.end)
    run.say(f"applied attempt {chosen.number}: {lines} changed lines in {', '.join(paths)}")
    if dropped:
        where = _show_patch(run, chosen.attempt)
        run.say(f"its changes of tests were not graded or applied: {', '.join(dropped)}; {where}")


def _show_patch(run: record.Run, attempt: Attempt) -> str:
    if attempt.id not in run.kept:
        return "its patch was not kept"
    return f"{record.show_command('show', run.settings, attempt.id, '--patch')} prints the whole patch"


def _hand_over(agent: Any, done: Sequence[FinishedAttempt], shown: FinishedAttempt) -> Mapping[str, Any]:
    """Give the agent object the messages of the shown attempt and the cost of all; return the run's result."""
    trajectory = json.loads(shown.result.trajectory or b"{}")
    agent.messages = trajectory.get("messages", [])
    agent.cost += sum(one.result.cost_usd for one in done)
    agent.n_calls += sum(one.result.steps for one in done)
    if hasattr(agent, "save"):
        agent.save(getattr(agent.config, "output_path", None))
    submission = trajectory.get("info", {}).get("submission", "")
    return {"exit_status": shown.result.exit_status, "submission": submission}
