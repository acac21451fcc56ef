"""Runs inside the sandbox, alone: which functions of the tree the tests of each file call.

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

codes: dict[int, types.CodeType] = {}
reached: dict[str, set[int]] = {"": set()}
current = reached[""]  # what importing and collecting calls is reached from everywhere


class Watcher:
    """The pytest plugin that notes which file the running test is in."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> None:
        """Change to the set of this test's file; other plugins may have taken the profiler away."""
        global current
        current = reached.setdefault(item.nodeid.split("::", 1)[0], set())
        sys.setprofile(called)


def called(frame: types.FrameType, event: str, argument: object) -> None:
    """Note a call; the code object is kept, so that its id stays its own."""
    if event == "call":
        code = frame.f_code
        key = id(code)
        if key not in current:
            codes.setdefault(key, code)
            current.add(key)


def main() -> None:
    """Read the plan from standard input, run, and write {test file: [[file, first line], ...]}."""
    plan = json.loads(sys.stdin.buffer.read())
    sys.path[:0] = plan["paths"]
    threading.setprofile(called)
    sys.setprofile(called)
    pytest.main(plan["arguments"], plugins=[Watcher()])
    sys.setprofile(None)
    root = plan["root"] + os.sep
    found = {
        file: sorted(
            {(codes[key].co_filename[len(root) :], codes[key].co_firstlineno)
             for key in keys if codes[key].co_filename.startswith(root)}
        )
        for file, keys in reached.items()
    }  # fmt: skip
    with open(plan["result"], "w", encoding="utf-8") as file:
        json.dump(found, file)
    os._exit(0)


if __name__ == "__main__":
    main()
