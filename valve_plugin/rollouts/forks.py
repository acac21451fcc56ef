"""Starting, lending and borrowing the fork server of this process."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from valve_plugin.rollouts import scratch
from valve_plugin.rollouts.processes import python

_LOG = "log.txt"
_PREFIX = "valve-forks-"
_CODE = "from valve_plugin.rollouts.fork_server import main; main()"


class _Server:
    """A listening socket at a private path, and the process behind it, started once somebody connects."""

    def __init__(self) -> None:
        # Not among the slots of user data: a socket's path has to be short.
        self._directory = scratch.private(_PREFIX)
        self.address = str(Path(self._directory.name, "socket"))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen(1024)
        self._starting = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        threading.Thread(target=self._start_when_asked, daemon=True).start()

    def start(self) -> None:
        """Start the process, unless that was done; whoever connects before it is ready waits in the queue."""
        with self._starting:
            if self._process is None:
                try:
                    self._process = self._start()
                finally:
                    self._listener.close()  # so that whoever waits for a server that died is refused

    def _start(self) -> subprocess.Popen[bytes]:
        alive, self._alive = os.pipe()  # our end closes when this process ends, however it ends
        handed = (self._listener.fileno(), alive)
        try:
            with Path(self._directory.name, _LOG).open("wb") as log:
                return subprocess.Popen(
                    python(_CODE, *map(str, handed), self._directory.name),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=handed,
                    start_new_session=True,  # Ctrl-C is for us
                )
        finally:
            os.close(alive)

    def _start_when_asked(self) -> None:
        with suppress(OSError, ValueError):  # closed: it was started meanwhile
            select.select([self._listener], [], [])
        self.start()


_lock = threading.Lock()
_own: _Server | None = None
_borrowed = ""


def warm() -> None:
    """Start the fork server now, so that its loading overlaps with other work; returns at once."""
    if not _borrowed:
        _server().start()


def lend() -> str:
    """Return an address that `borrow` takes in another process of this user, as long as this process lives.

    The server is started by the first rollout that needs it.
    """
    return _borrowed or _server().address


def borrow(address: str) -> None:
    """Use the fork server of another process; where none answers, this process starts its own."""
    global _borrowed
    _borrowed = address


def connect() -> socket.socket:
    """Return a new connection to the fork server.

    Raises:
        OSError: none can be started.
    """
    global _borrowed, _own
    with suppress(OSError):
        return _connected(lend())
    with _lock:
        _borrowed, _own = "", None  # it died, so another is started
    return _connected(lend())


def trouble() -> str:
    """Return the last of what the fork server said, for when it does not answer."""
    with suppress(OSError):
        return Path(lend()).with_name(_LOG).read_bytes()[-2000:].decode("utf-8", "replace")
    return ""


def _server() -> _Server:
    global _own
    with _lock:
        _own = _own or _Server()
        return _own


def _connected(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection
