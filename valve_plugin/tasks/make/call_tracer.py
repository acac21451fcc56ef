"""A script for the sandbox that records which tests call which functions of the tree.

It imports only the standard library and pytest, never the package it belongs to. It traces functions, not lines: a
modifier changes one function, and no coverage package is needed.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import types
from typing import Any

import pytest

MAX_CALLERS = 40
"""If more tests call a function, their files are recorded instead."""

MAX_FAILURES = 1000

codes: dict[int, types.CodeType] = {}
current: set[int] = set()  # functions called by the running test; before the first test, by imports and collection
callers: dict[int, dict[str, None]] = {}  # tests that call each function, in order
caller_files: dict[int, set[str]] = {}  # their files, for functions with many callers
import_calls: set[int] = set()  # functions called by imports and collection
counts: dict[str, int] = {}
failures: dict[str, str] = {}  # why tests, or files that cannot be collected, fail
running = ""


class TestObserver:
    """The pytest plugin that records which test is running."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> None:
        """Record the calls of the previous test, and set the profiler again: other plugins may have removed it."""
        global running
        finish_test()
        running = item.nodeid
        file = running.split("::", 1)[0]
        counts[file] = counts.get(file, 0) + 1
        sys.setprofile(record_call)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the line that says why a test fails."""
        if report.failed and len(failures) < MAX_FAILURES:
            crash = getattr(report.longrepr, "reprcrash", None)
            errors = [line[1:].strip() for line in str(report.longrepr).splitlines() if line[:2] in ("E", "E ")]
            failures.setdefault(report.nodeid, (crash.message if crash else "".join(errors[-1:])).split("\n")[0][:300])

    pytest_collectreport = pytest_runtest_logreport


def record_call(frame: types.FrameType, event: str, argument: object) -> None:
    """Record a call. The code object is kept so that its id is not reused."""
    if event == "call":
        code = frame.f_code
        key = id(code)
        if key not in current:
            codes.setdefault(key, code)
            current.add(key)


def finish_test() -> None:
    """Record which functions the test that just ended has called."""
    global current
    keys, current = current, set()
    if not running:
        import_calls.update(keys)
    for key in keys - import_calls:
        if key in caller_files:
            caller_files[key].add(running.split("::", 1)[0])
            continue
        tests = callers.setdefault(key, {})
        tests[running] = None
        if len(tests) > MAX_CALLERS:
            caller_files[key] = {test.split("::", 1)[0] for test in callers.pop(key)}


def summary(root: str) -> dict[str, Any]:
    """Return the calls as plain data in the form of `candidates.CallTrace`."""
    found: dict[tuple[str, int], set[str]] = {}
    for tests in (callers, caller_files, {key: {""} for key in import_calls}):
        for key, names in tests.items():
            if codes[key].co_filename.startswith(root):
                place = (codes[key].co_filename[len(root) :], codes[key].co_firstlineno)
                found.setdefault(place, set()).update(names)
    functions = [[*place, sorted(names)] for place, names in sorted(found.items())]
    return {"functions": functions, "counts": counts, "failures": failures}


def main() -> None:
    """Read the plan from standard input, run the tests, and write the call trace."""
    plan = json.loads(sys.stdin.buffer.read())
    sys.path[:0] = plan["paths"]
    threading.setprofile(record_call)
    sys.setprofile(record_call)
    plugins: list[object] = [TestObserver()]
    if plan["progress"]:
        namespace: dict[str, Any] = {"__name__": "progress_plugin"}
        exec(compile(plan["progress"], "progress_plugin", "exec", dont_inherit=True), namespace)  # noqa: S102
        plugins.append(namespace["ProgressPlugin"]())
    pytest.main(plan["arguments"], plugins=plugins)
    sys.setprofile(None)
    finish_test()
    with open(plan["result"], "w", encoding="utf-8") as file:
        json.dump(summary(plan["root"] + os.sep), file)
    os._exit(0)


if __name__ == "__main__":
    main()
