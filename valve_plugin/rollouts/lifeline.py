"""Commands on the host that end with this process, however it ends, and everything they started with them.

In the sandbox bubblewrap sees to that. pip, `venv` and what pip builds run on the host and for minutes, so they get a
keeper: a little process in a session of its own that starts the command and holds the read end of a pipe whose write
end we alone hold. When we are gone the pipe says so, and the keeper kills all below it, then itself. It costs the start
of a Python, so commands that are over in milliseconds, and then end by themselves, do without.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from valve_plugin.rollouts.processes import kill_descendants, kill_tree, python

_CODE = "from valve_plugin.rollouts.lifeline import main; main()"
_GRACE_SECONDS = 10.0
_NO_COMMAND = 127
_ADOPT = 36
"""PR_SET_CHILD_SUBREAPER"""


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    data: bytes = b"",
    seconds: float | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end and return what it said; nothing it started outlives the call or this process.

    Args:
        data: its standard input.
        seconds: of wall clock it may take; None: any.

    Raises:
        subprocess.TimeoutExpired: it took longer.
    """
    pipe = subprocess.PIPE
    with tied(command, env=env, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        output, errors = process.communicate(data, timeout=seconds)
    return subprocess.CompletedProcess(list(command), process.returncode, output, errors)


@contextmanager
def tied(command: Sequence[str], *, interrupted: bool = False, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command; yield its keeper, which ends with the command and the command's exit code.

    Args:
        interrupted: a Ctrl-C is the command's too, which then has ten seconds to end by itself.
        options: of `subprocess.Popen`.
    """
    process = None
    try:
        with kept(command) as (words, fd):
            process = subprocess.Popen(words, pass_fds=[fd], start_new_session=not interrupted, **options)
            try:
                yield process
            except KeyboardInterrupt:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE_SECONDS * interrupted)
                raise
    finally:
        if process is not None:
            process.wait()


@contextmanager
def kept(command: Sequence[str]) -> Iterator[tuple[list[str], int]]:
    """Yield (a command with its keeper, the descriptor to pass on); what still runs of it at the end is killed."""
    theirs, ours = os.pipe()
    interpreter, *words = python(_CODE, str(theirs), *command)
    try:
        yield [interpreter, "-I", *words], theirs  # what the command's environment says to Python is not for the keeper
    finally:
        os.close(ours)
        os.close(theirs)


def main() -> NoReturn:
    """Be the keeper: `sys.argv` holds the pipe's descriptor and the command."""
    lifeline, command = int(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGINT, lambda *_: None)  # the command's, where it is anybody's; not inherited, unlike SIG_IGN
    _adopt_orphans()
    try:
        process = subprocess.Popen(command)
    except OSError as e:
        sys.stderr.write(f"{command[0]} cannot be started: {e}\n")
        os._exit(_NO_COMMAND)
    gone = threading.Event()
    threading.Thread(target=_end_with, args=(lifeline, gone), daemon=True).start()
    code = process.wait()
    kill_descendants(os.getpid())
    with suppress(ChildProcessError):
        while True:  # so that they are gone also where process 1 waits for nobody, as in many containers
            os.wait()
    if gone.is_set():
        kill_tree(os.getpid())  # and what is in our group, where orphans cannot be adopted
    os._exit(code if code >= 0 else 128 - code)  # as a shell tells a signal


def _end_with(lifeline: int, gone: threading.Event) -> None:
    import psutil  # noqa: F401 (now, while the command works: when the pipe closes there is no time to lose)

    os.read(lifeline, 1)  # nothing is ever written, so this returns when the other end is gone
    gone.set()
    kill_descendants(os.getpid())


def _adopt_orphans() -> None:
    """Where Linux is, become the parent of descendants whose own parent has ended, so that none is overlooked."""
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0)
