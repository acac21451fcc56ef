"""Running the agent in a process of its own that is cheap to start and always dies.

A fork server loads litellm and mini-SWE-agent once (seconds of CPU); each rollout is forked from it (a fraction of a
second), isolated from all others, and ends with its result, at the wall-clock backstop, when it is stopped, or when
the process that asked for it dies.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType

import msgspec

from valve_plugin.codec import decode
from valve_plugin.errors import RecordError
from valve_plugin.rollouts.exits import one_line
from valve_plugin.rollouts.processes import kill_tree
from valve_plugin.rollouts.worker import LOG, RESULT, TRAJECTORY, RolloutResult, RolloutSpec, work

_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOAD = "valve_plugin.rollouts.preload"
_STARTING = threading.Lock()
_POLL_SECONDS = 0.2
_MAX_TRAJECTORY = 256 * 2**20

__all__ = ["RolloutResult", "RolloutSpec", "run", "warm"]


def run(spec: RolloutSpec, *, stop: threading.Event | None = None) -> RolloutResult:
    """Run one rollout and return how it ended. Never raises for what the agent or the provider did.

    Several may run at once, from threads. The child gets the present `os.environ`; the agent's commands do not.

    Args:
        spec: what to run; its workspace is changed by the agent.
        stop: when it is set, the rollout is killed.

    Raises:
        CancelledError: it was stopped.
    """
    with tempfile.TemporaryDirectory(prefix="valve-rollout-", ignore_cleanup_errors=True) as directory:
        out = Path(directory)
        process = _start(spec, out)
        try:
            overdue = _wait(process, spec.wall_seconds, stop)
        finally:
            _end(process)
        return _result(out, spec.wall_seconds if overdue else None)


def warm() -> None:
    """Start the fork server now, so that its loading overlaps with other work; returns at once."""
    with _STARTING, _hidden_main():
        _CONTEXT.set_forkserver_preload([_PRELOAD])
        from multiprocessing import forkserver

        forkserver.ensure_running()


def _start(spec: RolloutSpec, out: Path) -> BaseProcess:
    process = _CONTEXT.Process(target=work, args=(spec, out, dict(os.environ)), daemon=True)
    with _STARTING, _hidden_main():
        _CONTEXT.set_forkserver_preload([_PRELOAD])
        process.start()
    return process


@contextmanager
def _hidden_main() -> Iterator[None]:
    """Keep multiprocessing from running the caller's script again in every child.

    Children need nothing of it: they would pay for its imports, and one without a `__main__` guard would recurse.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _wait(process: BaseProcess, wall_seconds: float, stop: threading.Event | None) -> bool:
    """Wait until the process ends; True when its time is up first."""
    deadline = time.monotonic() + wall_seconds
    while not wait([process.sentinel], timeout=_POLL_SECONDS):
        if stop is not None and stop.is_set():
            raise CancelledError
        if time.monotonic() > deadline:
            return True
    return False


def _end(process: BaseProcess) -> None:
    if process.pid is not None and process.is_alive():
        kill_tree(process.pid)
    process.join()
    process.close()


def _result(out: Path, overdue: float | None) -> RolloutResult:
    trajectory = _read(out / TRAJECTORY)
    try:
        result = decode((out / RESULT).read_bytes(), RolloutResult, where=RESULT)
    except (FileNotFoundError, RecordError):
        log = _read(out / LOG).decode("utf-8", "replace")[-2000:]
        what = f"stopped after {overdue:.0f} s of wall clock" if overdue else f"its process died; it said: {log}"
        return RolloutResult(ended="errored", reason=one_line(what), exit_status="Died", trajectory=_whole(trajectory))
    return msgspec.structs.replace(result, trajectory=trajectory)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_TRAJECTORY)
    except FileNotFoundError:
        return b""


def _whole(trajectory: bytes) -> bytes:
    """What a killed process wrote last may be half a file: that is no trajectory."""
    try:
        decode(trajectory, msgspec.Raw, where=TRAJECTORY)
    except RecordError:
        return b""
    return trajectory
