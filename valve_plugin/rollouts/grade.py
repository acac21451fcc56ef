"""Grading: does a patch resolve a task? Every hidden test is judged by itself, in a sandbox, on restored tests."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import field

from valve_plugin import codec
from valve_plugin.bank.files import write_atomic
from valve_plugin.bank.paths import data_dir
from valve_plugin.config import Settings
from valve_plugin.errors import InfrastructureError, RecordError, SandboxError, TaskError
from valve_plugin.records import Outcome, Record, Task
from valve_plugin.rollouts import sandbox as sandboxes
from valve_plugin.rollouts import workspace as workspaces
from valve_plugin.rollouts.exits import one_line
from valve_plugin.rollouts.limits import Limits
from valve_plugin.rollouts.protect import is_protected, test_files
from valve_plugin.rollouts.sandbox import Sandbox
from valve_plugin.rollouts.slots import slot
from valve_plugin.rollouts.state import State, apply, commit_tree, state
from valve_plugin.rollouts.testrun import TestRun, run_tests
from valve_plugin.rollouts.workspace import MAX_PATCH_BYTES
from valve_plugin.tasks.git import read_tree, write_tree
from valve_plugin.tasks.repository import Prepared

GRADER_VERSION = 6
"""Part of every cache key; raise it whenever a grade could come out differently."""

PASSING = frozenset({"passed", "xfailed"})
"""What SWE-smith counts as passed."""


class Grade(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a patch achieved."""

    outcome: Outcome
    reason: str = ""
    """In one line, why it is not resolved."""
    dropped_paths: tuple[str, ...] = ()
    """Test files and test configuration whose edits were not taken."""
    tests: dict[str, str] = field(default_factory=dict)
    """Every test that was run, with its verdict."""


def grade(prepared: Prepared, task: Task, patch: str, settings: Settings) -> Grade:
    """Grade a patch made at the task's tip. Never raises for what the patch does.

    Tests run once per tree, machine and repository definition, whichever tasks and attempts lead to that tree: every
    exact fix restores the same source. That is sound because tests whose verdict varies were excluded when the task was
    made, limits count CPU rather than wall time, and a run that did not come up is not kept.

    Raises:
        TaskError: the task itself cannot be used.
    """
    if not patch.strip():
        return Grade(outcome="unresolved", reason="the patch is empty")
    if len(patch) > MAX_PATCH_BYTES:
        return Grade(outcome="unresolved", reason=f"the patch has {len(patch):,} characters; too many to be a fix")
    try:
        states = state(prepared, task)
        sandbox = sandboxes.choose(settings, prepared.image)
        tree, dropped = effective_tree(prepared, states, patch)
        if tree is None:
            return Grade(outcome="unresolved", reason="the patch does not apply")
        if tree == states.bug_tree:
            return Grade(outcome="unresolved", reason="the patch changes nothing but tests", dropped_paths=dropped)
        found = _judge(prepared, task, tree, sandbox)
    except (InfrastructureError, SandboxError, OSError) as e:
        return Grade(outcome="errored", reason=f"{type(e).__name__}: {e}")
    return Grade(outcome=found.outcome, reason=found.reason, dropped_paths=dropped, tests=found.tests)


def effective_tree(prepared: Prepared, states: State, patch: str) -> tuple[str | None, tuple[str, ...]]:
    """Return (tree that is graded, paths whose edits were dropped).

    The tree is the tip with the patch, then every test file and test configuration as the hidden state has them.
    """
    roots = prepared.repository.test_roots
    with slot() as (_, scratch):
        index = scratch / "index"
        patched_tree = apply(prepared, states.tip, patch, index)
        if patched_tree is None:
            return None, ()
        patched, tip, bug = (read_tree(prepared.store, t) for t in (patched_tree, states.tip, states.bug))
        changed = {p for p in patched.keys() | tip.keys() if patched.get(p) != tip.get(p)}
        final = {p: e for p, e in patched.items() if not is_protected(p, roots)}
        final |= {p: e for p, e in bug.items() if is_protected(p, roots)}
        dropped = sorted(p for p in changed if is_protected(p, roots))
        return write_tree(prepared.store, final, index), tuple(dropped)


def _judge(prepared: Prepared, task: Task, tree: str, sandbox: Sandbox) -> Grade:
    """Run the files with FAIL_TO_PASS tests, and only when those pass everything."""
    first = test_files(task.fail_to_pass)
    run = _run_once(prepared, tree, first, sandbox)
    if (bad := _complaint(run, task.fail_to_pass)) or set(test_files(task.pass_to_pass)) <= set(first):
        bad = bad or _complaint(run, task.pass_to_pass)
    else:
        run = _run_once(prepared, tree, prepared.repository.whole, sandbox)
        bad = _complaint(run, [*task.fail_to_pass, *task.pass_to_pass])
    return Grade(outcome="unresolved" if bad else "resolved", reason=bad, tests=run.tests)


def _complaint(run: TestRun, wanted: Sequence[str]) -> str:
    if run.trouble:
        return run.trouble
    bad = [test for test in wanted if run.tests.get(test) not in PASSING]
    if not bad:
        return ""
    return f"{len(bad)} of {len(wanted)} required tests do not pass: {bad[0]} {run.tests.get(bad[0], 'did not run')}"


def _run_once(prepared: Prepared, tree: str, paths: Sequence[str], sandbox: Sandbox) -> TestRun:
    """Return the run of these tests on this tree: kept from before, awaited where it goes on, or made now."""
    key = codec.digest([GRADER_VERSION, prepared.digest, tree, sorted(paths), sandbox.name])
    folder = data_dir() / "testruns" / key[:2]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        kept = folder / key
        try:
            return codec.decode(kept.read_bytes(), TestRun, where=str(kept))
        except (OSError, RecordError):
            run = _run_alone_if_late(prepared, commit_tree(prepared, tree), paths, sandbox)
            write_atomic(kept, codec.canonical(run))
            return run


def _run_alone_if_late(prepared: Prepared, commit: str, paths: Sequence[str], sandbox: Sandbox) -> TestRun:
    limits = Limits(cpu_seconds=prepared.repository.cpu_seconds)
    for alone in (False, True):
        try:
            with _turn(alone), workspaces.at_commit(prepared, commit) as workspace:
                run = run_tests(sandbox, workspace, prepared, paths, limits)
        except TaskError as e:  # the patch put a link where the image has files of its own
            return TestRun(tests={}, trouble=one_line(str(e)))
        if not run.timed_out:
            break
    return run


@contextmanager
def _turn(alone: bool) -> Iterator[None]:
    """Hold the machine's grading lock: shared, or exclusively for a run that must not be slowed by others."""
    path = data_dir() / "grading.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
