"""Grading: whether a patch resolves a task. The hidden tests run in a sandbox, with restored test files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import partial

from msgspec import field
from msgspec.structs import replace

from valve_plugin.config import Settings
from valve_plugin.errors import InfrastructureError, SandboxError
from valve_plugin.records import LOOK_AT, SUSPICIOUS, FailedTest, Outcome, Record, Task, TestRole
from valve_plugin.sandbox import bubblewrap as sandboxes
from valve_plugin.sandbox.bubblewrap import Sandbox
from valve_plugin.sandbox.git import MAX_PATCH_BYTES, apply_patch, read_blobs, read_tree, write_tree
from valve_plugin.sandbox.scratch import scratch_folder
from valve_plugin.tasks.grading.compare import compared
from valve_plugin.tasks.grading.inspect_patch import (
    UNREADABLE,
    Reader,
    Suspicion,
    Tree,
    inspect_patch,
    stray_scripts,
)
from valve_plugin.tasks.grading.kept import KilledError, run_once, survives, tree_id
from valve_plugin.tasks.grading.testrun import TestRun
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.tasks.states import States, first_paths, is_protected, task_states, test_files
from valve_plugin.words import one_line

_SUBMODULE = "160000"
_FIXED = re.compile(r"Read-only file system|Errno (?:30|16)\b|Device or resource busy")
"""What a test gets that writes where nothing may change."""
_MOST_LINES = 5  # of suspicious lines in a reason
_LONGEST_NAME = 255  # bytes

PASSING = frozenset({"passed", "xfailed"})
"""Verdicts that SWE-smith counts as passed."""

MOST_FAILED = 10
"""Failed tests of which a grade tells why."""
_VALUE = re.compile(
    r"""[bruf]{0,2}(?:'[^']*'|"[^"]*")|\[.*\]|\{.*\}|\(.*\)|<.*>|-?\b\d[\w.]*|\b(?:True|False|None)\b""", re.IGNORECASE
)


