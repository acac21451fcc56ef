"""Candidate bugs from SWE-smith's procedural modifiers (extra `smith`): finding, ordering and screening them.

Screening: a test can detect a bug only if it calls the changed function. One traced run of the suite shows the calls.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import field

from valve_plugin import codec
from valve_plugin.errors import ConfigError, RecordError, TaskError
from valve_plugin.extras import install_command
from valve_plugin.files import read_regular
from valve_plugin.records import Record
from valve_plugin.sandbox.bubblewrap import Sandbox
from valve_plugin.sandbox.git import File, git
from valve_plugin.sandbox.scratch import scratch_folder
from valve_plugin.sandbox.supervisor import ProcessLimits, Watcher, exit_with_parent
from valve_plugin.sandbox.trees import walk
from valve_plugin.tasks.grading.testrun import PROGRESS_PLUGIN
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.tasks.syntax import changed_lines, enclosing_function
from valve_plugin.tasks.workspace import open_commit

UNUSED_MODIFIERS = ("func_pm_class_shuffle_funcs",)
"""Modifiers that are not used. This one reorders methods: none of hundreds of its bugs made a test fail."""
MAX_SHARE = 0.6
"""If tests of a larger share of the test files reach a candidate, running them first saves nothing."""
_SCRIPT = Path(__file__).resolve().with_name("call_tracer.py")
_SLOWER = 20  # factor on the CPU limit of a traced run
_MAX_TRACE_BYTES = 100_000_000  # tested code could write any amount


class Candidate(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One possible bug, not yet tried."""

    modifier: str
    """SWE-smith's name of the change, like func_pm_ctrl_invert_if."""
    file: str
    digest: str
    """SWE-smith's hash of the rewritten code; modifier and digest end the instance id."""
    patch: str


