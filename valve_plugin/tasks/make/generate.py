"""Task sets from candidate bugs: survey the repository, try candidates until enough are verified, and choose tasks.

A candidate is verified by the repository's tests: those that fail with it in both of two runs are FAIL_TO_PASS. Slow
results are stored in `work/` of the task directory, so a killed run continues where it stopped.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from msgspec.structs import replace

from valve_plugin import codec
from valve_plugin.errors import RecordError, TaskError
from valve_plugin.files import read_regular, write_atomic
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
from valve_plugin.tasks.issue_text import Issue, headline, pytest_output, write_issue
from valve_plugin.tasks.make import candidates
from valve_plugin.tasks.make.candidates import CallTrace, Candidate, ReachingTests
from valve_plugin.tasks.make.define import CPU_SECONDS, Say, SuiteNeeds, add_declared, collection_errors, define
from valve_plugin.tasks.make.project import examine, find_cures
from valve_plugin.tasks.repository import FILE_NAME, PreparedRepository, Repository, prepare, read_definition
from valve_plugin.tasks.states import commit_tree, is_protected
from valve_plugin.tasks.syntax import patch_changes
from valve_plugin.tasks.task_set import ROWS_NAME, SmithRow, is_test_id
from valve_plugin.tasks.workspace import open_commit

NOT_REACHED = "no test reaches it"
MAX_SINGLE_RUNS = 200
"""If at most this many tests fail, only these run again, by name; else the whole suite runs again."""
SHORT_SUITE_SECONDS = 20
"""CPU limit, in seconds, of short suites (about five seconds): running the reaching tests first saves nothing."""
MAX_SHARED_TESTS = 0.8
"""Two bugs whose failing tests have a larger Jaccard index are alike."""
_AHEAD = 8  # candidates submitted per worker: many are rejected at once, and results are taken in order
_NOT_SOURCE = ("docs/", "setup.py", "examples/", "benchmarks/")
_MAX_SURVEY_BYTES = 1 << 28


class Survey(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts about a repository that are needed before the first bug is tried."""

    suite: tuple[str, ...]
    """Tests that passed in both runs on the original source."""
    reached: CallTrace | None
    """Which tests call which functions, or None if the traced run failed."""


class SurveyFile(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """work/ground.json."""

    digest: str
    """`PreparedRepository.digest` of the surveyed repository."""
    ground: Survey


class CandidateResult(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of trying one candidate: a row, or the reason why there is none."""

    candidate: Candidate
    row: SmithRow | None = None
    issue: Issue | None = None
    """The source of the row's problem statement."""
    flaky: tuple[str, ...] = ()
    """Suite tests that passed in only one of its two runs."""
    reason: str = ""


class GeneratedSet(NamedTuple):
    """A task set that can be written."""

    suite: list[str]
    rows: list[SmithRow]


def is_excluded(path: str, test_roots: Sequence[str]) -> bool:
    """Whether a file gets no bugs, because it is a test, documentation or packaging."""
    return is_protected(path, test_roots) or path.startswith(_NOT_SOURCE)


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

    Args:
        command: the command that makes the tasks; tasks of another command are not replaced.

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
    out: Path, repository: Repository, command: str, sandbox: Sandbox, say: Say, workers: int = 1, *, again: str = ""
) -> tuple[PreparedRepository, Survey]:
    """Prepare a repository, run its tests twice, trace which functions they call, and set the CPU limit of a run.

    Args:
        again: the command as it was typed, if it differs from `command`.

    Raises:
        TaskError: the suite does not run to the end, no test passes, or one hangs. Up to `watch.MAX_IGNORED_FILES`
            files that kill the process are ignored first.
    """
    again = again or command
    prepared = prepare(repository, say)
    path = out / "work" / "ground.json"
    with suppress(OSError, RecordError):
        kept = codec.decode(read_regular(path, _MAX_SURVEY_BYTES), SurveyFile, where=str(path))
        if kept.digest == prepared.digest:
            return prepared, kept.ground
    say("running its tests twice, and once with tracing of the functions they call")
    while True:
        try:
            found, spent = _run_survey(prepared, sandbox, WatchGroup(say, command=again, gives_up=True), workers)
            break
        except watch.ProcessDiedError as e:
            repository = watch.ignore_file(repository, e, again)
            say(f"{e.file} kills the process ({e.how}) and is ignored; running the other files")
            task_set.write_definition(out, repository, command)  # there are no rows yet
            prepared = prepare(repository, say)
        except TaskError as e:
            raise TaskError("; ".join([str(e), *_cures(prepared, [str(e)])])) from e
    if failures := found.reached.failures if found.reached else {}:
        name, why = min(failures.items())
        say(f"{len(failures)} tests and files fail on the original source and are not used; the first: {name}: {why}")
        for cure in _cures(prepared, failures.values()):
            say(f"  {cure}")
    say(f"{len(found.suite)} tests pass in both runs, {spent:.0f} s of CPU time each")
    if repository.cpu_seconds == CPU_SECONDS:
        repository = replace(repository, cpu_seconds=max(10, math.ceil(3 * spent) + 5))
        task_set.write_definition(out, repository, command)  # there are no rows yet
        prepared = prepare(repository, say)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, codec.canonical(SurveyFile(digest=prepared.digest, ground=found)))
    return prepared, found


def _cures(prepared: PreparedRepository, failures: Iterable[str]) -> list[str]:
    """Return what to do about packages that failures say are missing."""
    files = {path: content for path, _, content in read_files(prepared.store, prepared.base)}
    return list(find_cures(failures, examine(files), prepared.repository.requirements).values())


def _run_survey(
    prepared: PreparedRepository, sandbox: Sandbox, group: WatchGroup, workers: int
) -> tuple[Survey, float]:
    """Return the survey, and the CPU seconds of one run of the suite."""
    traced_watch = group.run("traced run")
    with ThreadPoolExecutor(workers) as pool:
        stable = pool.submit(stable_suite, prepared, sandbox, group)
        traced = pool.submit(candidates.trace_calls, prepared, sandbox, traced_watch)
        try:
            suite = stable.result()
        except BaseException:  # Ctrl-C too
            group.stopped = True
            traced.cancel()
            raise
        spent = max(run.cpu_seconds for run in group.runs if run is not traced_watch)
        return Survey(suite=tuple(suite), reached=traced.result()), spent


def stable_suite(prepared: PreparedRepository, sandbox: Sandbox, group: WatchGroup | None = None) -> list[str]:
    """Return the tests that pass in two runs on the original source and are not known to be flaky, sorted.

    Tests whose ids no task can name are left out. (pytest escapes control characters in ids, unless told not to.)

    Raises:
        TaskError: no test passes, or a run hit a limit or hangs; `watch.ProcessDiedError` if a test file ended the
            process.
    """
    passed = []
    for label in ("first run", "second run"):
        follower = group.run(label) if group else None
        run = _run(prepared, prepared.base, sandbox, watcher=follower)
        if run.trouble:
            raise watch.run_error(prepared, run, follower)
        passed.append({test for test, outcome in run.tests.items() if outcome == "passed" and is_test_id(test)})
    if not (suite := sorted((passed[0] & passed[1]).difference(prepared.repository.flaky))):
        why = collection_errors(prepared, sandbox)
        if not why and (test := min(run.tests, default="")):
            why = [f"{test}: {headline(pytest_output(prepared, prepared.base, [test], sandbox, run_limits(prepared)))}"]
        none = f"{prepared.name}: none of its {len(run.tests)} tests passes on the original source"
        raise TaskError(": ".join([none, *why[:1]]))
    return suite


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
    prefix: str = "",
) -> GeneratedSet:
    """Try candidates in order until `wanted` are verified, and until all tasks of the set in `out` are verified again.

    Args:
        prefix: start of the instance ids; if empty, the repository's name and commit.

    Raises:
        TaskError: tasks of the set are not among these candidates, and the set has a split or more tasks.
    """
    prefix = prefix or f"{prepared.repository.slug}.{prepared.base[:8]}"
    # Equal functions in two files give the same instance id: the first candidate counts.
    ordered = list({_instance_id(prefix, c): c for c in reversed(ordered)}.values())[::-1]
    held = task_set.held_tasks(out)
    if not {_instance_id(prefix, c) for c in ordered}.issuperset(held):
        task_set.require_kept(out, {}, wanted)
        held = {}
    reached, read = found.reached, candidates.source_reader(prepared)
    screen = candidates.screener(reached, found.suite, read) if reached else lambda _: None
    return generate(
        prepared,
        found.suite,
        ordered,
        sandbox,
        wanted=max(wanted, len(held)),
        prefix=prefix,
        journal=out / "work" / f"tried-{prepared.digest[:12]}.jsonl",
        workers=workers,
        report=report,
        screen=screen,
        held=held,
    )


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
    screen: Callable[[Candidate], ReachingTests | None] = lambda _: None,
    held: Collection[str] = frozenset(),
) -> GeneratedSet:
    """Try candidates in order until `wanted` are verified; return the suite and the rows in that order.

    The result does not depend on `workers`, because results are used in order. A test that varies with any bug is
    removed from the suite and from every FAIL_TO_PASS, because it says nothing about a patch.

    Args:
        journal: file of results, so that a killed run continues where it stopped.
        report: called with each result that is used.
        screen: returns the tests that reach a candidate, or None if it is not known.
        held: ids of at most `wanted` tasks of the existing set: they are tried again, and kept if they are valid.
    """
    known = _read_journal(journal)
    lock = Lock()

    def attempt(candidate: Candidate) -> CandidateResult:
        if candidate.patch in known:
            return known[candidate.patch]
        tried = try_candidate(prepared, suite, candidate, sandbox, prefix, screen(candidate))
        if tried.reason not in watch.TRY_AGAIN:
            with lock, journal.open("ab") as file:
                file.write(codec.canonical(tried) + b"\n")
        return tried

    found, chosen = list[CandidateResult](), list[SmithRow]()
    flaky, missing = set[str](), set(held)
    with ThreadPoolExecutor(workers) as pool:
        for tried in _map_ahead(pool, attempt, ordered, _AHEAD * workers if workers > 1 else 1):
            report(tried)
            flaky.update(tried.flaky)
            found += [tried] if tried.row else []
            rows = _stable_rows(found, flaky)
            missing.discard(_instance_id(prefix, tried.candidate))
            chosen, enough = choose_rows(rows, wanted, held)
            if enough and not missing:
                break
    return GeneratedSet([test for test in suite if test not in flaky], chosen)


def _instance_id(prefix: str, candidate: Candidate) -> str:
    return f"{prefix}.{candidate.modifier}__{candidate.digest}"


def _map_ahead(
    pool: ThreadPoolExecutor, call: Callable[[Candidate], CandidateResult], items: Iterable[Candidate], ahead: int
) -> Iterator[CandidateResult]:
    """Yield call(item) for each item, in order, with up to `ahead` calls submitted at once."""
    waiting: deque[Future[CandidateResult]] = deque()
    source = iter(items)
    try:
        while True:
            waiting.extend(pool.submit(call, item) for item in islice(source, ahead - len(waiting)))
            if not waiting:
                return
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _read_journal(path: Path) -> dict[str, CandidateResult]:
    """Return the results of earlier runs by patch."""
    known = {}
    for line in task_set.read_journal(path):
        with suppress(RecordError):  # the last line of a killed run may be torn
            tried = codec.decode(line, CandidateResult, where=str(path))
            # Earlier versions also wrote runs that hit the wall limit, and rows without an issue: both are tried again.
            if tried.reason not in watch.TRY_AGAIN and not (tried.row and not tried.issue):
                known[tried.candidate.patch] = tried
    return known


def _stable_rows(found: Iterable[CandidateResult], flaky: set[str]) -> list[SmithRow]:
    """Return the rows without flaky tests, each with an issue about its remaining tests.

    A row is dropped if no test remains, or if no issue can be written about the remaining tests.
    """
    rows = []
    for tried in found:
        if (row := tried.row) and not flaky.isdisjoint(row.fail_to_pass):
            stable = tuple(test for test in row.fail_to_pass if test not in flaky)
            text = tried.issue.text(stable, row.patch) if tried.issue else ""
            row = replace(row, fail_to_pass=stable, problem_statement=text) if text else None
        rows += [row] if row else []
    return rows


def try_candidate(
    prepared: PreparedRepository,
    suite: Sequence[str],
    candidate: Candidate,
    sandbox: Sandbox,
    prefix: str,
    screen: ReachingTests | None = None,
) -> CandidateResult:
    """Run the whole suite with the bug, then the failing tests again; those that fail twice are FAIL_TO_PASS.

    Args:
        screen: tests to run first; if all pass, the whole suite is not run.
    """
    try:
        return _try(prepared, suite, candidate, CandidateSandbox(sandbox), prefix, screen)
    except watch.HangError:
        return CandidateResult(candidate=candidate, reason=watch.HANG_REASON)
    except (watch.TooManyFailuresError, watch.WallLimitError) as e:
        return CandidateResult(candidate=candidate, reason=str(e))


