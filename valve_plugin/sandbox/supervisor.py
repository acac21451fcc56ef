"""Running commands under limits, so that neither they nor their child processes outlive this process.

`supervise` runs one command and enforces its limits. A sandbox kills its own processes. A long command on the host
(pip, a person's check) gets a keeper (`child_process`): a small process in its own session that starts the command and
holds the read end of a pipe. Only this process has the write end, so the pipe closes however this process ends; the
keeper then kills all its descendants and itself. Starting the keeper takes as long as starting Python, so commands
that end within milliseconds run without it.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypedDict

from valve_plugin.errors import SandboxError
from valve_plugin.sandbox.disk import DiskWatch, threads

if TYPE_CHECKING:
    import psutil

MIB = 1024 * 1024
UMASK = 0o022
"""Of what runs in a sandbox, and of what makes files for it, whatever the person's is: a private folder is above."""
OOM_SCORE = 1000
"""For /proc/PID/oom_score_adj. Without it the kernel may kill this process in place of the command's small ones."""
VALVE_MAIN = "from valve_plugin.cli import main; main()"
"""The `valve` command, as code for `python_command`."""

_KEEPER_MAIN = "from valve_plugin.sandbox.supervisor import keeper_main; keeper_main()"
_POLL_SECONDS = 0.25
_PARENT_POLL_SECONDS = 0.5
_GRACE_SECONDS = 10.0
_CHUNK = 1 << 16  # bytes
_TAIL = 4096  # bytes
_CANNOT_RUN, _COMMAND_NOT_FOUND = 126, 127
_MAX_WORD = 32 * 4096 - 1  # bytes; Linux has this limit for each word of a command
_SET_CHILD_SUBREAPER = 36  # of prctl
# A command is idle while it uses less CPU time than this, and its threads are rarely ready to run.
_IDLE_SHARE, _IDLE_CPU_SECONDS = 0.02, 0.5
_BUSY_SHARE = 0.125  # of the looks at its threads,
_LOOK_AFTER_SECONDS = 10.0  # which begin after this time

Limit = Literal["", "cpu", "wall", "memory", "disk"]


@dataclass(frozen=True, kw_only=True)
class ProcessLimits:
    """Limits of one command. The main limit is CPU time, so a busy machine does not change a verdict."""

    cpu_seconds: int = 60
    """CPU time of each process (kernel limit) and of all together (polled)."""
    wall_seconds: int = 600
    """Wall time, for commands that sleep."""
    memory_bytes: int = 6144 * MIB
    """Address space of each process (kernel limit), and resident memory of all together (polled)."""
    spaces: int = 1
    """The address space of each process may be this many times as large as `memory_bytes`."""
    processes: int = 256
    """Number of processes and threads at the same time."""
    file_bytes: int = 512 * MIB
    """Size of the largest file."""
    disk_bytes: int = 2048 * MIB
    """Size of workspace, home and temporary files together (polled)."""
    output_bytes: int = 10 * MIB
    """Bytes of output that are kept; the rest is read and dropped."""

    def wrap(self, command: Sequence[str]) -> list[str]:
        """Return a command line that runs `command` under these limits; its processes cannot raise them.

        If the machine runs out of memory, the kernel kills these processes first.

        Raises:
            SandboxError: util-linux is missing.
        """
        prlimit = shutil.which("prlimit")
        if prlimit is None:
            raise SandboxError("prlimit is not on PATH; install the package util-linux")
        cpu = f"--cpu={self.cpu_seconds}:{self.cpu_seconds + 1}"  # first SIGXCPU, which is recognized, then SIGKILL
        memory, processes, files = self.memory_bytes * self.spaces, self.processes, self.file_bytes
        limited = [prlimit, cpu, f"--as={memory}", f"--nproc={processes}", f"--fsize={files}", "--core=0", "--"]
        choom = shutil.which("choom")  # util-linux 2.33
        return [*([choom, "-n", str(OOM_SCORE), "--"] if choom else []), *limited, *command]


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """The output of a command, and how it ended."""

    returncode: int
    """As in `subprocess`: negative for a signal."""
    output: bytes
    """Standard output and error together, cut at the limit."""
    truncated: bool
    limit: Limit
    """The limit that ended it, or an empty string."""

    @property
    def timed_out(self) -> bool:
        """Whether it exceeded its CPU or wall time."""
        return self.limit in ("cpu", "wall")

    def exceeded(self, limits: ProcessLimits) -> str:
        """Return what it did to exceed its limit, like "ran longer than 600 s"."""
        return {
            "cpu": f"used more than {limits.cpu_seconds} s of CPU time",
            "wall": f"ran longer than {limits.wall_seconds} s",
            "memory": f"used more than {limits.memory_bytes} bytes of memory",
            "disk": f"left more than {limits.disk_bytes} bytes on disk",
        }.get(self.limit, "")


