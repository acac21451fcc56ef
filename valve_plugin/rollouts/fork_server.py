"""A process that has loaded litellm and mini-SWE-agent once and forks a rollout for whoever connects.

It has one thread and no state. The fork, not the server, reads the request, so a slow asker holds up nobody. A
rollout's connection is its lifeline in both directions: the asker reads its end once the rollout's process is gone,
and the rollout ends itself, with all it started, once the asker is gone.
"""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

from valve_plugin.rollouts.processes import kill_tree
from valve_plugin.rollouts.worker import RolloutSpec, work

_SIZE = struct.Struct("!Q")


class Request(NamedTuple):
    """What a fork is to do."""

    spec: RolloutSpec
    out: Path
    """Directory for its result."""
    environ: Mapping[str, str]
    """The asker's present environment; the server's own is as old as its start."""


def serve(listener_fd: int, alive_fd: int, directory: Path) -> None:
    """Fork for each connection until whoever started this server is gone; then remove `directory`.

    Args:
        listener_fd: a listening socket; who connected before the imports were done has waited in its queue.
        alive_fd: read end of a pipe whose write end nobody but the starter holds.
        directory: where the socket is.
    """
    with _ending_with(alive_fd, directory):
        from valve_plugin.rollouts import preload  # litellm: seconds

        preload.rehearse()
    gc.collect()
    gc.freeze()  # a collection in a fork would copy every page it looks at
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(fileno=listener_fd) as listener:
        while alive_fd not in wait([listener, alive_fd]):
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                os.close(alive_fd)
                _become(connection)
            connection.close()
    shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _ending_with(alive_fd: int, directory: Path) -> Iterator[None]:
    """End this process as soon as its starter does, and remove `directory`, also while the block is busy.

    By a thread, which is gone after the block: it would not be there after a fork.
    """
    done, finish = os.pipe()

    def watch() -> None:
        if done not in wait([alive_fd, done]):
            shutil.rmtree(directory, ignore_errors=True)
            os._exit(0)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        os.close(finish)
        watcher.join()
        os.close(done)


def main() -> None:
    """Serve with what `forks` hands over."""
    serve(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))


def ask(connection: socket.socket, request: Request) -> int:
    """Send a request; return the process id of the fork.

    Raises:
        OSError: the server ended before it forked.
    """
    data = pickle.dumps(request)
    connection.sendall(_SIZE.pack(len(data)) + data)
    return int(_SIZE.unpack(_exactly(connection, _SIZE.size))[0])


def _become(connection: socket.socket) -> None:
    """Run one request in this fork, and end."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        connection.sendall(_SIZE.pack(os.getpid()))
        # Its folder is ours alone, so what comes through the socket is what this user's own processes wrote.
        size = _exactly(connection, _SIZE.size)
        request: Request = pickle.loads(_exactly(connection, _SIZE.unpack(size)[0]))  # noqa: S301
        threading.Thread(target=_die_with, args=(connection,), daemon=True).start()
        work(*request)
    except BaseException:  # noqa: BLE001  # nothing is above this to show it
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # neither the server's loop nor its exit handlers are this process's


def _die_with(connection: socket.socket) -> None:
    connection.recv(1)  # nothing is ever sent, so this returns when the other end is gone
    kill_tree(os.getpid())


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Return the next `size` bytes.

    Raises:
        ConnectionResetError: the other end is gone.
    """
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionResetError("the other end is gone")
        data += chunk
    return bytes(data)
