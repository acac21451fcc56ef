"""Task sets from candidate bugs: survey the repository, try candidates until enough are verified, and choose tasks.

A candidate is verified by the repository's tests: those that fail with it in both of two runs are FAIL_TO_PASS. Slow
results are stored in `work/` of the task directory, so a killed run continues where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock
from typing import NamedTuple

from msgspec.structs import replace

from valve_plugin import codec
from valve_plugin.errors import BankNotFoundError, RecordError, TaskError
from valve_plugin.files import read_limited, read_regular, write_atomic
from valve_plugin.records import Record
from valve_plugin.sandbox.bubblewrap import Sandbox
from valve_plugin.sandbox.git import File, apply_patch, read_files
from valve_plugin.sandbox.scratch import scratch_folder
from valve_plugin.sandbox.supervisor import Watcher
from valve_plugin.tasks import task_set
from valve_plugin.tasks.grading import watch
from valve_plugin.tasks.grading.grade import PASSING
from valve_plugin.tasks.grading.testrun import TestRun, run_tests
from valve_plugin.tasks.grading.watch import CandidateSandbox, WatchGroup, candidate_watch, run_limits
from valve_plugin.tasks.issue_text import write_issue
from valve_plugin.tasks.make.candidates import Candidate
from valve_plugin.tasks.make.define import CPU_SECONDS, Say, SuiteNeeds, add_declared, collection_errors, define
from valve_plugin.tasks.make.project import examine, find_cures
from valve_plugin.tasks.repository import FILE_NAME, PreparedRepository, Repository, prepare, read_definition
from valve_plugin.tasks.states import commit_tree, open_commit
from valve_plugin.tasks.task_set import ROWS_NAME, SmithRow, is_test_id

MAX_SINGLE_RUNS = 200
"""If at most this many tests fail, only these run again, by name; else the whole suite runs again."""
_MAX_SURVEY_BYTES, _MAX_JOURNAL_BYTES = 1 << 28, 1 << 30


class Survey(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """work/survey.json: what is known about a repository before the first bug is tried."""

    digest: str
    """`PreparedRepository.digest` of the surveyed repository."""
    suite: tuple[str, ...]
    """Tests that passed in both runs on the original source."""


class CandidateResult(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of trying one candidate: a row, or the reason why there is none."""

    candidate: Candidate
    row: SmithRow | None = None
    flaky: tuple[str, ...] = ()
    """Suite tests whose outcomes differ between two runs with it."""
    reason: str = ""


class GeneratedSet(NamedTuple):
    """A task set that can be written."""

    suite: list[str]
    rows: list[SmithRow]


def define_repository(
    out: Path,
    name: str,
    files: Sequence[File],
    command: str,
    needs: SuiteNeeds,
    *,
    say: Say,
    wanted: int,
) -> Repository:
    """Return the definition in `out`; make it unless one exists that is still valid. See `define`.

    Raises:
        TaskError: `out` has tasks of another command, or more tasks about other source; or there are no tests or no
            pytest.
    """
    task_set.check_free(out, command)
    try:
        known = read_definition(out / FILE_NAME) if task_set.made_by(out).partition(" --")[0] == command else None
    except TaskError:
        known = None  # damaged: made again
    found = define(name, files, out, needs, known=known, say=say)
    found = add_declared(found, needs.complete, say) if needs.complete else found
    if found != known:
        task_set.require_kept(out, {}, wanted)
        (out / ROWS_NAME).unlink(missing_ok=True)  # about other source
        task_set.write_definition(out, found, command)
    return replace(found, suite="")  # not known yet


def survey(
    out: Path, repository: Repository, command: str, sandbox: Sandbox, say: Say, *, again: str = ""
) -> tuple[PreparedRepository, Survey]:
    """Prepare a repository, run its tests twice, and set the CPU limit of a run.

    Args:
        again: the command as it was typed, if it differs from `command`.

    Raises:
        TaskError: the suite does not run to the end, no test passes, or one hangs.
    """
    prepared = prepare(repository, say)
    path = out / "work" / "survey.json"
    with suppress(OSError, RecordError):
        kept = codec.decode(read_regular(path, _MAX_SURVEY_BYTES), Survey, where=str(path))
        if kept.digest == prepared.digest:
            return prepared, kept
    say("running its tests twice")
    group = WatchGroup(say, command=again or command, gives_up=True)
    try:
        suite, run = stable_suite(prepared, sandbox, group)
    except TaskError as e:
        raise TaskError("; ".join([str(e), *_cures(prepared, [str(e)])])) from e
    if run.reasons:
        name, first = min(run.reasons.items())
        count = len(run.reasons)
        say(f"{count} tests and files fail on the original source and are not used; the first: {name}: {first.message}")
        for cure in _cures(prepared, [reason.message for reason in run.reasons.values()]):
            say(f"  {cure}")
    spent = max(watched.cpu_seconds for watched in group.runs)
    say(f"{len(suite)} tests pass in both runs, {spent:.0f} s of CPU time each")
    if repository.cpu_seconds == CPU_SECONDS:
        repository = replace(repository, cpu_seconds=max(10, math.ceil(3 * spent) + 5))
        task_set.write_definition(out, repository, command)  # there are no rows yet
        prepared = prepare(repository, say)
    found = Survey(digest=prepared.digest, suite=tuple(suite))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, codec.canonical(found))
    return prepared, found