class Sample(NamedTuple):
    """The state of a running command, measured from outside."""

    output: bytes
    """Output since the last sample."""
    cpu_seconds: float
    """CPU time of all its processes together."""
    last_line: Callable[[], str]
    """Returns the last line of a file that is the output of one of its processes (as in pytest's capture), or ""."""
    wall_seconds: float = 0.0
    """Time since its start."""
    idle_seconds: float = 0.0
    """Time for which it has used hardly any CPU; a command that waits for a busy machine is not idle."""


class Totals(NamedTuple):
    """What the processes of a command have in use together."""

    cpu_seconds: float
    memory_bytes: int = 0
    pids: Sequence[int] = ()
    """The processes, which may hold files that have no name any more."""


Watcher = Callable[[Sample], None]
"""Called four times a second and once at the end; an exception that it raises ends the command."""


class RunOptions(TypedDict, total=False):
    """Optional arguments of `Sandbox.run`."""

    limits: ProcessLimits
    cwd: str
    """Relative to the tree."""
    env: Mapping[str, str] | None
    """Added to the few variables that are set."""
    stdin: bytes
    readonly: Sequence[Path]
    """Additional files that the command may read, at their own paths."""
    readonly_tree: Sequence[str]
    """Files of the tree that the command may not change, relative to it; not enforced without isolation."""
    watcher: Watcher | None
    """Receives samples; an exception that it raises ends the command."""


def argv(command: str | Sequence[str], folder: str) -> list[str]:
    """Return a command that is run in a folder, as a list of words; a string is run by bash.

    If an earlier command has removed or closed the folder, it runs in `/` after a line that says so, so that the agent
    can repair this.
    """
    words = ["bash", "-c", command] if isinstance(command, str) else list(command)
    return ["/bin/sh", "-c", 'cd -- "$0" || cd /; exec "$@"', folder, *words]


def refuse(command: str | Sequence[str]) -> CommandResult | None:
    """Return the result of a command that the system cannot start (a shell would say the same), else None."""
    for word in [command] if isinstance(command, str) else command:
        data = word.encode("utf-8", "surrogatepass")
        wrong = "it has a NUL character" if b"\0" in data else "Argument list too long" if len(data) > _MAX_WORD else ""
        try:
            os.fsencode(word)
        except UnicodeEncodeError:
            wrong = "it has half of a surrogate pair, which is no character"
        if wrong:
            return cannot_run(f"the command cannot be started: {wrong}")
    return None


def cannot_run(why: str) -> CommandResult:
    """Return the result of a command that did not start, by its own or an earlier command's fault."""
    return CommandResult(returncode=_CANNOT_RUN, output=f"{why}\n".encode(), truncated=False, limit="")


