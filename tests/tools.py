"""What tests may ask of the machine they run on.

A missing system tool skips the test that needs it, with the reason; under VALVE_TEST_ALL=1 (continuous
integration) the same absence is a failure, so that nothing stays untested unnoticed.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import psutil
import pytest

T = TypeVar("T")

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


def put(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below a folder; return the folder."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def git(where: Path, *words: str, fails: bool = False) -> str:
    """Run git in a folder; return what it printed."""
    config = ("-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "protocol.file.allow=always")
    done = subprocess.run([need("git"), *config, *words], cwd=where, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout


def until(look: Callable[[], T], seconds: float = 60.0) -> T:
    """Wait until `look` sees something, and return it; `seconds` are for machines that are slow and busy."""
    end = time.monotonic() + seconds
    while not (seen := look()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.03)
    return seen


def running(command: str) -> list[psutil.Process]:
    """Return the processes on this machine with exactly this command."""
    wanted = command.split()
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == wanted]


def lives(process: psutil.Process) -> bool:
    """Whether a process has not ended; of a zombie only its parent has not heard."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def cost(call: Callable[[], object]) -> float:
    """Return the CPU time that a call takes in its own thread, in units of this machine's own pace."""
    before, taken = unit(), _spent(call)
    return taken / max(before, unit())


def unit() -> float:
    """Return the CPU seconds that adding up a few numbers takes here: about 0.01."""
    return min(_spent(lambda: sum(n * n for n in range(100_000))) for _ in range(3))


def _spent(work: Callable[[], object]) -> float:
    gc.disable()  # a collection would look through the memory that other tests left
    try:
        before = time.thread_time()  # without threads that they left
        work()
        return time.thread_time() - before
    finally:
        gc.enable()


@functools.cache
def _probe(tool: str) -> str:
    done = subprocess.run(_PROBES[tool], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit status {done.returncode}"
