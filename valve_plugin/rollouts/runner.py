"""Running the agent in a process of its own that is cheap to start and always dies.

A fork server loads litellm and mini-SWE-agent once (seconds of CPU); each rollout is forked from it (a fraction of a
second), isolated from all others, and ends with its result, at the wall-clock backstop, when it is stopped, or when
the process that asked for it dies.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from multiprocessing.connection import wait
from pathlib import Path

import msgspec

from valve_plugin.codec import decode
from valve_plugin.errors import RecordError
from valve_plugin.rollouts import forks, paid, waits
from valve_plugin.rollouts.exits import one_line
from valve_plugin.rollouts.fork_server import Request, ask
from valve_plugin.rollouts.processes import kill_tree
from valve_plugin.rollouts.slots import slot
from valve_plugin.rollouts.worker import LOG, RESULT, TRAJECTORY, RolloutResult, RolloutSpec

_POLL_SECONDS = 0.2
_MAX_TRAJECTORY = 256 * 2**20

__all__ = ["RolloutResult", "RolloutSpec", "run"]


def run(spec: RolloutSpec, *, stop: threading.Event | None = None) -> RolloutResult:
    """Run one rollout and return how it ended. Never raises for what the agent or the provider did.

    Several may run at once, from threads. The fork gets the present `os.environ`; the agent's commands do not.

    Args:
        spec: what to run; its workspace is changed by the agent.
        stop: when it is set, the rollout is killed.

    Raises:
        CutError: it was stopped; says what it had paid.
    """
    with slot() as (_, out):
        try:
            overdue = _forked(Request(spec, out, dict(os.environ)), stop)
        except CancelledError as e:
            raise paid.CutError(paid.read(out)) from e
        return _result(out, spec.wall_seconds if overdue else None)


def _forked(request: Request, stop: threading.Event | None) -> bool:
    """Wait until the rollout's process has ended, by force where it must; True when its time was up."""
    try:
        with forks.connect() as connection:
            while not wait([connection], timeout=_POLL_SECONDS):  # a server that still loads takes seconds to fork
                _require_going_on(stop)
            pid = ask(connection, request)
            try:
                return _overdue(connection, request.spec.wall_seconds, stop, waits.Passing(request.out))
            finally:
                if not wait([connection], timeout=0):
                    kill_tree(pid)
                    connection.recv(1)
    except OSError as e:  # the result is missing, and this is why
        (request.out / LOG).write_text(f"the fork server does not answer: {e}; it said: {forks.trouble()}")
        return False


def _overdue(
    connection: socket.socket, wall_seconds: float, stop: threading.Event | None, pass_on: Callable[[], None]
) -> bool:
    """Wait until the process at the other end has ended; True when its time is up first."""
    deadline = time.monotonic() + wall_seconds
    while not wait([connection], timeout=_POLL_SECONDS):
        pass_on()
        _require_going_on(stop)
        if time.monotonic() > deadline:
            return True
    return False


def _require_going_on(stop: threading.Event | None) -> None:
    if stop is not None and stop.is_set():
        raise CancelledError


def _result(out: Path, overdue: float | None) -> RolloutResult:
    trajectory = _read(out / TRAJECTORY)
    try:
        result = decode((out / RESULT).read_bytes(), RolloutResult, where=RESULT)
    except (FileNotFoundError, RecordError):
        log = _read(out / LOG).decode("utf-8", "replace")[-2000:]
        what = f"stopped after {overdue:.0f} s of wall clock" if overdue else f"its process died; it said: {log}"
        had = paid.read(out)
        return RolloutResult(
            ended="errored", reason=one_line(what), exit_status="Died", steps=had.calls, cost_usd=had.usd,
            trajectory=_whole(trajectory),
        )  # fmt: skip
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
