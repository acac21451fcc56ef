"""Runs inside the sandbox, alone: which tests call which functions of the tree.

A script of the standard library and pytest only; it never imports the package it belongs to. Functions, not lines:
a bug's modifier changes one function, and counting calls needs no package that the test environment may lack.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import types
from typing import Any

import pytest

FEW = 40
"""A function that more tests than this call is noted with their files instead: a long list of tests is no shorter."""

codes: dict[int, types.CodeType] = {}
current: set[int] = set()  # what the running test calls; at first, what importing and collecting does
callers: dict[int, dict[str, None]] = {}  # first the tests that call each function, in order
many: dict[int, set[str]] = {}  # then their files
everywhere: set[int] = set()
counts: dict[str, int] = {}
running = ""


class Watcher:
    """The pytest plugin that notes which test is running."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> None:
        """Settle what the test before called; other plugins may have taken the profiler away."""
        global running
        settle()
        running = item.nodeid
        file = running.split("::", 1)[0]
        counts[file] = counts.get(file, 0) + 1
        sys.setprofile(called)


def called(frame: types.FrameType, event: str, argument: object) -> None:
    """Note a call; the code object is kept, so that its id stays its own."""
    if event == "call":
        code = frame.f_code
        key = id(code)
        if key not in current:
            codes.setdefault(key, code)
            current.add(key)


def settle() -> None:
    """Add up what the test that ends here called."""
    global current
    keys, current = current, set()
    if not running:
        everywhere.update(keys)
    for key in keys - everywhere:
        if key in many:
            many[key].add(running.split("::", 1)[0])
            continue
        tests = callers.setdefault(key, {})
        tests[running] = None
        if len(tests) > FEW:
            many[key] = {test.split("::", 1)[0] for test in callers.pop(key)}


def summary(root: str) -> dict[str, Any]:
    """Return what `screen.Reached` describes."""
    found: dict[tuple[str, int], set[str]] = {}
    every = {key: {""} for key in everywhere}
    for tests in (callers, many, every):
        for key, names in tests.items():
            if codes[key].co_filename.startswith(root):
                place = (codes[key].co_filename[len(root) :], codes[key].co_firstlineno)
                found.setdefault(place, set()).update(names)
    functions = [[*place, sorted(names)] for place, names in sorted(found.items())]
    return {"functions": functions, "counts": counts}


def main() -> None:
    """Read the plan from standard input, run, and write what was called by what."""
    plan = json.loads(sys.stdin.buffer.read())
    sys.path[:0] = plan["paths"]
    threading.setprofile(called)
    sys.setprofile(called)
    plugins: list[object] = [Watcher()]
    if plan["now"]:
        namespace: dict[str, Any] = {"__name__": "now"}
        exec(compile(plan["now"], "now", "exec", dont_inherit=True), namespace)  # noqa: S102
        plugins.append(namespace["Now"]())
    pytest.main(plan["arguments"], plugins=plugins)
    sys.setprofile(None)
    settle()
    with open(plan["result"], "w", encoding="utf-8") as file:
        json.dump(summary(plan["root"] + os.sep), file)
    os._exit(0)


if __name__ == "__main__":
    main()
