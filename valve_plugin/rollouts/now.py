"""Runs inside the sandbox, beside the harness or the watcher: says where pytest is, for whoever follows a long run.

What it says is signed by nobody, and no verdict looks at it. Executed from its source in either process, so that one
file serves both; a script of the standard library and pytest only.
"""

from __future__ import annotations

import json.encoder
import os
from contextlib import suppress
from typing import Any

import pytest

LONGEST = 300
"""Characters of a name that are told: what is kept of the output is limited, and verdicts come first."""

write, quote = os.write, json.encoder.encode_basestring_ascii  # taken now: tests may put others in their place


class Now:
    """A pytest plugin; each line is one write, to the output that was there before pytest began to capture it."""

    def __init__(self) -> None:
        self._out = os.dup(1)

    def pytest_collectstart(self, collector: Any) -> None:
        """Say which file is read."""
        if isinstance(collector, pytest.File):
            self._say("collect", quote(collector.nodeid[:LONGEST]))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: Any) -> None:
        """Say how many tests there are."""
        self._say("tests", str(len(session.items)))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say which test begins."""
        self._say("test", quote(nodeid[:LONGEST]))

    def pytest_runtest_logfinish(self) -> None:
        """Say that it has ended."""
        self._say("ended", "true")

    def _say(self, name: str, value: str) -> None:
        with suppress(OSError):  # nobody listens any more
            write(self._out, f'\n@valve-now {{"{name}":{value}}}\n'.encode("ascii"))
