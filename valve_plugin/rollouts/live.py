"""One run of the agent on a person's own task, from before its first step until it is recorded.

Nothing here may cost the person their run: what cannot be captured, graded or recorded costs one line on stderr.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from valve_plugin.bank.local import LocalStore
from valve_plugin.bank.paths import BANK_NAME, local_dir
from valve_plugin.bank.redact import Redactor, gather
from valve_plugin.codec import digest_bytes
from valve_plugin.config import Settings
from valve_plugin.errors import InfrastructureError, ValveError
from valve_plugin.records import Attempt, Bank, Context, live_task
from valve_plugin.rollouts import scratch
from valve_plugin.rollouts.exits import Ended, Graded, classify, one_line
from valve_plugin.rollouts.live_context import Say, compose
from valve_plugin.rollouts.live_record import keep, learn_from
from valve_plugin.rollouts.live_tree import Trees

if TYPE_CHECKING:
    from valve_plugin.rollouts.live_trust import Witness

MAX_PATCH_BYTES = 10_000_000
_BINARY = "\nGIT binary patch\n"


class Base(msgspec.Struct, frozen=True):
    """The directory a run works in, as it was when the run started."""

    trees: Trees
    tree: str
    cwd: Path
    """Where the agent's commands start: the root of the tree, or below."""

    @property
    def below(self) -> str:
        """`cwd` relative to the tree, with `/`; `.` is its top."""
        return self.cwd.relative_to(self.trees.root).as_posix()


class Run(msgspec.Struct, kw_only=True):
    """What is known of a run before it ends."""

    settings: Settings
    bank_dir: Path
    local: LocalStore
    say: Say
    task: str
    context: Context
    witness: Witness | None
    scratch: tempfile.TemporaryDirectory[str]
    base: Base | None = None
    """None where the agent works elsewhere (in a container), or nothing could be captured."""
    notes: list[str] = []
    """What is missing from the record and why."""
    secrets: dict[str, str] = {}
    """Those known at the start: the agent may remove the file that tells them."""
    started: float = msgspec.field(default_factory=time.monotonic)
    recorded: bool = False
    kept: list[str] = []
    """Ids of the attempts on record, where the run makes several."""

    @property
    def task_id(self) -> str:
        """Named after the task's text: the same text is the same task."""
        return live_task(digest_bytes(self.task.encode("utf-8", "surrogatepass")))

    def redactor(self, config: Any) -> Redactor:
        """Return what takes this run's secrets out of texts; `config` is the agent's and model's configuration."""
        workspace = self.base.trees.root if self.base else None
        return Redactor(self.secrets | gather(os.environ, workspace, [config, self.settings.model_kwargs]))


def start(
    settings: Settings, bank_dir: Path, retrieve: Callable[[Bank], Context], agent: Any, task: str, say: Say
) -> Run:
    """Compose the context and capture the directory, before the first step."""
    local = LocalStore(local_dir(bank_dir))
    context, witness = compose(bank_dir, local, retrieve, say, model_of(agent))
    place = scratch.private("valve-run-")
    run = Run(
        settings=settings,
        bank_dir=bank_dir,
        local=local,
        say=say,
        task=task,
        context=context,
        witness=witness,
        scratch=place,
    )
    try:
        run.base = _capture(agent, Path(place.name), bank_dir)
        if run.base is not None:
            run.secrets = gather(os.environ, run.base.trees.root)
    except (ValveError, OSError) as e:
        run.notes.append(one_line(f"the directory could not be captured: {e}"))
        say(f"{run.notes[-1]}; the attempt is recorded without its patch")
    return run


def finish(run: Run, agent: Any, result: Mapping[str, Any], error: BaseException | None) -> Attempt | None:
    """Grade and record the run, after the last step; None when it could not be recorded, and that was said."""
    try:
        return None if run.recorded else _record(run, agent, result, error)
    except Exception as e:  # noqa: BLE001 - the person's run is over and paid for; its record must not spoil it
        run.say(f"this attempt was not recorded: {type(e).__name__}: {one_line(str(e))}")
        return None
    finally:
        close(run)


def close(run: Run) -> None:
    """Remove what the run needed, and see whether the bank is still the one it started with."""
    run.scratch.cleanup()
    if run.witness is not None and not run.witness.leave():
        run.say("the bank changed during this run; it is verified before its next use")


def directory(agent: Any) -> Path | None:
    """Return where the agent's commands start on this machine; None if they run anywhere else."""
    local = sys.modules.get("minisweagent.environments.local")
    environment = getattr(agent, "env", None)
    if local is None or not isinstance(environment, local.LocalEnvironment):
        return None
    return Path(getattr(environment.config, "cwd", "") or os.getcwd()).resolve()


def model_of(agent: Any) -> str:
    """Return the name of the agent's model; empty: it has none."""
    return str(getattr(getattr(getattr(agent, "model", None), "config", None), "model_name", ""))


