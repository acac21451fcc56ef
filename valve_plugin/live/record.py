"""One run of the agent on a person's own task: starting it, grading and recording it, and queueing what it may teach.

No error here ends the person's run: if something cannot be captured, graded or recorded, one line on stderr says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from valve_plugin import files
from valve_plugin.agents.faults import EndKind, class_names, classify_end
from valve_plugin.bank.local import LocalStore, local_store
from valve_plugin.checkout import find
from valve_plugin.codec import canonical, convert, digest, digest_bytes, plain
from valve_plugin.config import Settings
from valve_plugin.errors import InfrastructureError, ValveError
from valve_plugin.files import hold_lock
from valve_plugin.live.check import Check, CheckResult, cannot_grade, with_mini_option
from valve_plugin.live.context import Say, compose
from valve_plugin.live.trees import Base, Trees
from valve_plugin.paths import BANK_NAME
from valve_plugin.records import Attempt, Bank, Context, Panel, live_task
from valve_plugin.redact import Redactor, gather
from valve_plugin.sandbox import scratch
from valve_plugin.sandbox.supervisor import VALVE_MAIN, child_process, python_command
from valve_plugin.words import one_line, plural, quote

MAX_PATCH_BYTES = 10_000_000
NOT_RUN = "NotRun"
"""Exit status of a run that was refused before its start."""
_SHOWN_LINES = 8
"""Lines shown of the output of a check that cannot grade; it is not recorded."""
_BINARY = "\nGIT binary patch\n"
FEWEST_GRADED = 3
"""Minimum number of graded attempts in a mixed group; the method contrasts three."""
LINES, CHARACTERS = 40, 4_000
"""Maximum number of lines and characters that are kept of a check's output."""


class Run(msgspec.Struct, kw_only=True):
    """The state of a live run."""

    settings: Settings
    bank_dir: Path
    local: LocalStore
    say: Say
    task: str
    context: Context
    scratch: tempfile.TemporaryDirectory[str]
    base: Base | None = None
    """The directory at the start, or None if the agent works in a container or the capture failed."""
    check: Check | None = None
    """The person's check with that base, or None if no check was given or there is no base."""
    notes: list[str] = []
    """What is missing from the record, and why."""
    secrets: dict[str, str] = {}
    """Secrets known at the start (the agent may delete the file with them)."""
    started: float = msgspec.field(default_factory=time.monotonic)
    recorded: bool = False
    kept: list[str] = []
    """Ids of the recorded attempts, if the run makes several."""

    @property
    def task_id(self) -> str:
        """Id made from the task's text: equal texts are the same task."""
        return live_task(digest_bytes(self.task.encode("utf-8", "surrogatepass")))

    def redactor(self, config: Any) -> Redactor:
        """Return a redactor with this run's secrets; `config` is the configuration of agent and model."""
        workspace = self.base.trees.root if self.base else None
        return Redactor(self.secrets | gather(os.environ, workspace, [config, self.settings.model_kwargs]))


def start(
    settings: Settings,
    bank_dir: Path,
    retrieve: Callable[[Bank, Panel | None], Context],
    agent: Any,
    task: str,
    say: Say,
) -> Run:
    """Compose the context and capture the directory, before the agent's first step."""
    local = local_store(bank_dir)
    context = compose(bank_dir, local, retrieve, say, model_of(agent))
    run = Run(
        settings=settings,
        bank_dir=bank_dir,
        local=local,
        say=say,
        task=task,
        context=context,
        scratch=scratch.private_folder("valve-run-"),
    )
    try:
        if (cwd := directory(agent)) is not None:
            root = find(cwd).root
            leave_out = [bank_dir.resolve(), root / BANK_NAME, cwd / BANK_NAME]
            if written_by_mini := getattr(getattr(agent, "config", None), "output_path", None):
                leave_out.append(Path(written_by_mini).resolve())
            trees = Trees(root, Path(run.scratch.name), leave_out)
            run.base = Base(trees, trees.capture(), cwd)
            run.secrets = gather(os.environ, root)
            run.check = Check(settings, run.base) if settings.check else None
    except (ValveError, OSError) as e:
        run.notes.append(one_line(f"the directory could not be captured: {e}"))
        say(f"{run.notes[-1]}; the attempt is recorded without its patch")
    return run