def _cures(prepared: PreparedRepository, failures: Iterable[str]) -> list[str]:
    """Return what to do about packages that failures say are missing."""
    files = {path: content for path, _, content in read_files(prepared.store, prepared.base)}
    return list(find_cures(failures, examine(files), prepared.repository.requirements).values())


def stable_suite(
    prepared: PreparedRepository, sandbox: Sandbox, group: WatchGroup | None = None
) -> tuple[list[str], TestRun]:
    """Return (the tests that pass in two runs on the original source and are not known to be flaky, the last run).

    Tests whose ids no task can name are left out. (pytest escapes control characters in ids, unless told not to.)

    Raises:
        TaskError: no test passes, or a run hit a limit, hangs, or was ended by a test file.
    """
    passed = []
    for label in ("first run", "second run"):
        follower = group.run(label) if group else None
        run = _run(prepared, prepared.base, sandbox, watcher=follower)
        if run.trouble:
            raise watch.run_error(prepared, run, follower)
        passed.append({test for test, outcome in run.tests.items() if outcome == "passed" and is_test_id(test)})
    if not (suite := sorted((passed[0] & passed[1]).difference(prepared.repository.flaky))):
        why = [f"{where}: {reason.message}" for where, reason in sorted(run.reasons.items())[:1]]
        none = f"{prepared.name}: none of its {len(run.tests)} tests passes on the original source"
        raise TaskError(": ".join([none, *(why or collection_errors(prepared, sandbox)[:1])]))
    return suite, run


def try_candidates(
    out: Path,
    prepared: PreparedRepository,
    found: Survey,
    ordered: Sequence[Candidate],
    sandbox: Sandbox,
    *,
    wanted: int,
    workers: int,
    report: Callable[[CandidateResult], None],
) -> GeneratedSet:
    """Try candidates in order until `wanted` are verified, and until all tasks of the set in `out` are verified again.

    Raises:
        TaskError: tasks of the set are not among these candidates, and the set has a split or more tasks.
    """
    prefix = f"{prepared.name.replace('/', '__')}.{prepared.base[:8]}"
    # Equal functions in two files give the same instance id: the first candidate counts.
    ordered = list({_instance_id(prefix, c): c for c in reversed(ordered)}.values())[::-1]
    held = task_set.held_tasks(out)
    if not {_instance_id(prefix, c) for c in ordered}.issuperset(held):
        task_set.require_kept(out, {}, wanted)
        held = {}
    journal = out / "work" / f"tried-{prepared.digest[:12]}.jsonl"
    return generate(
        prepared, found.suite, ordered, sandbox, wanted=max(wanted, len(held)), prefix=prefix, journal=journal,
        workers=workers, report=report, held=held,
    )  # fmt: skip


def generate(
    prepared: PreparedRepository,
    suite: Sequence[str],
    ordered: Iterable[Candidate],
    sandbox: Sandbox,
    *,
    wanted: int,
    prefix: str,
    journal: Path,
    workers: int = 1,
    report: Callable[[CandidateResult], None] = lambda _: None,
    held: Collection[str] = frozenset(),
) -> GeneratedSet:
    """Try candidates in order until `wanted` are verified; return the suite and the rows in that order.

    The result does not depend on `workers`, because results are used in order. A test that varies with any bug is
    removed from the suite, and so are the rows that it belongs to, because it says nothing about a patch.

    Args:
        journal: file of results, so that a killed run continues where it stopped.
        held: ids of at most `wanted` tasks of the existing set: they are tried again, and kept if they are valid.
    """
    known = _read_journal(journal)
    lock, over = Lock(), Event()

    def attempt(candidate: Candidate) -> CandidateResult:
        if candidate.patch in known:
            return known[candidate.patch]
        tried = try_candidate(prepared, suite, candidate, CandidateSandbox(sandbox, over), prefix)
        if tried.reason not in watch.TRY_AGAIN:
            with lock, journal.open("ab") as file:
                file.write(codec.canonical(tried) + b"\n")
        return tried

    rows, flaky, missing = list[SmithRow](), set[str](), set(held)
    pool = ThreadPoolExecutor(workers)
    try:
        for tried in pool.map(attempt, ordered):
            report(tried)
            flaky.update(tried.flaky)
            rows += [tried.row] if tried.row else []
            rows = [row for row in rows if flaky.isdisjoint(row.fail_to_pass)]
            missing.discard(_instance_id(prefix, tried.candidate))
            if len(rows) >= wanted and not missing:
                break
    finally:
        over.set()
        pool.shutdown(cancel_futures=True)
    kept = {row.instance_id for row in sorted(rows, key=lambda row: row.instance_id not in held)[:wanted]}
    return GeneratedSet([t for t in suite if t not in flaky], [row for row in rows if row.instance_id in kept])


