"""Running one command under watch: capped output without a deadlock, totals over all its processes, sure death."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from valve_plugin.errors import SandboxError
from valve_plugin.rollouts.foreign import walk
from valve_plugin.rollouts.glance import Glance, Tap, last_words, wants_cpu
from valve_plugin.rollouts.limits import Limits

Limit = Literal["", "cpu", "wall", "memory", "disk"]
_POLL_SECONDS = 0.25
_CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Completed:
    """How a command ended."""

    returncode: int
    """As `subprocess`: negative for a signal."""
    output: bytes
    """Standard output and error together, cut at the limit."""
    truncated: bool
    limit: Limit
    """Which limit ended it; empty: none did."""

    @property
    def timed_out(self) -> bool:
        """True when it used up its CPU or wall time."""
        return self.limit in ("cpu", "wall")


def supervise(
    command: Sequence[str],
    root: Path,
    limits: Limits,
    *,
    env: Mapping[str, str],
    stdin: bytes = b"",
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
    totals: Callable[[], tuple[float, int]] | None = None,
    tap: Tap | None = None,
) -> Completed:
    """Run a command until it ends or exceeds a limit, then kill whatever it started.

    Args:
        root: directory whose growth counts against `limits.disk_bytes`.
        totals: tells (CPU seconds, resident bytes) of what is watched; None: of the command and its descendants.
        tap: follows the command; what it raises ends it, and comes out of here.

    Raises:
        SandboxError: the command cannot be started.
    """
    try:
        process = subprocess.Popen(
            command,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    except OSError as e:
        raise SandboxError(f"{command[0]} cannot be started: {e}") from e
    watch = _Watch(process, root, limits, totals or partial(_totals, process.pid), tap)
    if stdin:
        threading.Thread(target=_feed, args=(process, stdin), daemon=True).start()
    try:
        output, truncated = watch.read()
    finally:
        _kill(process)
        process.wait()
    limit = watch.hit or watch.at_end(process.returncode)
    return Completed(returncode=process.returncode, output=output, truncated=truncated, limit=limit)


class _Watch:
    """Reads the output and looks at the totals four times a second."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        root: Path,
        limits: Limits,
        totals: Callable[[], tuple[float, int]],
        tap: Tap | None,
    ) -> None:
        self.process, self.root, self.limits, self.totals, self.tap = process, root, limits, totals, tap
        self.cpu = 0.0
        self.fresh = bytearray()  # output that the tap was not told of yet
        self.deadline = time.monotonic() + limits.wall_seconds
        self.hit: Limit = ""

    def read(self) -> tuple[bytes, bool]:
        """Return (kept output, whether some was dropped) once the command has ended or hit a limit."""
        kept, dropped = bytearray(), False
        stream = self.process.stdout
        assert stream is not None
        next_look = time.monotonic() + _POLL_SECONDS
        with selectors.DefaultSelector() as selector, stream:
            selector.register(stream, selectors.EVENT_READ)
            while not self.hit:
                if selector.select(timeout=max(0.0, next_look - time.monotonic())):
                    chunk = os.read(stream.fileno(), _CHUNK)
                    if not chunk:
                        break
                    self.fresh += chunk if self.tap else b""
                    room = self.limits.output_bytes - len(kept)
                    kept += chunk[:room]
                    dropped |= len(chunk) > room
                elif _ended(self.process.pid):
                    break  # something it left behind still holds the pipe
                if time.monotonic() >= next_look:
                    self.hit = self.look()
                    next_look = time.monotonic() + _POLL_SECONDS
        while not self.hit and not _ended(self.process.pid):  # it closed its output and went on
            time.sleep(0.01)
            self.hit = self.look()
        self.tell(0)
        return bytes(kept), dropped

    def look(self) -> Limit:
        """Return the limit that is exceeded now."""
        if time.monotonic() > self.deadline:
            return "wall"
        cpu, memory = self.totals()
        self.tell(cpu)
        if cpu > self.limits.cpu_seconds:
            return "cpu"
        if memory > self.limits.memory_bytes:
            return "memory"
        return "disk" if disk_bytes(self.root) > self.limits.disk_bytes else ""

    def tell(self, cpu: float) -> None:
        """Tell the tap, if there is one."""
        self.cpu = max(cpu, self.cpu)
        if self.tap:
            pid, fresh = self.process.pid, bytes(self.fresh)
            self.fresh.clear()
            self.tap(Glance(fresh, self.cpu, partial(wants_cpu, pid), partial(last_words, pid)))

    def at_end(self, returncode: int) -> Limit:
        """Return the limit by which a command that has ended was ended."""
        if returncode in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
            return "cpu"
        return "disk" if disk_bytes(self.root) > self.limits.disk_bytes else ""


def disk_bytes(root: Path) -> int:
    """Return the bytes that a directory's files occupy, links not followed; files that vanish meanwhile count 0."""
    total = 0
    with suppress(OSError):  # a folder was moved while it was looked at: the next look sees it
        for folder in walk(root, skip=True):
            for name in (*folder.others, *folder.folders):
                with suppress(OSError):
                    total += folder.status(name).st_blocks * 512
    return total


def _totals(pid: int) -> tuple[float, int]:
    """Return (CPU seconds, resident bytes) of a process and its descendants, finished children included."""
    import psutil  # 15 ms; only when a command lasts long enough to be looked at

    cpu, memory = 0.0, 0
    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                cpu += times.user + times.system + times.children_user + times.children_system
                memory += process.memory_info().rss
    return cpu, memory


def _ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group; under bubblewrap that ends the process namespace and everything in it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    with suppress(OSError), process.stdin:
        process.stdin.write(data)