def require_grading(run: Run, agent: Any) -> None:
    """Check, before anything is spent, that the person's check can grade.

    Raises:
        ValveError: it cannot grade.
    """
    if run.check is None:
        return
    run.say("trying the check on the starting tree")
    try:
        reason = run.check.problem()
    except KeyboardInterrupt:
        run.recorded = True  # there is no attempt
        run.say("stopped before the first step: nothing was recorded, spent or changed")
        raise
    if reason:
        redactor = run.redactor([plain_config(part) for part in (agent.model, agent.env, agent)])
        for line in last_lines(redactor(run.check.printed_at_base)).splitlines()[-_SHOWN_LINES:]:
            run.say(f"the check printed: {line}")
        raise ValveError(cannot_grade(reason))


def refused(run: Run, error: ValveError) -> Mapping[str, Any]:
    """Say that a run was refused before its start, and why; return its result."""
    run.recorded = True  # there is no attempt
    run.say(f"no attempt was made; nothing was spent or changed: {with_mini_option(error)}")
    return {"exit_status": NOT_RUN, "submission": "", "exit_code": error.exit_code}


def finish(run: Run, agent: Any, result: Mapping[str, Any], error: BaseException | None) -> Attempt | None:
    """Grade and record the run after the last step; return None if it is already recorded or recording failed."""
    try:
        if run.recorded:
            return None
        trajectory = agent.serialize() if hasattr(agent, "serialize") else {"messages": getattr(agent, "messages", [])}
        ended: tuple[EndKind | None, str] = None, "stopped by the person"
        if not isinstance(error, KeyboardInterrupt | SystemExit):
            names = class_names(error) if error else []
            ended = classify_end(str(result.get("exit_status", "")), names, str(error or ""))
        end = ""
        try:
            if run.base is not None:
                end = run.base.trees.capture()
                run.notes += run.base.trees.notes
        except (InfrastructureError, OSError) as e:
            run.notes.append(one_line(f"the directory could not be captured after the run: {e}"))
        return record(run, trajectory, end, result, ended, model_of(agent))
    except Exception as e:  # noqa: BLE001 - an error in recording must not fail a run that is complete
        run.say(f"this attempt was not recorded: {type(e).__name__}: {one_line(str(e))}")
        return None
    finally:
        run.scratch.cleanup()


def directory(agent: Any) -> Path | None:
    """Return the directory in which the agent's commands start, or None if they do not run on this machine."""
    local = sys.modules.get("minisweagent.environments.local")
    environment = getattr(agent, "env", None)
    if local is None or not isinstance(environment, local.LocalEnvironment):
        return None
    return Path(getattr(environment.config, "cwd", "") or os.getcwd()).resolve()


def model_of(agent: Any) -> str:
    """Return the name of the agent's model, or an empty string if it has none."""
    return str(getattr(getattr(getattr(agent, "model", None), "config", None), "model_name", ""))


def plain_config(part: Any) -> dict[str, Any]:
    """Return the configuration of an agent, model or environment as plain data."""
    config = getattr(part, "config", None)
    dump = getattr(config, "model_dump", None)
    return dict(dump(mode="json") if dump else vars(config) if config is not None else {})