def _instance_id(prefix: str, candidate: Candidate) -> str:
    return f"{prefix}.{candidate.modifier}__{candidate.digest}"


def _read_journal(path: Path) -> dict[str, CandidateResult]:
    known: dict[str, CandidateResult] = {}
    data = b""
    with suppress(BankNotFoundError):
        data = read_limited(path, _MAX_JOURNAL_BYTES, "journal")
    for line in data.split(b"\n"):
        with suppress(RecordError):  # the last line of a killed run may be torn
            tried = codec.decode(line, CandidateResult, where=str(path))
            known[tried.candidate.patch] = tried
    return known


def try_candidate(
    prepared: PreparedRepository, suite: Sequence[str], candidate: Candidate, sandbox: CandidateSandbox, prefix: str
) -> CandidateResult:
    """Run the whole suite with the bug, then the failing tests again; those that fail twice are FAIL_TO_PASS."""
    with scratch_folder() as scratch:
        tree = apply_patch(prepared.store, prepared.base, candidate.patch, scratch / "index")
    if tree is None:
        return CandidateResult(candidate=candidate, reason="its patch does not apply")
    bug = commit_tree(prepared, tree)
    try:
        run = _run(prepared, bug, sandbox, watcher=watch.FailureWatch(frozenset(suite), candidate_watch()))
        tests = tuple(sorted(set(suite) - _passing(run)))
        none = "" if tests else "no test notices it"
        if why := run.trouble or none or watch.too_many_failures(len(tests), len(suite)):
            return CandidateResult(candidate=candidate, reason=why)
        flaky, trouble = _varying(prepared, bug, sandbox, suite, run)
        if trouble or flaky:
            return CandidateResult(candidate=candidate, flaky=flaky, reason=trouble or "what shows it varies")
        text, why = write_issue(prepared, bug, candidate.patch, tests, sandbox)
    except watch.HangError:
        return CandidateResult(candidate=candidate, reason=watch.HANG_REASON)
    except (watch.TooManyFailuresError, watch.WallLimitError) as e:
        return CandidateResult(candidate=candidate, reason=str(e))
    if not text:
        return CandidateResult(candidate=candidate, reason=why)
    row = SmithRow(
        instance_id=_instance_id(prefix, candidate),
        repo=prepared.name,
        patch=candidate.patch,
        fail_to_pass=tests,
        problem_statement=text,
    )
    return CandidateResult(candidate=candidate, row=row)


def _varying(
    prepared: PreparedRepository, bug: str, sandbox: Sandbox, suite: Sequence[str], first: TestRun
) -> tuple[tuple[str, ...], str]:
    """Return (suite tests whose outcome differs in a second run, the reason if that run failed).

    The failing tests run again alone. If an outcome differs (perhaps a test depends on another one), the whole suite
    runs again.
    """
    failing = set(suite) - _passing(first)
    if len(failing) <= MAX_SINGLE_RUNS:
        alone = _run(prepared, bug, sandbox, sorted(failing))
        if not alone.trouble and all(alone.tests.get(test) == first.tests.get(test) for test in failing):
            return (), ""
    second = _run(prepared, bug, sandbox)
    return tuple(sorted(set(suite) & (_passing(first) ^ _passing(second)))), second.trouble


def _run(
    prepared: PreparedRepository,
    commit: str,
    sandbox: Sandbox,
    paths: Sequence[str] = (),
    watcher: Watcher | None = None,
) -> TestRun:
    paths = paths or prepared.repository.test_roots
    with open_commit(prepared, commit) as workspace:
        limits = run_limits(prepared)
        run = run_tests(sandbox, workspace, prepared, paths, limits, watcher=watcher or candidate_watch())
    if run.killed and commit != prepared.base:
        raise watch.WallLimitError(watch.KILLED_REASON)
    return run


def _passing(run: TestRun) -> set[str]:
    """Return the tests that grading counts as passed."""
    return {test for test, outcome in run.tests.items() if outcome in PASSING}