class CallTrace(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The functions that a traced run of the whole suite called."""

    functions: tuple[tuple[str, int, tuple[str, ...]], ...]
    """(file, first line, callers) of each function. Callers are test ids, or test files if there are many; "" stands
    for the collection of tests."""
    counts: dict[str, int]
    """How many tests ran in each test file."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why tests fail, by test id, and why files cannot be collected, by file."""


class ReachingTests(NamedTuple):
    """The tests that reach a candidate; they run first."""

    paths: tuple[str, ...]
    """Test files and test ids."""
    tests: frozenset[str]
    """Suite tests among them. If all pass, no test detects the bug; if there are none, no test can."""
    known_bad: int
    """Tests among them that are not in the suite, and may fail."""


def find_candidates(
    root: Path,
    skip: Callable[[str], bool],
    seed: int,
    workers: int = 1,
    report: Callable[[float], None] = lambda _: None,
) -> list[Candidate]:
    """Return all bugs that the modifiers can make in the Python files of a source tree, in a fixed order.

    Each (file, line, modifier) has its own random generator. So the result does not depend on the order of files, on
    other files of the tree, or on `workers`.

    Args:
        skip: whether a relative path gets no bugs (tests, packaging).
        report: called with the share of bytes that has been read, in (0, 1].

    Raises:
        ConfigError: the extra is not installed.
    """
    try:
        import swesmith.bug_gen.adapters
        import swesmith.bug_gen.procedural.python  # noqa: F401 (slow: once, before processes are forked)
    except ImportError as e:
        raise ConfigError(f"SWE-smith is not installed ({e}); run: {install_command('smith')}") from e
    found = [folder.path(name) for folder in walk(root.resolve()) for name in folder.others if name.endswith(".py")]
    names = [name for name in sorted(found, key=lambda path: path.split("/")) if not skip(name)]
    by_patch: dict[str, Candidate] = {}
    done = list(accumulate((root / name).lstat().st_size + 1 for name in names))
    with multiprocessing.get_context("fork").Pool(workers, _begin, (os.getpid(),)) as pool:
        for so_far, of_file in zip(done, pool.imap(partial(_in_file, root, seed), names), strict=True):
            report(so_far / done[-1])
            for candidate in of_file:
                by_patch.setdefault(candidate.patch, candidate)
        pool.close()  # they end by themselves; a signal could meet a handler that this process had
        pool.join()
    return list(by_patch.values())


def _begin(parent: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which a pool ends them after an error
    exit_with_parent(parent)


def _in_file(root: Path, seed: int, name: str) -> list[Candidate]:
    from swesmith.bug_gen.adapters import get_entities_from_file
    from swesmith.bug_gen.procedural.python import MODIFIERS_PYTHON
    from swesmith.bug_gen.utils import generate_patch_fast

    found = []
    entities: list[Any] = []
    get_entities_from_file[".py"](entities, str(root / name), -1)
    for entity in entities:
        for modifier in MODIFIERS_PYTHON:
            if modifier.name in UNUSED_MODIFIERS or not modifier.can_change(entity):
                continue
            modifier.rand = random.Random(f"{seed}:{name}:{entity.line_start}:{modifier.name}")  # noqa: S311
            bug = modifier.modify(entity)
            patch = bug and generate_patch_fast(entity, bug, str(root))
            if patch:
                found.append(Candidate(modifier=modifier.name, file=name, digest=bug.get_hash(), patch=patch))
    return found


@contextmanager
def unpack_files(files: Sequence[File]) -> Iterator[Path]:
    """Yield a temporary directory with the files, without links."""
    with scratch_folder() as root:
        for path, mode, content in files:
            if mode != "120000":
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(content)
        yield root


def order_candidates(found: Iterable[Candidate], seed: int) -> list[Candidate]:
    """Return the candidates in an order whose prefixes are as diverse in files and modifiers as possible. Pure.

    Greedy: the next candidate is one whose (file, modifier) pair, then whose file and modifier, occurred least often.
    Ties are broken by a shuffle with `seed`.
    """
    left = sorted(found, key=lambda c: (c.file, c.modifier, c.digest, c.patch))
    random.Random(seed).shuffle(left)  # noqa: S311
    pairs: dict[tuple[str, str], deque[tuple[int, Candidate]]] = {}
    for place, candidate in enumerate(left):
        pairs.setdefault((candidate.file, candidate.modifier), deque()).append((place, candidate))
    files: Counter[str] = Counter()
    modifiers: Counter[str] = Counter()
    ordered = []
    while pairs:
        waiting = set(pairs)  # one of each pair before a second of any: comparing pairs only is fast
        while waiting:
            best = min(waiting, key=lambda pair: (files[pair[0]] + modifiers[pair[1]], pairs[pair][0][0]))
            waiting.remove(best)
            ordered.append(pairs[best].popleft()[1])
            files[best[0]] += 1
            modifiers[best[1]] += 1
        pairs = {pair: queue for pair, queue in pairs.items() if queue}
    return ordered


def trace_calls(prepared: PreparedRepository, sandbox: Sandbox, watcher: Watcher | None = None) -> CallTrace | None:
    """Run the whole suite on the original source and return the calls, or None if the run failed."""
    repository = prepared.repository
    with open_commit(prepared, prepared.base) as workspace:
        root, inside = sandbox.root or str(workspace.path), "/tmp" if sandbox.root else str(workspace.tmp)  # noqa: S108
        options = ["-q", "--tb=no", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
        plan = {
            "paths": [f"{root}/{r}".removesuffix("/.") for r in repository.source_roots],
            "arguments": [*options, *repository.pytest_args, "--rootdir", root, *repository.suite_paths],
            "root": root,
            "result": f"{inside}/reached.json",
            "progress": PROGRESS_PLUGIN.read_text() if watcher else "",
        }
        result = workspace.tmp / "reached.json"
        try:
            sandbox.run(
                [str(prepared.python), "-I", str(_SCRIPT)],
                workspace,
                limits=ProcessLimits(cpu_seconds=repository.cpu_seconds * _SLOWER),
                stdin=json.dumps(plan).encode(),
                readonly=[_SCRIPT],
                watcher=watcher,
            )
            return codec.decode(read_regular(result, _MAX_TRACE_BYTES), CallTrace, where="reached.json")
        except (OSError, RecordError, TaskError):  # TaskError: raised by the watcher
            return None


def screener(
    reached: CallTrace, suite: Sequence[str], read: Callable[[str], str]
) -> Callable[[Candidate], ReachingTests | None]:
    """Return a function that returns the tests that reach a candidate, or None if these are not known. Pure.

    Args:
        suite: tests that pass on the original source.
        read: returns the original text of a file of the tree.
    """
    callers = {(file, line): tests for file, line, tests in reached.functions}
    executed = {file for file, _ in callers}  # importing a module counts: its body is code like a function's
    by_file: dict[str, set[str]] = {}
    for test in suite:
        by_file.setdefault(test.split("::", 1)[0], set()).add(test)

    def screen(candidate: Candidate) -> ReachingTests | None:
        found: set[str] = set()
        for first, last in changed_lines(candidate.patch) if candidate.file in executed else ():
            line = enclosing_function(read(candidate.file), first, last)
            if line is None:
                return None
            found.update(callers.get((candidate.file, line), ()))
        files = set(reached.counts) if "" in found else {name for name in found if "::" not in name}
        if len(files) > MAX_SHARE * len(by_file):
            return None
        ids = {name for name in found if name.split("::", 1)[0] not in files}.intersection(suite)
        tests = ids.union(*(by_file.get(file, ()) for file in files))
        known_bad = sum(reached.counts[file] - len(by_file.get(file, ())) for file in files)
        return ReachingTests((*sorted(files), *sorted(ids)), frozenset(tests), max(0, known_bad))

    return screen


def source_reader(prepared: PreparedRepository) -> Callable[[str], str]:
    """Return a function that reads files of the original source, with a cache."""

    @cache
    def read(path: str) -> str:
        return git("cat-file", "blob", f"{prepared.base}:{path}", git_dir=prepared.store).decode("utf-8", "replace")

    return read
