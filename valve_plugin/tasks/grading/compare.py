"""Whether a pass is forged: the tests that fail with the bug run with other inputs, with the patch and with the fix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from pathlib import PurePosixPath

from valve_plugin.records import SUSPICIOUS, Task
from valve_plugin.sandbox.bubblewrap import Sandbox
from valve_plugin.sandbox.git import git_line, read_blobs, read_tree, write_tree
from valve_plugin.sandbox.scratch import scratch_folder
from valve_plugin.tasks.grading.answers import REACHES
from valve_plugin.tasks.grading.kept import run_once, tree_id
from valve_plugin.tasks.grading.other_inputs import Seen, agreement, asking, function_of, most_alike
from valve_plugin.tasks.grading.testrun import Asked, TestRun
from valve_plugin.tasks.repository import PreparedRepository
from valve_plugin.tasks.states import first_paths, test_files

_MOST_ASKED = 40  # tests that run with other inputs
_MOST_BESIDE = 6  # tests that passed with the bug, and run with them, too


def compared(prepared: PreparedRepository, task: Task, bug: str, tree: str, sandbox: Sandbox) -> tuple[str, str]:
    """Return (why a pass is forged, what a person should look at), as other runs of its failing tests show."""
    base = tree_id(prepared.store, prepared.base)
    if tree == base:
        return "", ""
    ask = _Asking(prepared, task, bug, base, sandbox)
    (fix, fixed, early), (_, again, _), (_, broken, _) = ask.runs(base), ask.runs(base, again=True), ask.runs(bug)
    more = sorted(ask.reached(tree) - ask.reached(base) - ask.reached(bug))
    why = ""
    for second in (False, True):  # what a run shows, another one confirms
        run, seen, died = ask.runs(tree, again=second)
        notes = (seen, fixed, again, broken)
        found = agreement(*(_of(ask.failing, one) for one in notes))
        why = found.forged or ("with other inputs, it ends the process of its tests" if died and not early else "")
        if alone := [test for test in ask.functions if fix.get(test) == "passed" != run.get(test)]:
            why = f"{alone[0]} passes only where it runs as a test; with the known fix, elsewhere too"
        if more:
            why = f"its code reaches `{more[0]}` as it runs"
        if not why:
            beside = (agreement(*(_of({name}, one) for one in notes)).look_beside for name in ask.beside)
            look = found.look or next(filter(None, beside), "")
            return "", look if sandbox.isolates else ""  # else there are no other inputs
    return f"{SUSPICIOUS} {why}", ""


class _Asking:
    """Runs the tests that fail with a task's bug with other inputs: as a program, and under pytest where none can."""

    def __init__(self, prepared: PreparedRepository, task: Task, bug: str, base: str, sandbox: Sandbox) -> None:
        self._prepared, self._sandbox, self._fix = prepared, sandbox, base
        self._paths = test_files(task.fail_to_pass)
        self._first = first_paths(task, prepared.repository.test_roots)
        reasons = run_once(prepared, bug, self._first, sandbox).reasons
        places = {test: reasons[test].line.rpartition(":")[0] for test in task.fail_to_pass if test in reasons}
        lines = set(places.values())
        self._elsewhere = {test for test, path in places.items() if path != test.partition("::")[0]}
        self._base = read_tree(prepared.store, base)
        around = {str(folder / "conftest.py") for path in self._paths for folder in PurePosixPath(path).parents}
        used = sorted({*self._paths, *lines, *around})
        files = [path for path in used if path in self._base and path.endswith(".py")]
        sources = read_blobs(prepared.store, [self._base[path][1] for path in files])
        asked = {path: asking(source) for path, source in zip(files, sources, strict=True)}
        self._files = {path: text for path, text in asked.items() if text}
        tests = task.fail_to_pass if self._files else ()
        failing = _some_of_each(tests)
        self.functions = self._inside(failing)
        self.failing = {function_of(test) for test in failing}
        near = [test for test in task.pass_to_pass if tests and test.partition("::")[0] in self._files]
        near = [test for test in near if function_of(test) not in self.failing]
        beside = most_alike(self._files, self.failing, _some_of_each(near))[:_MOST_BESIDE]
        self.beside = sorted({function_of(test) for test in beside})
        self._tests, self._programs = [*failing, *beside], (*self.functions, *self._inside(beside))

    def _inside(self, tests: Sequence[str]) -> tuple[str, ...]:
        """Return the functions of tests that may run as a program."""
        return tuple(sorted({function_of(test) for test in tests if test.partition("::")[0] in self._files}))

    def reached(self, tree: str) -> set[str]:
        """Return what the code of a tree reaches of the interpreter as its tests run."""
        seen = run_once(self._prepared, tree, self._first, self._sandbox).answers.get(REACHES, {})
        return {place.split(" ")[1] for place in seen}

    def runs(self, tree: str, *, again: bool = False) -> tuple[dict[str, str], dict[str, dict[str, str]], bool]:
        """Return (verdicts of the functions that run as a program, what all tests saw, whether it died) with a tree."""
        run, passed = TestRun(tests={}), dict[str, str]()
        if self._programs:
            program = Asked(self._programs, {path: self._files[path] for path in self._paths if path in self._files})
            run = run_once(self._prepared, tree, self._paths, self._sandbox, program, again=again)
            passed = run_once(self._prepared, self._fix, self._paths, self._sandbox, program).tests
        others = tuple(
            test for test in self._tests if test in self._elsewhere or passed.get(function_of(test)) != "passed"
        )
        if all(function_of(test) not in self.failing for test in others):
            others = ()  # those beside are not worth a run of their own
        seen = {test: one for test, one in run.answers.items() if passed.get(test.partition("#")[0]) == "passed"}
        if others:
            entries = read_tree(self._prepared.store, tree)
            same = {path: text.encode() for path, text in self._files.items() if entries.get(path) == self._base[path]}
            asked = _with_files(self._prepared, tree, same)
            under = run_once(self._prepared, asked, self._paths, self._sandbox, Asked(others, {}), again=again)
            seen |= under.answers
            return run.tests, seen, run.died is not None or under.died is not None
        return run.tests, seen, run.died is not None


def _of(functions: Set[str], seen: Seen) -> Seen:
    return {test: one for test, one in seen.items() if function_of(test) in functions}


def _some_of_each(tests: Sequence[str]) -> Sequence[str]:
    """Return not too many tests, of as many functions as there are."""
    nth = Counter[str]()
    rank = {}
    for test in tests:
        function = function_of(test)
        rank[test] = nth[function]
        nth[function] += 1
    return sorted(tests, key=rank.__getitem__)[:_MOST_ASKED]


def _with_files(prepared: PreparedRepository, tree: str, files: Mapping[str, bytes]) -> str:
    """Return a tree with other contents of some of its files."""
    entries = dict(read_tree(prepared.store, tree))
    for path, content in files.items():
        blob = git_line("hash-object", "-w", "--stdin", git_dir=prepared.store, data=content)
        entries[path] = (entries[path][0], blob)
    with scratch_folder() as scratch:
        return write_tree(prepared.store, entries, scratch / "index")
