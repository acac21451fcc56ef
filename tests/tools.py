"""What tests may ask of the machine they run on.

A missing system tool skips the test that needs it, with the reason; under VALVE_TEST_ALL=1 (continuous
integration) the same absence is a failure, so that nothing stays untested unnoticed.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterable
from typing import Any, NoReturn

import pytest

TEST_ALL = os.environ.get("VALVE_TEST_ALL") == "1"

# Being on PATH is not enough for these: a kernel or a container may forbid what they do.
_PROBES = {
    "podman": ["podman", "info"],
    "bwrap": ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--unshare-all", "true"],
}


def need(tool: str) -> str:
    """Return the path of a system tool that works here; else skip, or fail under VALVE_TEST_ALL=1."""
    path = shutil.which(tool)
    if path is None:
        missing(f"{tool} is not installed")
    if tool in _PROBES and (problem := _probe(tool)):
        missing(f"{tool} does not work here: {problem}")
    return path


def need_module(name: str) -> None:
    """Go on only where an optional Python package is installed; nothing is imported."""
    if importlib.util.find_spec(name) is None:
        missing(f"Python package {name} is not installed")


def some(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters of a test, all but `quick` ones heavy."""
    listed = list(cases)
    assert set(quick) <= set(listed), "a case is gone"
    return [case if case in quick else pytest.param(case, marks=pytest.mark.heavy) for case in listed]


def missing(reason: str) -> NoReturn:
    """Skip the running test for `reason`, or fail it under VALVE_TEST_ALL=1."""
    if TEST_ALL:
        pytest.fail(f"{reason} (VALVE_TEST_ALL=1 asks for it)", pytrace=False)
    pytest.skip(reason)


@functools.cache
def _probe(tool: str) -> str:
    done = subprocess.run(_PROBES[tool], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit status {done.returncode}"
