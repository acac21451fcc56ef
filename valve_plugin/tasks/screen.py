"""Which tests can notice a change at all: those that call the function it is in, in one watched run."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from valve_plugin import codec
from valve_plugin.errors import RecordError, TaskError
from valve_plugin.reading import regular
from valve_plugin.records import Record
from valve_plugin.rollouts import workspace as workspaces
from valve_plugin.rollouts.glance import Tap
from valve_plugin.rollouts.limits import Limits
from valve_plugin.rollouts.sandbox import Sandbox
from valve_plugin.rollouts.testrun import NOW
from valve_plugin.tasks.git import git
from valve_plugin.tasks.repository import Prepared
from valve_plugin.tasks.smith import Candidate
from valve_plugin.tasks.syntax import parsed

MAX_SHARE = 0.6
"""Where more of the test files than this reach a candidate, looking at those first saves nothing."""
_SCRIPT = Path(__file__).resolve().with_name("reach.py")
_SLOWER = 20  # a profiled call takes that much longer at worst
_MAX_BYTES = 100_000_000  # of what a watched run notes; the run may write there what it likes
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? ", re.MULTILINE)


class Reached(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a watched run of the whole suite called."""

    functions: tuple[tuple[str, int, tuple[str, ...]], ...]
    """File and first line of a function, and who calls it: test ids if few do, else their files; "" is collecting."""
    counts: dict[str, int]
    """How many tests ran in each test file."""


class Look(NamedTuple):
    """What to run first for a candidate."""

    paths: tuple[str, ...]
    """Test files and test ids."""
    tests: frozenset[str]
    """Tests of the suite among them: where all of these pass, nothing notices the bug. Empty: nothing can."""
    known_bad: int
    """Tests among them that are not of the suite, and may fail."""


def watch(prepared: Prepared, sandbox: Sandbox, tap: Tap | None = None) -> Reached | None:
    """Run the whole suite on the untouched source and note what it calls; None when that did not work out."""
    repository = prepared.repository
    limits = Limits(cpu_seconds=repository.cpu_seconds * _SLOWER)
    with workspaces.at_commit(prepared, prepared.base) as workspace:
        root, inside = sandbox.root or str(workspace.path), "/tmp" if sandbox.root else str(workspace.tmp)  # noqa: S108
        options = ["-q", "--tb=no", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
        plan = {
            "paths": [f"{root}/{r}".removesuffix("/.") for r in repository.source_roots],
            "arguments": [*options, *repository.pytest_args, "--rootdir", root, *repository.whole],
            "root": root,
            "result": f"{inside}/reached.json",
            "now": NOW.read_text() if tap else "",
        }
        command = [str(prepared.python), "-I", str(_SCRIPT)]
        stdin, result = json.dumps(plan).encode(), workspace.tmp / "reached.json"
        try:
            sandbox.run(command, workspace, limits=limits, stdin=stdin, readonly=[_SCRIPT], tap=tap)
            return codec.decode(regular(result, _MAX_BYTES), Reached, where="reached.json")
        except (OSError, RecordError, TaskError):  # the last by who follows it
            return None


def screener(reached: Reached, suite: Sequence[str], read: Callable[[str], str]) -> Callable[[Candidate], Look | None]:
    """Return a function from a candidate to the tests that reach it; None: it may be any. Pure.

    Args:
        suite: tests that pass on the untouched source.
        read: returns the untouched text of a file of the tree.
    """
    callers = {(file, line): tests for file, line, tests in reached.functions}
    executed = {file for file, _ in callers}  # importing a module counts: its body is code like a function's
    by_file: dict[str, set[str]] = {}
    for test in suite:
        by_file.setdefault(test.split("::", 1)[0], set()).add(test)

    def screen(candidate: Candidate) -> Look | None:
        found: set[str] = set()
        for first, last in changed_lines(candidate.patch) if candidate.file in executed else ():
            line = enclosing(read(candidate.file), first, last)
            if line is None:
                return None
            found.update(callers.get((candidate.file, line), ()))
        files = set(reached.counts) if "" in found else {name for name in found if "::" not in name}
        if len(files) > MAX_SHARE * len(by_file):
            return None
        ids = {name for name in found if name.split("::", 1)[0] not in files}.intersection(suite)
        tests = ids.union(*(by_file.get(file, ()) for file in files))
        known_bad = sum(reached.counts[file] - len(by_file.get(file, ())) for file in files)
        return Look((*sorted(files), *sorted(ids)), frozenset(tests), max(0, known_bad))

    return screen


def changed_lines(patch: str) -> Iterator[tuple[int, int]]:
    """Yield (first, last) line of the old file that each hunk removes; the line before, where it only adds."""
    for match in _HUNK.finditer(patch):
        line, removed, added = int(match[1]), [], []
        for text in patch[match.end() :].split("\n")[1:]:
            if text.startswith(("@@", "diff ", "--- ")):
                break
            if text[:1] == "-":
                removed.append(line)
            elif text[:1] == "+":
                added.append(line - 1)
            line += text[:1] in (" ", "-") and text != ""
        if changed := removed or added:
            yield changed[0], changed[-1]


def enclosing(source: str, first: int, last: int) -> int | None:
    """Return the line on which Python says the innermost function around these lines begins; None: there is none."""
    tree = parsed(source)
    if tree is None:
        return None
    best: int | None = None
    for node in ast.walk(tree):  # outer functions come before inner ones
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if node.body[0].lineno <= first and last <= (node.end_lineno or 0):
            best = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return best


def reader(prepared: Prepared) -> Callable[[str], str]:
    """Return a function that reads files of the untouched source, each once."""
    texts: dict[str, str] = {}

    def read(path: str) -> str:
        if path not in texts:
            data = git("cat-file", "blob", f"{prepared.base}:{path}", git_dir=prepared.store)
            texts[path] = data.decode("utf-8", "replace")
        return texts[path]

    return read
