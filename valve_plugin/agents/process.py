"""Rollouts in processes of their own: quick to start, killable at any time, and ended together with their caller.

A fork server imports litellm and mini-SWE-agent once (seconds of CPU time); each rollout is forked from it (a fraction
of a second). Both sides watch the connection: the caller reads end-of-file when the rollout's process has ended, and
the rollout kills itself and its child processes when the caller has ended.

The forkserver of `multiprocessing` is not suitable: its children import the caller's `__main__` again, on Python 3.10
and 3.11 it imports from the working directory (the repository on which an agent works), and other processes cannot use
it. The panel run of a gate is another process that should not import litellm again.
"""

from __future__ import annotations

import gc
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from valve_plugin.agents.protocol import (
    TRAJECTORY,
    RolloutCancelledError,
    RolloutProgress,
    RolloutReporter,
    RolloutResult,
    RolloutSpec,
)
from valve_plugin.codec import decode
from valve_plugin.config import MINI, Settings
from valve_plugin.errors import RecordError
from valve_plugin.files import read_regular
from valve_plugin.sandbox.scratch import private_folder, scratch_folder
from valve_plugin.sandbox.supervisor import kill_tree, python_command
from valve_plugin.words import one_line

_LOG = "log.txt"
_POLL_SECONDS = 0.2
_MAX_TRAJECTORY = 256 * 2**20


# In the process that wants a rollout


def require_agent(settings: Settings) -> None:
    """Check that the agent of the settings can run, and takes the other settings.

    Raises:
        ConfigError: it does not.
    """
    from valve_plugin.agents import mini, outside

    mini.require_config(settings.mini_config)
    if settings.agent != MINI:
        outside.require(settings)


def run(spec: RolloutSpec, *, stop: threading.Event | None = None) -> RolloutResult:
    """Run one rollout and return how it ended. Never raises for what the agent or the provider did.

    Threads may call this at the same time. The process gets the present `os.environ`, the agent's commands do not.
    Waits are passed on to `retry.report_wait`; setting `stop` kills the rollout.

    Raises:
        RolloutCancelledError: it was stopped; contains its cost so far.
    """
    progress = RolloutProgress()
    with scratch_folder() as folder:
        try:
            overdue = _supervise(spec, folder, stop, progress)
        except CancelledError as e:
            raise RolloutCancelledError(progress.paid) from e
        trajectory = _read(folder / TRAJECTORY)
        if progress.result is not None:
            return msgspec.structs.replace(progress.result, trajectory=trajectory)
        try:
            decode(trajectory, msgspec.Raw, where=TRAJECTORY)
        except RecordError:  # a killed process may leave an incomplete file
            trajectory = b""
        log = _read(folder / _LOG).decode("utf-8", "replace")[-2000:]
        reason = f"its process died; its last output: {log}"
        if overdue:
            reason = f"stopped after {spec.wall_seconds:.0f} s of wall clock"
        return RolloutResult(
            ended="errored",
            reason=one_line(reason),
            exit_status="Died",
            steps=progress.paid.calls,
            cost_usd=progress.paid.usd,
            trajectory=trajectory,
        )


def _supervise(spec: RolloutSpec, folder: Path, stop: threading.Event | None, progress: RolloutProgress) -> bool:
    """Wait until the rollout's process has ended, or kill it; return whether it reached its time limit."""
    try:
        with _connect() as connection:
            while not connection.poll(_POLL_SECONDS):  # a server that still loads takes seconds to fork
                if stop and stop.is_set():
                    raise CancelledError
            pid = int(connection.recv_bytes())
            connection.send((spec, folder, dict(os.environ)))  # that of the server may be out of date
            deadline = time.monotonic() + spec.wall_seconds
            running = True
            try:
                while running and time.monotonic() < deadline:
                    if stop and stop.is_set():
                        raise CancelledError
                    if connection.poll(_POLL_SECONDS):
                        running = _receive(connection, progress)
                return running
            finally:
                if running:
                    kill_tree(pid)
                while running:  # what it sent before
                    running = _receive(connection, progress)
    except OSError as e:  # there will be no result, and this is why
        log = ""
        with suppress(OSError):
            log = Path(server_address()).with_name(_LOG).read_bytes()[-2000:].decode("utf-8", "replace")
        (folder / _LOG).write_text(f"the fork server does not answer: {e}; its last output: {log}")
        return False


def _receive(connection: Connection, progress: RolloutProgress) -> bool:
    """Receive the next message; return False if the process has ended."""
    try:
        progress.receive(connection.recv_bytes())
    except (EOFError, OSError):  # also in the middle of a message
        return False
    return True


def _read(path: Path) -> bytes:
    """Return a file, or nothing if it is missing or too large to keep."""
    try:
        return read_regular(path, _MAX_TRAJECTORY)
    except OSError:
        return b""


# The fork server of this process