def supervise(
    command: Sequence[str],
    root: Path,
    limits: ProcessLimits,
    *,
    env: Mapping[str, str],
    stdin: bytes = b"",
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
    totals: Callable[[], Totals] | None = None,
    cpu_seconds: Callable[[], float] = float,
    watcher: Watcher | None = None,
) -> CommandResult:
    """Run a command until it ends or exceeds a limit; then kill its remaining processes.

    Args:
        root: directory whose size counts against `limits.disk_bytes`.
        totals: returns what is in use; by default by the command and its descendants.
        cpu_seconds: returns the CPU time as somebody else knows it; the larger one counts.
        watcher: receives samples; an exception that it raises ends the command, and is raised here.

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
            umask=UMASK,
        )
    except OSError as e:
        raise SandboxError(f"{command[0]} cannot be started: {e}") from e
    watch = _Watch(process, root, limits, totals or partial(_totals, process.pid), cpu_seconds, watcher)
    if stdin:
        threading.Thread(target=_feed, args=(process, stdin), daemon=True).start()
    try:
        output, truncated = watch.read()
    finally:
        if not _ended(process.pid):
            kill_tree(process.pid)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    limit = watch.exceeded
    if not limit and process.returncode in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
        limit = "cpu"
    elif not limit and watch.disk.exceeded():
        limit = "disk"
    return CommandResult(returncode=process.returncode, output=output, truncated=truncated, limit=limit)


class _Watch:
    """Reads the output, and checks the limits four times a second."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        root: Path,
        limits: ProcessLimits,
        totals: Callable[[], Totals],
        cpu_seconds: Callable[[], float],
        watcher: Watcher | None,
    ) -> None:
        self.process, self.limits, self.totals, self.watcher = process, limits, totals, watcher
        self.cpu_seconds = cpu_seconds
        self.disk = DiskWatch(root, limits.disk_bytes)
        self.unseen = bytearray()  # output since the watcher's last sample
        self.cpu = 0.0
        self.start = time.monotonic()
        self.idle = _Idle(self.start)
        self.exceeded: Limit = ""

    def read(self) -> tuple[bytes, bool]:
        """Return (kept output, whether some was dropped) once the command has ended or exceeded a limit."""
        kept, dropped = bytearray(), False
        stream = self.process.stdout
        assert stream is not None
        next_check = time.monotonic() + _POLL_SECONDS
        with selectors.DefaultSelector() as selector, stream:
            selector.register(stream, selectors.EVENT_READ)
            while not self.exceeded:
                if selector.select(timeout=max(0.0, next_check - time.monotonic())):
                    chunk = os.read(stream.fileno(), _CHUNK)
                    if not chunk:
                        break
                    self.unseen += chunk if self.watcher else b""
                    room = self.limits.output_bytes - len(kept)
                    kept += chunk[:room]
                    dropped |= len(chunk) > room
                elif _ended(self.process.pid) and not selector.select(timeout=0):  # nor has it written meanwhile
                    break  # something it left behind still holds the pipe
                if time.monotonic() >= next_check:
                    self.exceeded = self.check()
                    next_check = time.monotonic() + _POLL_SECONDS
        while not self.exceeded and not _ended(self.process.pid):  # it closed its output and went on
            time.sleep(0.01)
            self.exceeded = self.check()
        self.report()
        return bytes(kept), dropped

    def check(self) -> Limit:
        """Return the limit that is exceeded now, or an empty string."""
        if time.monotonic() - self.start > self.limits.wall_seconds:
            return "wall"
        used = self.totals()
        self.cpu = max(used.cpu_seconds, self.cpu_seconds(), self.cpu)
        self.report()
        if self.cpu > self.limits.cpu_seconds:
            return "cpu"
        if used.memory_bytes > self.limits.memory_bytes:
            return "memory"
        return "disk" if self.disk.exceeded(used.pids) else ""

    def report(self) -> None:
        """Give the watcher a sample, if there is one."""
        if not self.watcher:
            return
        now, output, pid = time.monotonic(), bytes(self.unseen), self.process.pid
        self.unseen.clear()
        idle = self.idle.update(now, self.cpu, partial(wants_cpu, pid))
        self.watcher(Sample(output, self.cpu, partial(read_last_line, pid), now - self.start, idle))


class _Idle:
    """Measures for how long a command has used hardly any CPU time. Pure."""

    def __init__(self, now: float) -> None:
        self.since, self.cpu, self.looks, self.busy = now, 0.0, 0, 0

    def update(self, now: float, cpu: float, look: Callable[[], bool]) -> float:
        """Return for how many seconds it has been idle."""
        idle = now - self.since
        if idle > _LOOK_AFTER_SECONDS:
            self.looks += 1
            self.busy += look()
        used = cpu - self.cpu > _IDLE_CPU_SECONDS + _IDLE_SHARE * idle
        if used or self.busy > 1 + _BUSY_SHARE * self.looks:
            self.since, self.cpu, self.looks, self.busy = now, cpu, 0, 0
        return now - self.since


def wants_cpu(pid: int) -> bool:
    """Whether a thread of a process or its descendants is running, ready to run, or waiting for a disk.

    Always False without /proc.
    """
    for process in _tree(pid):
        for thread in Path(f"/proc/{process.pid}/task").glob("*/stat"):
            with suppress(OSError, IndexError):
                if thread.read_text(errors="replace").rpartition(")")[2].split()[0] in "RD":
                    return True
    return False


def read_last_line(pid: int) -> str:
    """Return the last line of a regular file that is the standard output or error of a descendant, or ""."""
    for process in reversed(_tree(pid)):  # the youngest first
        for path in (f"/proc/{process.pid}/fd/1", f"/proc/{process.pid}/fd/2"):
            with suppress(OSError):
                if not stat.S_ISREG(os.stat(path).st_mode):  # opening anything else might wait, or take its data
                    continue
                with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
                    file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
                    lines = file.read(_TAIL).decode("utf-8", "replace").splitlines()
                if line := next((line for line in reversed(lines) if line.strip()), ""):
                    return line
    return ""


def _totals(pid: int) -> Totals:
    """Return what a process and its descendants have in use, with the CPU time of children that have ended."""
    import psutil

    cpu, memory, processes = 0.0, 0, _tree(pid)
    for process in processes:
        with suppress(psutil.Error), process.oneshot():
            times = process.cpu_times()
            cpu += times.user + times.system + times.children_user + times.children_system
            # The first thread may have ended; then what the others use is not told of it.
            memory += process.memory_info().rss or max(map(_resident_bytes, threads(process.pid)), default=0)
    return Totals(cpu, memory, [process.pid for process in processes])