def _capture(agent: Any, scratch: Path, bank_dir: Path) -> Base | None:
    from valve_plugin.bank.checkout import find

    cwd = directory(agent)
    if cwd is None:
        return None
    root = find(cwd).root
    written_by_mini = getattr(getattr(agent, "config", None), "output_path", None)
    leave_out = [bank_dir.resolve(), root / BANK_NAME, cwd / BANK_NAME]
    trees = Trees(root, scratch, [*leave_out, *([Path(written_by_mini).resolve()] if written_by_mini else [])])
    return Base(trees, trees.capture(), cwd)


def _record(run: Run, agent: Any, result: Mapping[str, Any], error: BaseException | None) -> Attempt:
    trajectory = agent.serialize() if hasattr(agent, "serialize") else {"messages": getattr(agent, "messages", [])}
    redactor = run.redactor(trajectory.get("info"))
    ended, why = _ended(result, error)
    end = _end(run)
    patch, notes = readable_patch(run, end, redactor) if end else (_submitted_patch(result), [])
    graded = _graded(run, end, ended, why)
    if run.settings.check and graded.outcome != "errored":
        run.say(f"{graded.outcome}: {graded.reason}")
    attempt = described(
        run,
        graded,
        notes,
        ordinal=next_ordinal(run),
        patch=patch,
        exit_status=str(result.get("exit_status", "")),
        steps=int(result.get("api_calls", 0)),
        cost_usd=float(result.get("cost", 0.0)),
        seconds=time.monotonic() - run.started,
        model=model_of(agent),
    )
    kept = keep(run.local, attempt, trajectory, redactor)
    learn_from(run.bank_dir, run.local, kept, run.settings.learn, run.say)
    return kept


def next_ordinal(run: Run) -> int:
    """Return the first ordinal that no recorded attempt at this task under this context has."""
    ordinals = [a.ordinal for a in run.local.attempts(run.task_id) if a.context_hash == run.context.hash]
    return max(ordinals, default=-1) + 1


def described(run: Run, graded: Graded, notes: Sequence[str], **facts: Any) -> Attempt:
    """Return the record of an attempt of this run.

    Args:
        graded: its outcome.
        notes: what is missing from the record, besides the run's own notes.
        facts: the fields that only the attempt itself knows.
    """
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


def _ended(result: Mapping[str, Any], error: BaseException | None) -> tuple[Ended | None, str]:
    """Return how the run ended; None for a person who stopped it, which says nothing about the agent."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return None, "stopped by the person"
    names = [c.__name__ for c in type(error).__mro__] if error else []
    return classify(str(result.get("exit_status", "")), names, str(error or ""))


def _end(run: Run) -> str:
    """Return the tree the run left; empty where there is none."""
    if run.base is None:
        return ""
    try:
        tree = run.base.trees.capture()
    except (InfrastructureError, OSError) as e:
        run.notes.append(one_line(f"the directory could not be captured after the run: {e}"))
        return ""
    run.notes += run.base.trees.notes
    return tree


def readable_patch(run: Run, end: str, redactor: Redactor) -> tuple[str, list[str]]:
    """Return the patch to a tree of this run, fit to be kept once its text is redacted, and what was left out."""
    assert run.base is not None
    trees, base, notes = run.base.trees, run.base.tree, list[str]()
    patch = trees.patch(base, end)
    if _BINARY in patch:
        # Compressed content cannot be redacted, so a file that holds a secret is left out whole.
        paths = [change.path for change in trees.changes(base, end)]
        leaking = [path for path in paths if redactor.leaks(trees.diff(base, end, [path], text=True))]
        if hidden := [path for path in leaking if _BINARY in trees.patch(base, end, [path])]:
            notes.append(f"left out of the patch, because they hold secrets: {', '.join(hidden)}")
            patch = trees.patch(base, end, [path for path in paths if path not in hidden])
    if len(patch) > MAX_PATCH_BYTES:
        notes.append(f"the patch is not kept: {len(patch):,} characters, at most {MAX_PATCH_BYTES:,} are")
        patch = ""
    return patch, notes


def _submitted_patch(result: Mapping[str, Any]) -> str:
    """Return the patch an agent in a container hands in, as mini's benchmark configurations ask it to."""
    submission = str(result.get("submission", ""))
    return submission if submission.startswith("diff --git ") else ""


def _graded(run: Run, end: str, ended: Ended | None, why: str) -> Graded:
    if ended is None or ended == "errored":
        return Graded("ungraded" if ended is None else "errored", why)
    if not run.settings.check:
        return Graded("ungraded", why or "no check was named (valve.check)")
    if run.base is None or not end:
        return Graded("ungraded", "the check needs the directory the agent worked in, and it was not captured")
    from valve_plugin.rollouts.live_check import grade

    try:
        return grade(run.settings, run.base, end, unfinished=why if ended == "unresolved" else "")
    except KeyboardInterrupt:
        return Graded("ungraded", "the check was interrupted")
