"""Several isolated attempts at a person's task; the best one that passes their check is applied to their files.

Every attempt is mini's own agent with the person's own configuration, in a sandboxed copy of the tree the run started
from. Their directory is written once, at the end, if nothing changed in it meanwhile; else it is left as it is.
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

from valve_plugin.bank import files
from valve_plugin.config import Settings
from valve_plugin.errors import InfrastructureError, SandboxError, TaskError, ValveError
from valve_plugin.records import Attempt
from valve_plugin.rollouts import live, workspace
from valve_plugin.rollouts.defects import noted
from valve_plugin.rollouts.executors import LocalExecutor, stopping
from valve_plugin.rollouts.exits import Graded, one_line
from valve_plugin.rollouts.live import Base, Run
from valve_plugin.rollouts.live_check import FAILS_NOW, Check, in_mini
from valve_plugin.rollouts.live_place import copy, environment
from valve_plugin.rollouts.live_record import command, keep, last_lines, learn_from, shown_by
from valve_plugin.rollouts.runner import RolloutResult, RolloutSpec
from valve_plugin.rollouts.runner import run as run_agent
from valve_plugin.rollouts.sandbox import choose
from valve_plugin.words import plural

NOT_RUN = "NotRun"
"""Exit status of a run that was refused before it began."""
_SHOWN_LINES = 15
"""Of what a check printed that cannot grade: no record keeps them."""
STOPPED = RolloutResult(ended="errored", exit_status="KeyboardInterrupt")
"""Of an attempt that Ctrl-C ended: its process is gone, and with it what it had noted."""


@dataclass(frozen=True)
class Done:
    """One finished attempt."""

    number: int
    """From 1."""
    attempt: Attempt
    end: str
    """Its tree."""
    result: RolloutResult


def run_attempts(run: Run, agent: Any) -> Mapping[str, Any]:
    """Run `settings.attempts` attempts, record them, and apply the best. Returns what `agent.run` would.

    The agent object takes over messages, cost and calls of the attempt that was applied, or of the last one.
    """
    run.recorded = True
    try:
        base = _ready(run, agent)
        check = Check(run.settings, base)
        _require_grading(run, agent, check)
    except ValveError as e:
        run.say(f"no attempt was made, and nothing was spent or changed: {in_mini(e)}")
        return {"exit_status": NOT_RUN, "submission": "", "exit_code": e.exit_code}
    except KeyboardInterrupt:
        run.say("stopped before the first attempt: nothing was recorded, spent or changed")
        raise
    settings = as_settings(run.settings, agent, Path(run.scratch.name), base)
    try:
        with LocalExecutor(run.settings.workers) as executor:
            numbers = range(1, run.settings.attempts + 1)
            job = partial(_attempt, run, base, settings, check, live.next_ordinal(run))
            jobs = [executor.submit(partial(job, number)) for number in numbers]
            for future in as_completed(jobs):
                _told(run, future.result())
            done = [future.result() for future in jobs]
    except KeyboardInterrupt:
        run.say(f"stopped: nothing was applied; {plural(len(run.kept), 'attempt')} recorded{_listed(run)}")
        raise
    chosen = best(done, lambda end: _lines(base, check, end))
    if chosen is not None:
        _apply(run, base, check, chosen)
    elif run.settings.check:
        run.say("no attempt passes the check: your files are as they were")
    for one in done:
        learn_from(run.bank_dir, run.local, one.attempt, run.settings.learn, run.say)
    shown = chosen or done[-1]
    if shown.attempt.id in run.kept:
        run.say(f"{shown_by(shown.attempt, run.settings, f'attempt {shown.number}')}{_listed(run)}")
    return _hand_over(agent, done, shown)


def _ready(run: Run, agent: Any) -> Base:
    """Return what the attempts start from.

    Raises:
        ValveError: attempts are not possible here.
    """
    mode = getattr(agent.config, "mode", "yolo")
    if mode != "yolo":
        raise ValveError(f"valve.attempts runs unattended, and the agent is in mode {mode!r}; add -y")
    if run.base is None:
        why = "; ".join(run.notes) or "the agent does not work on this machine's files"
        raise ValveError(f"valve.attempts needs copies of the directory: {why}")
    choose(run.settings)
    return run.base


def _require_grading(run: Run, agent: Any, check: Check) -> None:
    """Before anything is spent: without a check the attempts are made as asked, with one it has to be able to grade.

    Raises:
        ValveError: it cannot.
    """
    if not run.settings.check:
        run.say("no check was named (valve.check): the attempts are recorded, and none is applied")
        return
    run.say("trying the check on the starting tree")
    if reason := check.unusable():
        redactor = run.redactor([plain_config(part) for part in (agent.model, agent.env, agent)])
        for line in last_lines(redactor(check.printed_at_base)).splitlines()[-_SHOWN_LINES:]:
            run.say(f"the check printed: {line}")
        raise ValveError(f"the check cannot grade: {reason}. {FAILS_NOW}; without valve.check they are made ungraded")


def _listed(run: Run) -> str:
    return f"; {command('list', run.settings)} lists them" if run.kept else ""


def as_settings(settings: Settings, agent: Any, scratch: Path, base: Base) -> Settings:
    """Return settings that make a rollout's agent and model what the person's are, by way of a file in `scratch`."""
    model, own = plain_config(agent.model), plain_config(agent)
    surroundings = plain_config(agent.env)
    sections = {
        "agent": {
            k: v for k, v in own.items() if k not in ("output_path", "mode", "confirm_exit", "whitelist_actions")
        },
        "model": {**model, "model_class": _path_of(agent.model)},
        "environment": {
            "env": {**surroundings.get("env", {}), **environment(base)},
            "start": base.below,
            **({"timeout": surroundings["timeout"]} if "timeout" in surroundings else {}),
        },
    }
    if not type(agent).__module__.startswith(("minisweagent.", "__main__")):  # a class that a child can import
        sections["agent"]["agent_class"] = _path_of(agent)
    path = scratch / "attempt.yaml"
    path.write_text(json.dumps(sections, default=str))  # JSON is YAML
    return msgspec.structs.replace(
        settings,
        model=str(model.get("model_name", "")),
        model_class="",
        model_kwargs={},
        mini_config=(str(path),),
        step_limit=int(own.get("step_limit") or settings.step_limit),
        cost_limit=float(own.get("cost_limit") or 0.0),
    )


def plain_config(part: Any) -> dict[str, Any]:
    """Return the configuration of an agent, model or environment as plain data."""
    config = getattr(part, "config", None)
    dump = getattr(config, "model_dump", None)
    return dict(dump(mode="json") if dump else vars(config) if config is not None else {})


def best(done: Sequence[Done], lines: Callable[[str], int]) -> Done | None:
    """Return the resolved attempt with the fewest changed lines, the earlier one among equals; None: none passed."""
    passing = [one for one in done if one.attempt.outcome == "resolved"]
    return min(passing, key=lambda one: (lines(one.end), one.number), default=None)


def _lines(base: Base, check: Check, end: str) -> int:
    return sum(change.lines for change in base.trees.changes(base.tree, check.graded_tree(end)[0]))


def _attempt(run: Run, base: Base, settings: Settings, check: Check, first: int, number: int) -> Done:
    run.say(f"attempt {number} of {run.settings.attempts} starts")
    started, ordinal = time.monotonic(), first + number - 1
    result, end = RolloutResult(ended="errored", exit_status="Died"), base.tree
    try:
        with copy(base, base.tree, choose(run.settings)) as place:
            spec = RolloutSpec(
                task_id=run.task_id,
                ordinal=ordinal,
                issue=run.task,
                block=run.context.text,
                workspace=place,
                settings=settings,
            )
            try:
                result = run_agent(spec, stop=stopping())
            except CancelledError:
                result = STOPPED
            end = base.trees.applied(base.tree, workspace.diff(place))
        graded = _graded(run, check, end, result)
    except TaskError as e:
        graded = Graded("unresolved", one_line(str(e)))
    except (InfrastructureError, SandboxError, OSError) as e:
        graded = Graded("errored", one_line(str(e)))
    except ValveError:
        raise
    except Exception as e:  # noqa: BLE001  # as in `attempt`
        graded = Graded("errored", noted(e, f"live attempt {number}", run.redactor(None)))
    facts = {"ordinal": ordinal, "seconds": time.monotonic() - started}
    return Done(number, _recorded(run, end, result, graded, facts), end, result)


def _graded(run: Run, check: Check, end: str, result: RolloutResult) -> Graded:
    if result is STOPPED:
        return Graded("ungraded", "stopped by the person; its steps and what they cost are not known")
    if result.ended == "errored":
        return Graded("errored", result.reason)
    if not run.settings.check:
        return Graded("ungraded", result.reason or "no check was named (valve.check)")
    return check.grade(end, unfinished=result.reason if result.ended == "unresolved" else "")


def _recorded(run: Run, end: str, result: RolloutResult, graded: Graded, facts: dict[str, Any]) -> Attempt:
    """Record an attempt; one that cannot be recorded may still be applied."""
    facts |= {"exit_status": result.exit_status, "steps": result.steps, "cost_usd": result.cost_usd}
    facts |= {"model": result.model}
    try:
        trajectory = json.loads(result.trajectory or b"{}")
        redactor = run.redactor(trajectory.get("info"))
        patch, notes = live.readable_patch(run, end, redactor)
        attempt = live.described(run, graded, notes, patch=patch, **facts)
        kept = keep(run.local, attempt, trajectory, redactor)
        run.kept.append(kept.id)
        return kept
    except (ValveError, OSError, ValueError) as e:
        run.say(f"this attempt was not recorded: {one_line(str(e))}")
        return live.described(run, graded, (), **facts)


def _told(run: Run, done: Done) -> None:
    took = f"{done.attempt.seconds:.0f} s, {plural(done.attempt.steps, 'step')}"
    said = f"{done.attempt.outcome}: {done.attempt.reason}"
    run.say(f"attempt {done.number} of {run.settings.attempts} ended after {took}: {said}")


def _apply(run: Run, base: Base, check: Check, chosen: Done) -> None:
    """Apply what was graded to the person's files, if they are as they were; say where the patch is if not."""
    trees = base.trees
    graded, dropped = check.graded_tree(chosen.end)
    paths = [change.path for change in trees.changes(base.tree, graded)]
    try:
        if meanwhile := [change.path for change in trees.changes(base.tree, trees.capture())]:
            raise InfrastructureError(f"these changed while the attempts ran: {', '.join(meanwhile[:5])}")
        trees.apply_to_root(trees.patch(base.tree, graded))
    except (InfrastructureError, OSError) as e:
        run.say(f"nothing was applied: {one_line(str(e))}; the patch is {_saved(run, chosen.attempt)}")
        return
    lines = _lines(base, check, chosen.end)
    run.say(f"applied attempt {chosen.number}: {lines} changed lines in {', '.join(paths)}")
    if dropped:
        where = _saved(run, chosen.attempt)
        run.say(f"its changes to tests were not graded and are not applied: {', '.join(dropped)}; all of it is {where}")


def _saved(run: Run, attempt: Attempt) -> str:
    """Write the attempt's patch, as it was recorded, to a file; return where, or why not."""
    path = run.local.dir / "patches" / f"{attempt.id}.patch"
    try:
        files.make_dir(path.parent)
        files.write_atomic(path, attempt.patch.encode())
    except OSError as e:
        return f"not kept: {one_line(str(e))}"
    return f"in {path}"


def _hand_over(agent: Any, done: Sequence[Done], shown: Done) -> Mapping[str, Any]:
    """Make the agent object look as if it had made the attempt that is shown, at the cost of all."""
    trajectory = json.loads(shown.result.trajectory or b"{}")
    agent.messages = trajectory.get("messages", [])
    agent.cost += sum(one.result.cost_usd for one in done)
    agent.n_calls += sum(one.result.steps for one in done)
    if hasattr(agent, "save"):
        agent.save(getattr(agent.config, "output_path", None))
    submission = trajectory.get("info", {}).get("submission", "")
    return {"exit_status": shown.result.exit_status, "submission": submission}


def _path_of(part: Any) -> str:
    return f"{type(part).__module__}.{type(part).__qualname__}"
