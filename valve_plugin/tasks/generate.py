"""Verified tasks from candidate bugs: what each bug breaks, found by running the repository's own tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from threading import Lock

from msgspec.structs import replace

from valve_plugin import codec
from valve_plugin.errors import RecordError, TaskError
from valve_plugin.records import Record
from valve_plugin.rollouts import workspace as workspaces
from valve_plugin.rollouts.glance import Tap
from valve_plugin.rollouts.grade import PASSING
from valve_plugin.rollouts.protect import is_protected
from valve_plugin.rollouts.sandbox import Sandbox
from valve_plugin.rollouts.slots import slot
from valve_plugin.rollouts.state import apply, commit_tree
from valve_plugin.rollouts.testrun import TestRun, run_tests
from valve_plugin.tasks import alike, dying
from valve_plugin.tasks.aloud import failures, issue, shown
from valve_plugin.tasks.cut import BrokenError, Cut, reason
from valve_plugin.tasks.folder import journal as journal_lines
from valve_plugin.tasks.follow import EndlessError, Following
from valve_plugin.tasks.issue_text import Issue
from valve_plugin.tasks.load import Row
from valve_plugin.tasks.patience import STARVED, WAITS, Patient, StarvedError, limits_of, patience
from valve_plugin.tasks.repository import Prepared
from valve_plugin.tasks.screen import Look
from valve_plugin.tasks.smith import Candidate

NOT_REACHED = "no test reaches it"
MOST_ALONE = 200
"""Tests that are run again by name; where more fail, the whole suite is."""
SHORT = 20
"""CPU seconds a run may take where the suite takes five (`make.survey`): to start a run costs as much as to end it, so
that looking first at the tests that reach a bug saves nothing."""
_AHEAD = 8  # candidates taken up for each worker: many cost nothing, and results are taken in order
_NOT_SOURCE = ("docs/", "setup.py", "examples/", "benchmarks/")


class Tried(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of one candidate: a row, or the reason there is none."""

    candidate: Candidate
    row: Row | None = None
    issue: Issue | None = None
    """What the row's problem statement is made from."""
    flaky: tuple[str, ...] = ()
    """Suite tests that passed in one of its two runs only."""
    reason: str = ""


def skip(path: str, test_roots: Sequence[str]) -> bool:
    """True for files in which no bug is wanted: tests, documentation, packaging."""
    return is_protected(path, test_roots) or path.startswith(_NOT_SOURCE)


def stable_suite(prepared: Prepared, sandbox: Sandbox, following: Following | None = None) -> list[str]:
    """Return the tests that pass in two runs on the untouched source and are not known as flaky, sorted.

    Raises:
        TaskError: no test passes, or a run was cut short, or waits without end; `dying.DiedError` where what it ran
            ended the process, and it is known which file did.
    """
    runs, ends = list[TestRun](), list[float]()
    for label in ("first run", "second run"):
        follow = following.run(label, ends) if following else None
        runs.append(_run(prepared, prepared.base, sandbox, tap=follow))
        if runs[-1].trouble:
            raise dying.error(prepared, runs[-1], follow)
        ends = follow.ends if follow else []
    if not (suite := sorted((_passed(runs[0]) & _passed(runs[1])).difference(prepared.repository.flaky))):
        raise TaskError(f"{prepared.name}: none of its {len(runs[0].tests)} tests passes on the untouched source")
    return suite


def generate(
    prepared: Prepared,
    suite: Sequence[str],
    ordered: Iterable[Candidate],
    sandbox: Sandbox,
    *,
    wanted: int,
    prefix: str,
    journal: Path,
    workers: int = 1,
    told: Callable[[Tried], None] = lambda _: None,
    screen: Callable[[Candidate], Look | None] = lambda _: None,
    distinct: bool = False,
    held: Collection[str] = frozenset(),
) -> tuple[list[str], list[Row]]:
    """Try candidates in order until `wanted` of them are verified; return (suite, rows in that order).

    The result does not depend on `workers`: candidates are tried a few ahead, but taken in order. A test that was
    seen to vary with any bug leaves the returned suite, and FAIL_TO_PASS of all rows: it says nothing about a patch.

    Args:
        prefix: what instance ids begin with.
        journal: file of what was tried, so that a run that was killed goes on where it stopped.
        told: called with every result that is taken.
        screen: returns the tests that reach what a candidate changes; None: it may be any.
        distinct: rather take rows whose tests no other row fails (`alike.py`).
        held: ids of tasks that the set holds already, at most `wanted`: they are tried again, and stay if they hold.
    """
    known = _read_journal(journal)
    lock = Lock()

    def attempt(candidate: Candidate) -> Tried:
        if candidate.patch not in known:
            tried = try_candidate(prepared, suite, candidate, sandbox, prefix, screen(candidate))
            if tried.reason != STARVED:
                with lock, journal.open("ab") as file:
                    file.write(codec.canonical(tried) + b"\n")
            return tried
        return known[candidate.patch]

    found, rows = list[Tried](), list[Row]()
    flaky, waited = set[str](), set(held)
    with ThreadPoolExecutor(workers) as pool:
        for tried in _ahead(pool, attempt, ordered, _AHEAD * workers if workers > 1 else 1):
            told(tried)
            flaky.update(tried.flaky)
            found += [tried] if tried.row else []
            rows = _settled(found, flaky)
            enough = alike.enough(rows, wanted) if distinct else len(rows) >= wanted
            waited.discard(f"{prefix}.{tried.candidate.modifier}__{tried.candidate.digest}")
            if enough and not waited:
                break
    return [test for test in suite if test not in flaky], alike.chosen(rows, wanted, held, distinct=distinct)


def _settled(found: Iterable[Tried], flaky: set[str]) -> list[Row]:
    """Return the rows without tests that vary, each with a text about what is left.

    One that fails no others, or about whose others there is nothing to say, is gone.
    """
    rows = []
    for tried in found:
        if (row := tried.row) and not flaky.isdisjoint(row.fail_to_pass):
            firm = tuple(test for test in row.fail_to_pass if test not in flaky)
            text = tried.issue.text(firm, row.patch) if tried.issue else ""
            row = replace(row, fail_to_pass=firm, problem_statement=text) if text else None
        rows += [row] if row else []
    return rows


def try_candidate(
    prepared: Prepared,
    suite: Sequence[str],
    candidate: Candidate,
    sandbox: Sandbox,
    prefix: str,
    look: Look | None = None,
) -> Tried:
    """Run the whole suite with the bug, and what fails once more: what fails both times is FAIL_TO_PASS.

    Args:
        look: tests that are worth a look first; where all of them pass, the whole suite is not run.
    """
    try:
        return _try(prepared, suite, candidate, Patient(sandbox), prefix, look)
    except EndlessError:
        return Tried(candidate=candidate, reason=WAITS)
    except BrokenError as e:
        return Tried(candidate=candidate, reason=str(e))
    except StarvedError:
        return Tried(candidate=candidate, reason=STARVED)


def _try(
    prepared: Prepared, suite: Sequence[str], candidate: Candidate, sandbox: Sandbox, prefix: str, look: Look | None
) -> Tried:
    if look and not look.tests:
        return Tried(candidate=candidate, reason=NOT_REACHED)
    with slot() as (_, scratch):
        tree = apply(prepared, prepared.base, candidate.patch, scratch / "index")
    if tree is None:
        return Tried(candidate=candidate, reason="its patch does not apply")
    bug = commit_tree(prepared, tree)
    if look and prepared.repository.cpu_seconds > SHORT and _unnoticed(prepared, bug, sandbox, look):
        return Tried(candidate=candidate, reason="no test that reaches it notices")
    run = _run(prepared, bug, sandbox, (), (), Cut(frozenset(suite), patience()))
    failing = set(suite) - _passing(run)
    none = "" if failing else "no test notices it"
    if why := run.trouble or none or reason(len(failing), len(suite)):
        return Tried(candidate=candidate, reason=why)
    heard = _fail_again(prepared, bug, sandbox, failing, run)
    varying, trouble = set[str](), ""
    if heard.keys() != failing:
        failing, varying, trouble = _confirmed(prepared, bug, sandbox, suite, run)
    flaky = tuple(sorted(varying))
    if trouble or not failing:
        return Tried(candidate=candidate, flaky=flaky, reason=trouble or "what it breaks is flaky")
    made, why = issue(prepared, bug, candidate.patch, sorted(failing), sandbox, heard)
    if not made:
        return Tried(candidate=candidate, flaky=flaky, reason=why)
    row = Row(
        instance_id=f"{prefix}.{candidate.modifier}__{candidate.digest}",
        repo=prepared.name,
        patch=candidate.patch,
        fail_to_pass=tuple(sorted(failing)),
        problem_statement=made.text(sorted(failing), candidate.patch),
    )
    return Tried(candidate=candidate, row=row, issue=made, flaky=flaky)


def _unnoticed(prepared: Prepared, bug: str, sandbox: Sandbox, look: Look) -> bool:
    """True when every test of the suite that reaches the bug passes; the first that fails ends the run."""
    run = _run(prepared, bug, sandbox, look.paths, (f"--maxfail={look.known_bad + 1}",))
    return not run.trouble and look.tests <= _passing(run)


def _fail_again(prepared: Prepared, bug: str, sandbox: Sandbox, failing: set[str], first: TestRun) -> dict[str, str]:
    """Return what tests say that fail once more by themselves; nothing where only `_confirmed` can tell."""
    if len(failing) > MOST_ALONE or any(first.tests.get(test) != "failed" for test in failing):
        return {}
    tests = sorted(failing)
    try:
        return failures(shown(prepared, bug, tests, sandbox, limits_of(prepared)), tests)
    except EndlessError:  # only by themselves
        return {}


def _confirmed(
    prepared: Prepared, bug: str, sandbox: Sandbox, suite: Sequence[str], first: TestRun
) -> tuple[set[str], set[str], str]:
    """Return (tests that fail again, tests that vary, why there is no telling).

    They are run again by themselves. Where they do not come out as before, perhaps because one hangs on another, only
    the whole suite tells what varies.
    """
    failing = set(suite) - _passing(first)
    if len(failing) <= MOST_ALONE:
        alone = _run(prepared, bug, sandbox, sorted(failing))
        if not alone.trouble and all(alone.tests.get(test) == first.tests.get(test) for test in failing):
            return failing, set(), ""
    again = _run(prepared, bug, sandbox)
    return failing - _passing(again), set(suite) & (_passing(first) ^ _passing(again)), again.trouble


def _run(
    prepared: Prepared,
    commit: str,
    sandbox: Sandbox,
    paths: Sequence[str] = (),
    options: Sequence[str] = (),
    tap: Tap | None = None,
) -> TestRun:
    roots = prepared.repository.whole
    with workspaces.at_commit(prepared, commit) as workspace:
        tap = tap or patience()
        return run_tests(sandbox, workspace, prepared, paths or roots, limits_of(prepared), options, tap)


def _passed(run: TestRun) -> set[str]:
    return {test for test, outcome in run.tests.items() if outcome == "passed"}


def _passing(run: TestRun) -> set[str]:
    """Return what grading takes for passed: a test that is marked as failing, and passes only by luck, too."""
    return {test for test, outcome in run.tests.items() if outcome in PASSING}


def _ahead(
    pool: ThreadPoolExecutor, call: Callable[[Candidate], Tried], items: Iterable[Candidate], ahead: int
) -> Iterator[Tried]:
    """Yield call(item) in order, with `ahead` calls begun or waiting for a worker."""
    waiting: deque[Future[Tried]] = deque()
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


def _read_journal(path: Path) -> dict[str, Tried]:
    known = {}
    for line in journal_lines(path):
        with suppress(RecordError):  # the last line of a run that was killed may be torn
            tried = codec.decode(line, Tried, where=str(path))
            # Earlier versions noted STARVED, and rows without what their text was made from: tried again.
            if tried.reason != STARVED and not (tried.row and not tried.issue):
                known[tried.candidate.patch] = tried
    return known
