"""Whether tasks can be trusted: the fix resolves each, nothing does not, every time; and nothing gives it away."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from valve_plugin.codec import digest
from valve_plugin.errors import TaskError
from valve_plugin.reading import regular
from valve_plugin.records import Record, Task
from valve_plugin.rollouts import workspace as workspaces
from valve_plugin.rollouts.grade import PASSING, effective_tree
from valve_plugin.rollouts.limits import Limits
from valve_plugin.rollouts.protect import test_files
from valve_plugin.rollouts.sandbox import Sandbox
from valve_plugin.rollouts.state import State, commit_tree, gold_patch, state
from valve_plugin.rollouts.testrun import TestRun, run_tests
from valve_plugin.tasks.follow import Following
from valve_plugin.tasks.git import git, read_tree
from valve_plugin.tasks.issue_text import strangers
from valve_plugin.tasks.repository import Prepared

Kind = Literal["unusable", "gold fails", "empty passes", "flaky", "leak", "issue"]
_LEAST_LINE = 20  # characters of code from which a line in an issue is no coincidence


class Finding(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that is wrong with a task."""

    kind: Kind
    message: str


class Verified(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of one task."""

    instance_id: str
    gold: int
    """Runs of the whole suite with the fix in which every required test passed."""
    empty: int
    """Runs without it in which no FAIL_TO_PASS test passed."""
    times: int
    findings: tuple[Finding, ...] = ()


class Verifier:
    """Verifies tasks of one repository. Runs on equal trees are shared: with the fix, most tasks are the same tree."""

    def __init__(
        self, prepared: Prepared, sandbox: Sandbox, times: int = 3, say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._prepared = prepared
        self._sandbox = sandbox
        self._times = times
        self._following = Following(say)
        self._runs: dict[str, list[TestRun]] = {}
        self._installed: dict[str, list[Path]] | None = None

    def verify(self, task: Task) -> Verified:
        """Run a task with and without its fix, and look for what gives the fix away."""
        try:
            states = state(self._prepared, task)
            gold = gold_patch(self._prepared, task)
            tree, dropped = effective_tree(self._prepared, states, gold)
        except TaskError as e:
            return self._unusable(task, str(e))
        if dropped or tree is None:
            why = f"changes test files: {', '.join(dropped[:3])}" if dropped else "does not apply"
            return self._unusable(task, f"its fix {why}")
        fixed = self._run(tree, self._prepared.repository.whole, "with the fix")
        broken = self._broken(task, states)
        findings = [*_with_fix(task, fixed), *_without(task, broken), *_text(task), *self._leaks(task, states, tree)]
        return Verified(
            instance_id=task.instance_id,
            gold=sum(not _missing(run, [*task.fail_to_pass, *task.pass_to_pass]) for run in fixed),
            empty=sum(not _passing(run, task.fail_to_pass) for run in broken),
            times=self._times,
            findings=tuple(findings),
        )

    def _unusable(self, task: Task, why: str) -> Verified:
        found = Finding(kind="unusable", message=why)
        return Verified(instance_id=task.instance_id, gold=0, empty=0, times=self._times, findings=(found,))

    def _broken(self, task: Task, states: State) -> list[TestRun]:
        """Run what grading runs without the fix: the files of FAIL_TO_PASS, and everything only where those pass.

        A test may fail in the company of other files' tests alone; one that passes there each time is seen there.
        """
        alone = self._run(states.bug_tree, test_files(task.fail_to_pass), "without it")
        if not set.intersection(*(set(_passing(run, task.fail_to_pass)) for run in alone)):
            return alone
        return self._run(states.bug_tree, self._prepared.repository.whole, "without it")

    def _run(self, tree: str, paths: Sequence[str], label: str) -> list[TestRun]:
        key = digest([tree, *paths])
        if key not in self._runs:
            limits = Limits(cpu_seconds=self._prepared.repository.cpu_seconds)
            commit = commit_tree(self._prepared, tree)
            runs, ends = [], list[float]()
            for number in range(self._times):
                follow = self._following.run(f"{label}, run {number + 1} of {self._times}", ends)
                with workspaces.at_commit(self._prepared, commit) as workspace:
                    runs.append(run_tests(self._sandbox, workspace, self._prepared, paths, limits, tap=follow))
                ends = follow.ends
            self._runs[key] = runs
        return self._runs[key]

    def _leaks(self, task: Task, states: State, fixed: str) -> Iterator[Finding]:
        for line in answers(task.problem_statement, task.patch):
            yield Finding(kind="leak", message=f"the issue text holds a line of the fix: {line}")
        yield from _hidden_in(self._prepared, task, states, fixed)
        for path in self._copies(states, fixed):
            message = f"the test environment has the fixed file: {path}; use one without the package itself"
            yield Finding(kind="leak", message=message)

    def _copies(self, states: State, fixed: str) -> list[Path]:
        """Return files of the test environment that are, byte for byte, the fixed version of what the task changes."""
        if self._installed is None:
            self._installed = _python_files(self._prepared.venv)
        found = []
        for path, oid in _changed(self._prepared, states.bug, fixed):
            data = git("cat-file", "blob", oid, git_dir=self._prepared.store)
            same = self._installed.get(Path(path).name, [])
            found += [other for other in same if len(data) > _LEAST_LINE and _holds(other, data)]
        return found


def answers(text: str, patch: str) -> list[str]:
    """Return lines of the fix, which are those the bug's patch removes, that an issue text holds. Pure."""
    kept = {line[1:].strip() for line in patch.splitlines() if line[:1] in " +" and not line.startswith("+++ ")}
    gone = [line[1:].strip() for line in patch.splitlines() if line[:1] == "-" and not line.startswith("--- ")]
    return [line for line in dict.fromkeys(gone) if len(line) >= _LEAST_LINE and line not in kept and line in text]


def _with_fix(task: Task, runs: Sequence[TestRun]) -> Iterator[Finding]:
    if trouble := next((run.trouble for run in runs if run.trouble), ""):
        yield Finding(kind="gold fails", message=trouble)
        return
    wanted = [*task.fail_to_pass, *task.pass_to_pass]
    yield from _judge(runs, wanted, lambda run: _missing(run, wanted), "gold fails", "does not pass with the fix")


def _without(task: Task, runs: Sequence[TestRun]) -> Iterator[Finding]:
    wanted = task.fail_to_pass
    yield from _judge(runs, wanted, lambda run: _passing(run, wanted), "empty passes", "passes without the fix")


def _text(task: Task) -> Iterator[Finding]:
    for name in strangers(task.problem_statement, task.fail_to_pass, task.pass_to_pass):
        message = f"the issue text rests on {name}, which is not in FAIL_TO_PASS; make the set again, or drop the task"
        yield Finding(kind="issue", message=message)


def _judge(
    runs: Sequence[TestRun], wanted: Sequence[str], bad: Callable[[TestRun], list[str]], kind: Kind, what: str
) -> Iterator[Finding]:
    counts = Counter(test for run in runs for test in bad(run))
    always = [test for test in wanted if counts[test] == len(runs)]
    varies = [test for test in wanted if 0 < counts[test] < len(runs)]
    if always:
        yield Finding(kind=kind, message=f"{always[0]} {what}{_more(always)}")
    if varies:
        message = f"{varies[0]} {what} in {counts[varies[0]]} of {len(runs)} runs{_more(varies)}"
        yield Finding(kind="flaky", message=message)


def _missing(run: TestRun, wanted: Sequence[str]) -> list[str]:
    return [test for test in wanted if run.tests.get(test) not in PASSING]


def _passing(run: TestRun, wanted: Sequence[str]) -> list[str]:
    return [test for test in wanted if run.tests.get(test) in PASSING]


def _more(tests: Sequence[str]) -> str:
    return f", and {len(tests) - 1} more" if len(tests) > 1 else ""


def _changed(prepared: Prepared, bug: str, fixed: str) -> list[tuple[str, str]]:
    """Return (path, object id) of the fixed version of every file that the bug changed or removed."""
    before, after = read_tree(prepared.store, bug), read_tree(prepared.store, fixed)
    return [(path, entry[1]) for path, entry in after.items() if before.get(path) != entry]


def _hidden_in(prepared: Prepared, task: Task, states: State, fixed: str) -> Iterator[Finding]:
    """Look into a real workspace for what it must not hold: as a file, or as an object of its git."""
    bug = read_tree(prepared.store, states.bug)
    secrets = {oid: f"the fixed {path}" for path, oid in _changed(prepared, states.bug, fixed)}
    secrets |= {bug[path][1]: f"the hidden tests {path}" for path in test_files(task.fail_to_pass)}
    tip = {entry[1]: path for path, entry in read_tree(prepared.store, states.tip).items()}
    for oid, what in secrets.items():
        if oid in tip and _size(prepared, oid) > _LEAST_LINE:  # empty files are all alike
            yield Finding(kind="leak", message=f"{what} can be read in the workspace: {tip[oid]} is a copy of it")
    with workspaces.open(prepared, task) as workspace:
        own = workspace.path / ".git"
        if commits := len(git("rev-list", "--all", git_dir=own).split()) - 1:
            yield Finding(kind="leak", message=f"the workspace has a history of {commits} more commits")
        if (own / "objects/info/alternates").exists():
            yield Finding(kind="leak", message="the workspace's git can read the store's objects")
        query = "".join(f"{oid}\n" for oid in secrets if oid not in tip).encode()
        said = git("cat-file", "--batch-check", git_dir=own, data=query).decode().splitlines()
        for oid in (line.split()[0] for line in said if not line.endswith("missing")):
            yield Finding(kind="leak", message=f"{secrets[oid]} can be read from the workspace's git")


def _size(prepared: Prepared, oid: str) -> int:
    """Return the size of an object in the store, in bytes."""
    return int(git("cat-file", "-s", oid, git_dir=prepared.store))


def _holds(path: Path, data: bytes) -> bool:
    try:
        return regular(path, len(data)) == data
    except OSError:  # larger, or no file
        return False


def _python_files(venv: Path) -> dict[str, list[Path]]:
    """Return the Python files of an environment by file name."""
    found: dict[str, list[Path]] = {}
    for folder, _, names in os.walk(venv):
        for name in names:
            if name.endswith(".py"):
                found.setdefault(name, []).append(Path(folder, name))
    return found
