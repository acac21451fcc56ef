"""Runs inside the sandbox, in the harness or the call tracer: prints the progress of pytest, for `watch.py`.

Its lines are not signed, and no verdict depends on them. Both processes execute it from its source; a script of the
standard library and pytest only.
"""

from __future__ import annotations

import json.encoder
import os
from contextlib import suppress
from typing import Any

import pytest

LONGEST = 300
"""Characters of a name that are printed. The output is limited, and verdicts need the space."""

write, quote = os.write, json.encoder.encode_basestring_ascii  # bound now, because tests may replace them


class ProgressPlugin:
    """A pytest plugin. Each line is one write to the original output, which pytest does not capture."""

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
        with suppress(OSError):  # the reader is gone
            write(self._out, f'\n@valve-now {{"{name}":{value}}}\n'.encode("ascii"))