class _ForkServer:
    """A listening socket at a private path, and the server process, which starts with the first connection."""

    def __init__(self) -> None:
        self._directory = private_folder("valve-forks-")  # not in user data: a socket's path has to be short
        self.address = str(Path(self._directory.name, "socket"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen(1024)
        threading.Thread(target=self._start_on_connection, daemon=True).start()

    def _start_on_connection(self) -> None:
        select.select([self._listener], [], [])
        alive, self._alive = os.pipe()  # our end closes when this process ends, however it ends
        handed = (self._listener.fileno(), alive)
        try:
            with Path(self._directory.name, _LOG).open("wb") as log:
                self._process = subprocess.Popen(
                    python_command(f"from {__name__} import main; main()", *map(str, handed), self._directory.name),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=handed,
                    start_new_session=True,  # Ctrl-C is for us
                )
        finally:
            os.close(alive)
            self._listener.close()  # so that a connection to a server that died is refused


_lock = threading.Lock()
_server: _ForkServer | None = None
_shared_address = ""


def server_address() -> str:
    """Return the socket path of this process's fork server; other processes of this user may use it, too.

    The server starts with the first rollout and ends with this process.
    """
    global _server
    with _lock:
        if _shared_address:
            return _shared_address
        _server = _server or _ForkServer()
        return _server.address


def use_server(address: str) -> None:
    """Use the fork server of another process. If it does not answer, this process starts its own."""
    global _shared_address
    _shared_address = address


def _connect() -> Connection:
    """Return a new connection to the fork server."""
    global _shared_address, _server
    address = server_address()
    with suppress(OSError):
        return _connected(address)
    with _lock:
        if address == (_shared_address or (_server and _server.address)):
            _shared_address, _server = "", None  # it died, so another one is started
    return _connected(server_address())


def _connected(address: str) -> Connection:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        return Connection(connection.detach())


# In the fork server


def main() -> None:
    """Fork for each connection until the process that started this server has ended; then remove `directory`.

    The server has one thread and no state. The forked process reads the request, so a slow caller delays no other one.
    Connections made during the imports wait in the listener's queue; `alive_fd` is the read end of a pipe of which only
    the starting process has the write end.
    """
    listener_fd, alive_fd, directory = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    warm_up()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page it looks at
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(fileno=listener_fd) as listener:
        while alive_fd not in wait([listener, alive_fd]):
            accepted, _ = listener.accept()
            with Connection(accepted.detach()) as connection:
                if os.fork() == 0:
                    listener.close()
                    os.close(alive_fd)
                    _run_request(connection)
    shutil.rmtree(directory, ignore_errors=True)


def warm_up() -> None:
    """Import what rollouts need, once for all of them, and make one model call that fails at once.

    litellm and mini-SWE-agent take seconds to import, and litellm imports many modules during its first call. Both read
    environment variables at import, so these are set first. No thread may remain: threads do not survive a fork.
    """
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # see `client.use_own_copies`
    os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
    os.environ.setdefault("MSWEA_CONFIGURED", "true")
    from unittest import mock

    import litellm
    import psutil  # noqa: F401
    from litellm.litellm_core_utils.thread_pool_executor import executor
    from minisweagent.models.litellm_model import LitellmModel

    import valve_plugin.agents.mini_environment  # noqa: F401
    from valve_plugin.agents.retry import MINI_TRIES

    litellm.suppress_debug_info = True
    os.environ.update({MINI_TRIES: "1", "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"})  # not a fork's environment
    with socket.socket() as nobody, suppress(Exception), mock.patch.object(executor, "submit", _run_now):
        nobody.bind(("127.0.0.1", 0))  # a port that does not listen
        model = LitellmModel(
            model_name="openai/rehearsal",
            model_kwargs={
                "api_base": f"http://127.0.0.1:{nobody.getsockname()[1]}",
                "api_key": "none",
                "max_retries": 0,
            },
            cost_tracking="ignore_errors",
        )
        model.query([{"role": "user", "content": "rehearsal"}])


def _run_now(job: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    done: Future[Any] = Future()
    done.set_result(job(*args, **kwargs))
    return done


# In a rollout's process


def _run_request(connection: Connection) -> NoReturn:
    try:
        from valve_plugin.agents import mini, outside
        from valve_plugin.client import use_own_copies

        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.send_bytes(b"%d" % os.getpid())
        # Its folder is private, so only this user's own processes can write into the socket.
        spec, folder, environ = connection.recv()
        threading.Thread(target=_end_with_caller, args=(connection,), daemon=True).start()
        os.setsid()  # a group of its own: one signal ends it, and the terminal's do not reach it
        # The caller's standard output may be a stream of results
        sys.stdout.flush()
        sys.stderr.flush()
        with (folder / _LOG).open("ab") as log, open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.environ.clear()
        os.environ.update(environ)
        use_own_copies()
        os.environ.update(MSWEA_SILENT_STARTUP="1", MSWEA_CONFIGURED="true")
        mini.load_user_settings()
        solve = mini.solve if spec.settings.agent == MINI else outside.solve
        reporter = RolloutReporter(connection.send_bytes)
        reporter.finish(solve(spec, folder, reporter))
    except BaseException:  # noqa: BLE001  # no caller above can report it
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # neither the server's loop nor its exit handlers are this process's


def _end_with_caller(connection: Connection) -> None:
    with suppress(OSError, EOFError):
        connection.recv_bytes()  # nothing is ever sent, so this returns when the caller has ended
    kill_tree(os.getpid())