class Grade(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The grade of a patch."""

    outcome: Outcome
    reason: str = ""
    """Why the task is not resolved, or what a person should look at, in one line."""
    dropped_paths: tuple[str, ...] = ()
    """Test files and test configuration whose edits were dropped, and scripts that nothing loads."""
    tests: dict[str, str] = field(default_factory=dict)
    """The verdict of each test that ran, by test id."""
    failed_tests: tuple[FailedTest, ...] = ()
    """Some of the required tests that did not pass."""


def grade(prepared: PreparedRepository, task: Task, patch: str, settings: Settings) -> Grade:
    """Grade a patch made at the task's tip. Never raises for what the patch does.

    Tests run once per tree, machine and repository definition; other tasks and attempts with the same tree use the
    stored result. This is sound because flaky tests were excluded when the task was made, limits count CPU time and
    not wall time, and a run that did not start is not stored.

    Raises:
        TaskError: the task itself cannot be used.
    """
    if not patch.strip():
        return Grade(outcome="unresolved", reason="the patch is empty")
    if len(patch) > MAX_PATCH_BYTES:
        return Grade(outcome="unresolved", reason=f"the patch is too large to be a fix: {len(patch):,} characters")
    try:
        states = task_states(prepared, task)
        sandbox = sandboxes.choose(settings, prepared.image)
        tree, dropped = effective_tree(prepared, states, patch)
        if tree is None:
            return Grade(outcome="unresolved", reason="the patch does not apply")
        if tree == states.bug_tree:
            why = "the patch changes nothing that is graded"
            return Grade(outcome="unresolved", reason=why, dropped_paths=dropped)
        try:
            suspicions = inspect_patch(*_trees(prepared, states.bug, tree))
        except (RecursionError, ValueError, MemoryError, LookupError, TypeError, AttributeError) as e:
            why = f"{SUSPICIOUS} its code cannot be inspected ({type(e).__name__}): nested too deeply, or too odd"
            return Grade(outcome="unresolved", reason=why, dropped_paths=dropped)
        if refused := [one for one in suspicions if one.refuses]:
            if all(one.what == UNREADABLE for one in refused):  # an honest mistake, as a rule
                return Grade(outcome="unresolved", reason=_valid("; ".join(map(str, refused))), dropped_paths=dropped)
            return Grade(outcome="unresolved", reason=suspicious(refused), dropped_paths=dropped)
        run, bad = _run(prepared, task, tree, sandbox)
        bad, look = (bad, "") if bad else compared(prepared, task, states.bug_tree, tree, sandbox)
        failed = _failed_tests(run, task, prepared.repository.test_roots)
        found = Grade(outcome="unresolved" if bad else "resolved", reason=bad, tests=run.tests, failed_tests=failed)
        marks = [look] if look else [f"{one.path}:{one.line}, which {one.what}" for one in suspicions[:_MOST_LINES]]
        if marks and not bad:
            found = replace(found, reason=_valid(f"{LOOK_AT} {'; '.join(marks)}"))
    except (InfrastructureError, SandboxError, OSError) as e:
        if isinstance(e, KilledError) and survives(prepared, task, sandbox):
            why = "its processes ended the test run by a signal"
            return Grade(outcome="unresolved", reason=why, dropped_paths=dropped)
        return Grade(outcome="errored", reason=f"{type(e).__name__}: {e}")
    return replace(found, dropped_paths=dropped)


def _run(prepared: PreparedRepository, task: Task, tree: str, sandbox: Sandbox) -> tuple[TestRun, str]:
    """Return (a run of the required tests, why it does not resolve the task or "").

    The files with FAIL_TO_PASS tests run first and, only if those pass, the whole suite; a small one runs at once.
    """
    roots = prepared.repository.test_roots
    paths = first_paths(task, roots)
    run = run_once(prepared, tree, paths, sandbox)
    if bad := _reason(run, task.fail_to_pass):
        return run, bad
    if paths != list(roots) and not set(test_files(task.pass_to_pass)) <= set(paths):
        paths = list(roots)
        run = run_once(prepared, tree, paths, sandbox)
    if bad := _reason(run, [*task.fail_to_pass, *task.pass_to_pass]):
        return run, bad
    # Some suites write in files beside their tests.
    usual = run_once(prepared, tree_id(prepared.store, prepared.base), paths, sandbox).changed if run.changed else ()
    changed = sorted({*run.changed} - {*usual})
    return run, f"{SUSPICIOUS} {changed[0]} changes while the tests run" if changed else ""


def effective_tree(prepared: PreparedRepository, states: States, patch: str) -> tuple[str | None, tuple[str, ...]]:
    """Return (tree to grade, paths whose edits were dropped); the tree is None if the patch does not apply.

    The tree is the tip with the patch, but with all test files and test configuration of the original state, and
    without scripts that nothing loads.
    """
    roots = prepared.repository.test_roots
    with scratch_folder() as scratch:
        index = scratch / "index"
        patched_tree = apply_patch(prepared.store, states.tip, patch, index)
        if patched_tree is None:
            return None, ()
        patched, tip, bug, base = (
            read_tree(prepared.store, t) for t in (patched_tree, states.tip, states.bug, prepared.base)
        )
        changed = {p for p in patched.keys() | tip.keys() if patched.get(p) != tip.get(p)}
        if any(len(os.fsencode(part)) > _LONGEST_NAME for p in changed for part in p.split("/")):
            return None, ()  # no file can have such a name
        final = {p: e for p, e in patched.items() if not is_protected(p, roots)}
        final |= {p: e for p, e in bug.items() if is_protected(p, roots)}
        strays = stray_scripts(bug | base, final, partial(read_blobs, prepared.store))
        final = {p: e for p, e in final.items() if p not in strays}
        dropped = sorted(p for p in changed if p in strays or is_protected(p, roots))
        return write_tree(prepared.store, final, index), tuple(map(_valid, dropped))


def _trees(prepared: PreparedRepository, bug: str, tree: str) -> tuple[Tree, Tree, Tree, Reader]:
    """Return the source of the bug, of a tree, and of the untouched source, without tests, and how to read it."""
    roots, store = prepared.repository.test_roots, prepared.store
    before, after, ordinary = (
        {p: e for p, e in read_tree(store, name).items() if e[0] != _SUBMODULE and not is_protected(p, roots)}
        for name in (bug, tree, prepared.base)
    )
    return before, after, ordinary, partial(read_blobs, store)


def suspicious(found: Sequence[Suspicion]) -> str:
    """Return the reason of a patch that is not run."""
    more = f"; {len(found) - _MOST_LINES} more" if len(found) > _MOST_LINES else ""
    return _valid(f"{SUSPICIOUS} {'; '.join(map(str, found[:_MOST_LINES]))}{more}")


def _valid(text: str) -> str:
    """Return a text without lone surrogates, which a patch may write and no record may hold."""
    return text.encode("utf-8", "backslashreplace").decode()


def _failed_tests(run: TestRun, task: Task, test_roots: Sequence[str]) -> tuple[FailedTest, ...]:
    """Return up to `MOST_FAILED` required tests that did not pass, of each role about as many.

    Where the issue shows the code of tests, one that it only names is not quoted.
    """
    shown = set(re.findall(r"\bdef (\w+)", task.problem_statement)) or set(re.findall(r"\w+", task.problem_statement))
    found: dict[str, list[FailedTest]] = {"quoted": [], "other": [], "before": []}
    ran = (test for test in task.pass_to_pass if test in run.tests)
    for test in dict.fromkeys([*task.fail_to_pass, *ran]):
        if run.tests.get(test) not in PASSING:
            named = test.partition("[")[0].rpartition("::")[2] in shown
            role: TestRole = "before" if test not in task.fail_to_pass else "quoted" if named else "other"
            found[role].append(FailedTest(test=test[:500], role=role, reason=_why(run, test, test_roots)))
    ranked = sorted((rank, role) for role, tests in found.items() for rank in range(len(tests)))[:MOST_FAILED]
    return tuple(test for role, tests in found.items() for test in tests[: sum(r == role for _, r in ranked)])


def _why(run: TestRun, test: str, test_roots: Sequence[str]) -> str:
    """Return why a test failed, in one line without the values that hidden tests expect."""
    raised = run.reasons.get(test) or (run.reasons.get(test.partition("::")[0]) if test not in run.tests else None)
    if raised is None:
        return "" if test in run.tests else "did not run"
    message = one_line(raised.message.strip().partition("\n")[0])
    path = raised.place.partition(":")[0]
    inside = bool(path) and not path.startswith(("/", "..")) and not is_protected(path, test_roots)
    if not inside or re.match(r"[\w.]*(?:Assertion|Failed)", message):
        kind, colon, said = message.partition(":")
        message = kind + colon + _VALUE.sub("\u2026", said)
    return f"{message} ({raised.place})"[:500] if inside else message[:500]


def refused_fixes(
    prepared: PreparedRepository, tasks: Sequence[Task], settings: Settings
) -> Iterator[tuple[Task, str]]:
    """Yield the tasks that not even the untouched source resolves, with the test, what it said, and what to do.

    The suite runs once for all of them, and its result is kept.

    Raises:
        InfrastructureError: it could not run.
    """
    base = tree_id(prepared.store, prepared.base)
    sandbox = sandboxes.choose(settings, prepared.image)
    run = run_once(prepared, base, list(prepared.repository.test_roots), sandbox)
    for task in tasks:
        if why := gold_trouble(run, [*task.fail_to_pass, *task.pass_to_pass]):
            yield task, why


def cure(said: str) -> str:
    """Return what to do about tests that do not pass with the fix, by what they said. Pure."""
    what = "Add what its tests need to the environment (`--with PACKAGE` where the set is made)"
    if _FIXED.search(said):
        what = (
            "Tests, their configuration and the environment cannot be written in while grading: let it use `tmp_path`"
        )
    return f"{what}, or leave its row out; `valve tasks verify` shows each task"


def say_refused(refused: Sequence[tuple[Task, str]]) -> list[str]:
    """Return what to say of tasks that not even their fix resolves: the first three, and how many more there are."""
    said = [f"{task.instance_id} cannot be resolved, not even by its fix: {why}" for task, why in refused[:3]]
    return said + [f"nor can {n} more tasks; `valve tasks verify` names them" for n in [len(refused) - 3] if n > 0]


def gold_trouble(run: TestRun, wanted: Sequence[str]) -> str:
    """Return why a run with the fix does not resolve: test, cause and cure; "" if it does. Pure."""
    if run.trouble:
        return f"{run.trouble}. {cure(run.trouble)}"
    bad = [test for test in wanted if run.tests.get(test) not in PASSING]
    if not bad:
        return ""
    raised = run.reasons.get(bad[0]) or run.reasons.get(bad[0].partition("::")[0])
    cause = f" ({one_line(raised.message)[:200]})" if raised and raised.message else ""
    more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
    return f"{bad[0]} {run.tests.get(bad[0], 'did not run')} with the fix{cause}{more}. {cure(cause)}"


def _reason(run: TestRun, wanted: Sequence[str]) -> str:
    if run.trouble:
        return run.trouble
    bad = [test for test in wanted if run.tests.get(test) not in PASSING]
    if not bad:
        return ""
    return f"{len(bad)} of {len(wanted)} required tests do not pass: {bad[0]} {run.tests.get(bad[0], 'did not run')}"