def _try(
    prepared: PreparedRepository,
    suite: Sequence[str],
    candidate: Candidate,
    sandbox: Sandbox,
    prefix: str,
    screen: ReachingTests | None,
) -> CandidateResult:
    if screen and not screen.tests:
        return CandidateResult(candidate=candidate, reason=NOT_REACHED)
    with scratch_folder() as scratch:
        tree = apply_patch(prepared.store, prepared.base, candidate.patch, scratch / "index")
    if tree is None:
        return CandidateResult(candidate=candidate, reason="its patch does not apply")
    bug = commit_tree(prepared, tree)
    if screen and prepared.repository.cpu_seconds > SHORT_SUITE_SECONDS and _all_pass(prepared, bug, sandbox, screen):
        return CandidateResult(candidate=candidate, reason="no test that reaches it notices")
    run = _run(prepared, bug, sandbox, watcher=watch.FailureWatch(frozenset(suite), candidate_watch()))
    failing = set(suite) - _passing(run)
    none = "" if failing else "no test notices it"
    if why := run.trouble or none or watch.too_many_failures(len(failing), len(suite)):
        return CandidateResult(candidate=candidate, reason=why)
    failing, varying, trouble = _confirm(prepared, bug, sandbox, suite, run)
    tests, flaky = tuple(sorted(failing)), tuple(sorted(varying))
    if trouble or not tests:
        return CandidateResult(candidate=candidate, flaky=flaky, reason=trouble or "what it breaks is flaky")
    issue, why = write_issue(prepared, bug, candidate.patch, tests, sandbox)
    if not issue:
        return CandidateResult(candidate=candidate, flaky=flaky, reason=why)
    row = SmithRow(
        instance_id=_instance_id(prefix, candidate),
        repo=prepared.name,
        patch=candidate.patch,
        fail_to_pass=tests,
        problem_statement=issue.text(tests, candidate.patch),
    )
    return CandidateResult(candidate=candidate, row=row, issue=issue, flaky=flaky)


def _all_pass(prepared: PreparedRepository, bug: str, sandbox: Sandbox, screen: ReachingTests) -> bool:
    """Whether every suite test that reaches the bug passes; the run stops at the first failure."""
    run = _run(prepared, bug, sandbox, screen.paths, (f"--maxfail={screen.known_bad + 1}",))
    return not run.trouble and screen.tests <= _passing(run)


def _confirm(
    prepared: PreparedRepository, bug: str, sandbox: Sandbox, suite: Sequence[str], first: TestRun
) -> tuple[set[str], set[str], str]:
    """Return (tests that fail again, tests that vary, the reason if the second run failed).

    The failing tests run again alone. If an outcome differs (perhaps a test depends on another one), the whole suite
    runs again to find out which tests vary.
    """
    failing = set(suite) - _passing(first)
    if len(failing) <= MAX_SINGLE_RUNS:
        alone = _run(prepared, bug, sandbox, sorted(failing))
        if not alone.trouble and all(alone.tests.get(test) == first.tests.get(test) for test in failing):
            return failing, set(), ""
    second = _run(prepared, bug, sandbox)
    return failing - _passing(second), set(suite) & (_passing(first) ^ _passing(second)), second.trouble


def _run(
    prepared: PreparedRepository,
    commit: str,
    sandbox: Sandbox,
    paths: Sequence[str] = (),
    options: Sequence[str] = (),
    watcher: Watcher | None = None,
) -> TestRun:
    paths = paths or prepared.repository.suite_paths
    with open_commit(prepared, commit) as workspace:
        limits = run_limits(prepared)
        run = run_tests(sandbox, workspace, prepared, paths, limits, options, watcher or candidate_watch())
    if run.killed and commit != prepared.base:
        raise watch.WallLimitError(watch.KILLED_REASON)
    return run


def _passing(run: TestRun) -> set[str]:
    """Return the tests that grading counts as passed."""
    return {test for test, outcome in run.tests.items() if outcome in PASSING}


def choose_rows(
    rows: Sequence[SmithRow], wanted: int, held: Collection[str] = frozenset()
) -> tuple[list[SmithRow], bool]:
    """Return at most `wanted` rows in their order, and whether no more need be tried.

    Rows of the existing set (`held`, by id) are chosen first, then rows that no earlier one is like, then others. No
    more are tried once there are enough that differ, or twice as many in all.
    """
    first: list[SmithRow] = []
    for row in rows:
        if not any(are_alike(row, other) for other in first):
            first.append(row)
    ranked = sorted(rows, key=lambda row: (row.instance_id not in held, row not in first))
    chosen = {row.instance_id for row in ranked[:wanted]}
    return [row for row in rows if row.instance_id in chosen], len(first) >= wanted or len(rows) >= 2 * wanted


def are_alike(one: SmithRow, other: SmithRow) -> bool:
    """Whether two bugs are in the same lines, or have nearly the same failing tests."""
    first, second = set(one.fail_to_pass), set(other.fail_to_pass)
    shared, either = len(first & second), len(first | second)
    return shared > MAX_SHARED_TESTS * either or changed_places(one.patch) == changed_places(other.patch) != frozenset()


def changed_places(patch: str) -> frozenset[tuple[str, int]]:
    """Return (file, line) of each line that a patch removes; if it only adds lines, of the lines before these."""
    changes = list(patch_changes(patch))
    removed = frozenset((change.path, change.line) for change in changes if change.text[0] == "-")
    return removed or frozenset((change.path, change.line) for change in changes)