def record(
    run: Run,
    trajectory: dict[str, Any],
    end: str,
    result: Mapping[str, Any],
    ended: tuple[EndKind | None, str],
    model: str,
) -> Attempt:
    """Grade an attempt and record it.

    Args:
        trajectory: its messages in the shape of mini's.
        end: the final tree; empty if it was not captured.
        ended: (how the run ended, the reason); the first is None if the person stopped it.
    """
    redactor = run.redactor(trajectory.get("info"))
    if end:
        patch, notes = readable_patch(run, end, redactor)
    else:  # an agent in a container submits it, as in mini's benchmark configurations
        submitted = str(result.get("submission", ""))
        patch, notes = submitted if submitted.startswith("diff --git ") else "", []
    graded = grade(run, end, *ended)
    if run.settings.check and graded.outcome != "errored":
        run.say(f"{graded.outcome}: {graded.reason}")
    attempt = make_attempt(
        run,
        graded,
        notes,
        ordinal=next_ordinal(run.local, run.task_id, run.context.hash),
        patch=patch,
        exit_status=str(result.get("exit_status", "")),
        steps=int(result.get("api_calls", 0)),
        cost_usd=float(result.get("cost", 0.0)),
        seconds=time.monotonic() - run.started,
        model=model,
    )
    kept = keep_attempt(run.local, attempt, trajectory, redactor)
    learn_from(run.bank_dir, run.local, kept, run.settings.learn, run.say)
    return kept


def make_attempt(run: Run, graded: CheckResult, notes: Sequence[str], **facts: Any) -> Attempt:
    """Return the record of an attempt of this run; `notes` say what else is missing from it."""
    return Attempt(
        id=os.urandom(8).hex(),
        task_id=run.task_id,
        source="live",
        outcome=graded.outcome,
        reason="; ".join(part for part in (graded.reason, *run.notes, *notes) if part),
        dropped_paths=graded.dropped_paths,
        check_output=graded.output,
        recorded_at=time.time(),
        task_text=run.task,
        base_tree=run.base.tree if run.base else "",
        context_hash=run.context.hash,
        context_items=run.context.items,
        check=run.settings.check,
        **facts,
    )


def readable_patch(run: Run, end: str, redactor: Redactor) -> tuple[str, list[str]]:
    """Return (patch to the final tree, notes about what was left out). Its text can be redacted afterwards."""
    assert run.base is not None
    trees, base, notes = run.base.trees, run.base.tree, list[str]()
    patch = trees.patch(base, end)
    if _BINARY in patch:
        # Binary content cannot be redacted, so a file with a secret is left out completely.
        paths = [change.path for change in trees.changes(base, end)]
        leaking = [path for path in paths if redactor.leaks(trees.diff_as_text(base, end, path))]
        if hidden := [path for path in leaking if _BINARY in trees.patch(base, end, [path])]:
            notes.append(f"left out of the patch, because they contain secrets: {', '.join(hidden)}")
            patch = trees.patch(base, end, [path for path in paths if path not in hidden])
    if len(patch) > MAX_PATCH_BYTES:
        notes.append(f"the patch is not kept: {len(patch):,} characters, the limit is {MAX_PATCH_BYTES:,}")
        patch = ""
    return patch, notes


def grade(run: Run, end: str, ended: EndKind | None, why: str) -> CheckResult:
    """Return the grade of an attempt, whose final tree is `end` (empty: not captured), and which `ended` so."""
    if ended is None or ended == "errored":
        return CheckResult("ungraded" if ended is None else "errored", why)
    if not run.settings.check:
        return CheckResult("ungraded", why or "no check was given (valve.check)")
    if run.check is None or not end:
        return CheckResult("ungraded", "the check needs the agent's directory, but it was not captured")
    try:
        return run.check.grade(end, unfinished=why if ended == "unresolved" else "")
    except KeyboardInterrupt:
        return CheckResult("ungraded", "the check was interrupted")


# Recorded attempts, redacted, and the queue for extraction


