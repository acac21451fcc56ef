"""Verification of tasks: the fix must pass in every run, an empty patch in none, and nothing may reveal the fix."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from valve_plugin.codec import digest
from valve_plugin.errors import InfrastructureError, TaskError
from valve_plugin.files import read_regular
from valve_plugin.records import Record, Task
from valve_plugin.sandbox.bubblewrap import Sandbox
from valve_plugin.sandbox.git import git, read_tree
from valve_plugin.sandbox.supervisor import ProcessLimits
from valve_plugin.tasks.grading.grade import PASSING, effective_tree, gold_trouble
from valve_plugin.tasks.grading.testrun import TestRun, run_tests
from valve_plugin.tasks.grading.watch import WatchGroup
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.tasks.states import States, commit_tree, gold_patch, open_commit, task_states, test_files
from valve_plugin.words import one_line

Kind = Literal["unusable", "gold fails", "empty passes", "flaky", "leak"]
_LEAST_LINE = 20  # characters; a shorter line of code may be in an issue by coincidence


class Defect(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One defect of a task."""

    kind: Kind
    message: str


class Verification(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of verifying one task."""

    instance_id: str
    gold: int
    """Number of runs with the fix in which every required test passed."""
    empty: int
    """Number of runs without the fix in which no FAIL_TO_PASS test passed."""
    times: int
    """Number of runs of each kind."""
    findings: tuple[Defect, ...] = ()


class Verifier:
    """Verifies tasks of one repository. Equal trees are run only once: with the fix, most tasks have the same tree."""

    def __init__(
        self,
        prepared: PreparedRepository,
        sandbox: Sandbox,
        times: int = 3,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._prepared = prepared
        self._sandbox = sandbox
        self._times = times
        self._watches = WatchGroup(say)
        self._runs: dict[str, list[TestRun]] = {}
        self._installed: dict[str, list[Path]] | None = None

    def verify(self, task: Task) -> Verification:
        """Run a task with and without its fix, and search the issue, workspace and environment for the fix."""
        try:
            states = task_states(self._prepared, task)
            gold = gold_patch(self._prepared, task)
            tree, dropped = effective_tree(self._prepared, states, gold)
        except TaskError as e:
            return self._unusable(task, str(e))
        if dropped or tree is None:
            why = f"changes test files: {', '.join(dropped[:3])}" if dropped else "does not apply"
            return self._unusable(task, f"its fix {why}")
        fixed = self._run(tree, self._prepared.repository.test_roots, "with the fix")
        broken = self._broken(task, states)
        f2p = task.fail_to_pass
        findings = [
            *_check_gold(task, fixed),
            *_compare_runs(broken, f2p, lambda run: _passing(run, f2p), "empty passes", "passes without the fix"),
            *self._leaks(task, states, tree),
        ]
        return Verification(
            instance_id=task.instance_id,
            gold=sum(not _missing(run, [*task.fail_to_pass, *task.pass_to_pass]) for run in fixed),
            empty=sum(not _passing(run, task.fail_to_pass) for run in broken),
            times=self._times,
            findings=tuple(findings),
        )

    def _unusable(self, task: Task, why: str) -> Verification:
        found = Defect(kind="unusable", message=why)
        return Verification(instance_id=task.instance_id, gold=0, empty=0, times=self._times, findings=(found,))

    def _broken(self, task: Task, states: States) -> list[TestRun]:
        """Run the tests without the fix: the files of FAIL_TO_PASS and, if a test passes there, the whole suite.

        (Some tests fail only after tests of other files.)
        """
        alone = self._run(states.bug_tree, test_files(task.fail_to_pass), "without it")
        if not set.intersection(*(set(_passing(run, task.fail_to_pass)) for run in alone)):
            return alone
        return self._run(states.bug_tree, self._prepared.repository.test_roots, "without it")

    def _run(self, tree: str, paths: Sequence[str], label: str) -> list[TestRun]:
        key = digest([tree, *paths])
        if key not in self._runs:
            limits = ProcessLimits(cpu_seconds=self._prepared.repository.cpu_seconds)
            commit = commit_tree(self._prepared, tree)
            runs = []
            for number in range(self._times):
                watcher = self._watches.run(f"{label}, run {number + 1} of {self._times}")
                with open_commit(self._prepared, commit) as workspace:
                    run = run_tests(self._sandbox, workspace, self._prepared, paths, limits, watcher=watcher)
                if run.killed:
                    raise InfrastructureError(f"{label}: {run.trouble}; a signal from outside ended it: start again")
                runs.append(run)
            self._runs[key] = runs
        return self._runs[key]

    def _leaks(self, task: Task, states: States, fixed: str) -> Iterator[Defect]:
        for line in fix_lines_in(task.problem_statement, task.patch):
            yield Defect(kind="leak", message=f"the issue text contains a line of the fix: {line}")
        yield from _copies_in_tree(self._prepared, task, states, fixed)
        if self._installed is None:
            self._installed = _python_files(self._prepared.venv)
        for path, oid in _changed(self._prepared, states.bug, fixed):
            data = git("cat-file", "blob", oid, git_dir=self._prepared.store)
            for other in self._installed.get(Path(path).name, []):
                if len(data) > _LEAST_LINE and _holds(other, data):
                    message = (
                        f"the test environment contains the fixed file {other}; use one without the package itself"
                    )
                    yield Defect(kind="leak", message=message)


def fix_lines_in(text: str, patch: str) -> list[str]:
    """Return the lines of the fix (lines that the bug's patch removes) that are in an issue text. Pure."""
    kept = {line[1:].strip() for line in patch.splitlines() if line[:1] in " +" and not line.startswith("+++ ")}
    gone = [line[1:].strip() for line in patch.splitlines() if line[:1] == "-" and not line.startswith("--- ")]
    return [line for line in dict.fromkeys(gone) if len(line) >= _LEAST_LINE and line not in kept and line in text]


def _check_gold(task: Task, runs: Sequence[TestRun]) -> Iterator[Defect]:
    wanted = [*task.fail_to_pass, *task.pass_to_pass]
    if broken := next((run for run in runs if run.trouble), None):
        yield Defect(kind="gold fails", message=gold_trouble(broken, wanted))
        return
    what = "does not pass with the fix"
    for defect in _compare_runs(runs, wanted, lambda run: _missing(run, wanted), "gold fails", what):
        always = defect.kind == "gold fails"
        yield Defect(kind="gold fails", message=gold_trouble(runs[0], wanted)) if always else defect


def _compare_runs(
    runs: Sequence[TestRun], wanted: Sequence[str], bad: Callable[[TestRun], list[str]], kind: Kind, what: str
) -> Iterator[Defect]:
    counts = Counter(test for run in runs for test in bad(run))
    always = [test for test in wanted if counts[test] == len(runs)]
    varies = [test for test in wanted if 0 < counts[test] < len(runs)]
    if always:
        yield Defect(kind=kind, message=f"{always[0]} {what}{_more(always)}")
    if varies:
        said = [run.reasons[varies[0]].message for run in runs if varies[0] in run.reasons][:1]
        cause = f" ({one_line(said[0])[:200]})" if said else ""
        message = f"{varies[0]} {what} in {counts[varies[0]]} of {len(runs)} runs{cause}{_more(varies)}"
        yield Defect(kind="flaky", message=message)


def _missing(run: TestRun, wanted: Sequence[str]) -> list[str]:
    return [test for test in wanted if run.tests.get(test) not in PASSING]


def _passing(run: TestRun, wanted: Sequence[str]) -> list[str]:
    return [test for test in wanted if run.tests.get(test) in PASSING]


def _more(tests: Sequence[str]) -> str:
    return f", and {len(tests) - 1} more" if len(tests) > 1 else ""


def _changed(prepared: PreparedRepository, bug: str, fixed: str) -> list[tuple[str, str]]:
    """Return (path, object id of the fixed version) of every file that the bug changed or removed."""
    before, after = read_tree(prepared.store, bug), read_tree(prepared.store, fixed)
    return [(path, entry[1]) for path, entry in after.items() if before.get(path) != entry]


def _copies_in_tree(prepared: PreparedRepository, task: Task, states: States, fixed: str) -> Iterator[Defect]:
    """Search the files that the agent gets for copies of the fix and of the hidden tests."""
    bug = read_tree(prepared.store, states.bug)
    secrets = {oid: f"the fixed {path}" for path, oid in _changed(prepared, states.bug, fixed)}
    secrets |= {bug[path][1]: f"the hidden tests {path}" for path in test_files(task.fail_to_pass)}
    for path, (_, oid) in read_tree(prepared.store, states.tip).items():
        if oid in secrets and int(git("cat-file", "-s", oid, git_dir=prepared.store)) > _LEAST_LINE:
            yield Defect(kind="leak", message=f"{secrets[oid]} can be read in the workspace: {path} is a copy of it")


def _holds(path: Path, data: bytes) -> bool:
    try:
        return read_regular(path, len(data)) == data
    except OSError:  # larger, or no file
        return False


def _python_files(venv: Path) -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for folder, _, names in os.walk(venv):
        for name in names:
            if name.endswith(".py"):
                found.setdefault(name, []).append(Path(folder, name))
    return found