def _resident_bytes(thread: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{thread}/statm").read_text().split()[1]) * resource.getpagesize()
    return 0


def _tree(pid: int) -> list[psutil.Process]:
    """Return a process and its descendants, the oldest first; an empty list if it is gone."""
    import psutil  # takes 15 ms; only needed for commands that last long enough

    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    return []


def _ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _feed(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    with suppress(OSError), process.stdin:
        process.stdin.write(data)


def python_command(code: str, *arguments: str) -> list[str]:
    """Return a command that runs Python code with this process's import path and `arguments` as `sys.argv[1:]`.

    The working directory is not on that path: it is often the repository an agent works on, and `python -m` would
    import its modules (such as Pygments) in place of the installed ones.
    """
    start = "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); "
    return [sys.executable, "-c", start + code, json.dumps([p for p in sys.path if p]), *arguments]


def run_child(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    data: bytes = b"",
    seconds: float | None = None,
    umask: int = -1,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command with a keeper and return its output; its processes outlive neither the call nor this process.

    Raises:
        subprocess.TimeoutExpired: it took longer.
    """
    pipe = subprocess.PIPE
    with child_process(command, env=env, cwd=cwd, umask=umask, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        output, errors = process.communicate(data, timeout=seconds)
    return subprocess.CompletedProcess(list(command), process.returncode, output, errors)


@contextmanager
def child_process(
    command: Sequence[str], *, interruptible: bool = False, **options: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command and yield its keeper process, which ends together with the command and with its exit code.

    Args:
        interruptible: whether Ctrl-C also reaches the command, which then has ten seconds to end.
    """
    process = None
    try:
        with keeper_command(command) as (words, fd):
            process = subprocess.Popen(words, pass_fds=[fd], start_new_session=not interruptible, **options)
            try:
                yield process
            except KeyboardInterrupt:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE_SECONDS * interruptible)
                raise
    finally:
        if process is not None:
            process.wait()


@contextmanager
def keeper_command(command: Sequence[str]) -> Iterator[tuple[list[str], int]]:
    """Yield (command line that starts a command with a keeper, file descriptor to pass on).

    All its processes are killed at the end.
    """
    theirs, ours = os.pipe()
    interpreter, *words = python_command(_KEEPER_MAIN, str(theirs), *command)
    try:
        yield [interpreter, "-I", *words], theirs  # the command's environment is not meant for the keeper's Python
    finally:
        os.close(ours)
        os.close(theirs)


def keeper_main() -> NoReturn:
    """Run as the keeper. `sys.argv` holds the pipe's descriptor and the command."""
    pipe, command = int(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the command, which does not inherit a handler
    # Become the parent of descendants whose own parent has ended, so that none escapes.
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        process = subprocess.Popen(command)
    except OSError as e:
        sys.stderr.write(f"{command[0]} cannot be started: {e}\n")
        os._exit(_COMMAND_NOT_FOUND)
    parent_gone = threading.Event()

    def kill_when_closed() -> None:
        import psutil  # noqa: F401 (imported early, so that no time is lost when the pipe closes)

        os.read(pipe, 1)  # nothing is ever written, so this returns when the other end is closed
        parent_gone.set()
        kill_descendants(os.getpid())

    threading.Thread(target=kill_when_closed, daemon=True).start()
    code = process.wait()
    kill_descendants(os.getpid())
    with suppress(ChildProcessError):
        while True:  # reap them here, because process 1 does not do that in many containers
            os.wait()
    if parent_gone.is_set():
        kill_tree(os.getpid())  # also the process group, for systems where orphans cannot be adopted
    os._exit(code if code >= 0 else 128 - code)  # as a shell reports a signal


def exit_with_parent(parent: int) -> None:
    """End this process within half a second after its parent ends. Call it first in a forked process."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants, in any session or group; do nothing if it is gone.

    The process is suspended first, so that it starts no child while its descendants are listed. A process may also kill
    itself with this function.
    """
    import psutil

    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        if pid != os.getpid():
            root.suspend()
        kill_descendants(pid)
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
        root.kill()


def kill_descendants(pid: int) -> None:
    """Kill all descendants of a process. They are suspended first, so that none starts a new one."""
    import psutil

    stopped: list[psutil.Process] = []
    while fresh := [p for p in psutil.Process(pid).children(recursive=True) if p not in stopped]:
        for process in fresh:
            with suppress(psutil.Error):
                process.suspend()
        stopped += fresh
    for process in stopped:
        with suppress(psutil.Error):
            process.kill()