def keep_attempt(local: LocalStore, attempt: Attempt, trajectory: Any, redactor: Redactor) -> Attempt:
    """Store an attempt and its trajectory (plain data in mini's format) without secrets; return the stored attempt."""
    attempt = convert(redactor.tree(plain(attempt)), Attempt, where="attempt")
    attempt = replace(attempt, check_output=last_lines(attempt.check_output))
    return local.add_attempt(attempt, json.dumps(redactor.tree(trajectory), default=redactor.shown).encode())


def last_lines(text: str) -> str:
    """Return the last lines of a text: at most 40 lines and 4,000 characters. Pure."""
    end = "\n".join(text.rstrip().splitlines()[-LINES:])
    if len(end) <= CHARACTERS:
        return end
    cut = end[-CHARACTERS:]
    return cut.partition("\n")[2] or cut


def next_ordinal(local: LocalStore, task_id: str, context_hash: str) -> int:
    """Return the first unused ordinal of a task and context."""
    ordinals = [a.ordinal for a in local.attempts(task_id) if a.context_hash == context_hash]
    return max(ordinals, default=-1) + 1


def show_hint(attempt: Attempt, settings: Settings, what: str = "it") -> str:
    """Return a part of a sentence with the command that shows an attempt."""
    more = " and the check's last lines" if attempt.check_output else ""
    return f"{show_command('show', settings, attempt.id)} shows {what}{more}"


def show_command(name: str, settings: Settings, *words: str) -> str:
    """Return a command of `valve attempts` for the bank of this run, in backticks."""
    bank = ("--bank", quote(settings.bank)) if settings.bank else ()
    return f"`{' '.join(['valve attempts', name, *words, *bank])}`"


def learn_from(bank_dir: Path, local: LocalStore, attempt: Attempt, mode: str, say: Say) -> None:
    """Queue an extraction if the attempt's group is mixed now.

    Args:
        mode: `settings.learn`: "off" does nothing, "inline" also judges the queue at once.
    """
    if mode == "off" or attempt.outcome not in ("resolved", "unresolved"):
        return
    group = group_of(local.attempts(attempt.task_id), attempt)
    passes = sum(a.outcome == "resolved" for a in group)
    if len(group) < FEWEST_GRADED or not 0 < passes < len(group) or not enqueue(local, group):
        return
    say(
        f"{passes} of {plural(len(group), 'attempt')} passed: queued for learning ({len(local.queue())} in the queue; "
        "`valve gate` judges them)"
    )
    if mode == "inline":
        # In another process, so that it does not write to mini's stdout and imports nothing here.
        command = python_command(VALVE_MAIN, "gate", "--bank", str(bank_dir))
        with child_process(command, interruptible=True, stdin=subprocess.DEVNULL, stdout=2) as judging:
            judging.wait()


def group_of(attempts: Sequence[Attempt], one: Attempt) -> list[Attempt]:
    """Return the graded live attempts with the same task, starting tree and context as `one`."""
    key = (one.task_text, one.base_tree, one.context_hash)
    graded = [a for a in attempts if a.source == "live" and a.outcome in ("resolved", "unresolved")]
    return [a for a in graded if (a.task_text, a.base_tree, a.context_hash) == key]


def enqueue(local: LocalStore, group: Sequence[Attempt]) -> bool:
    """Queue an extraction for a group; return False if that was done before."""
    first = group[0]
    name = digest([first.task_text, first.base_tree, first.context_hash])[:16]
    marks = local.dir / "groups"
    mark = marks / name
    files.make_private_dir(marks)
    # Under a lock, queue first and mark then. After a kill in between, the queue itself shows that it is done.
    with hold_lock(marks / ".lock", 30.0, f"{marks}: another process keeps the lock"):
        if mark.exists() or any(job.get("group") == name for job in local.queue()):
            return False
        job = {
            "kind": "extract",
            "group": name,
            "task_id": first.task_id,
            "issue": first.task_text,
            "attempts": [a.id for a in group],
        }
        local.queue_push(job)
        files.write_new(mark, canonical(job["attempts"]))
    return True
