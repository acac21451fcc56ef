"""Run in the sandbox: pass loopback connections on to the gateway's socket while a command runs.

    python -I -S forward.py PORT SOCKET COMMAND...

Copied into the sandbox and run there by whatever Python it has, so it uses only the standard library, as of Python 3.6.
"""

import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress


def main() -> None:
    """Run the command; end as it ends."""
    port, path, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(64)
    try:
        child = subprocess.Popen(command)
    except OSError as e:
        print(f"{command[0]} cannot be started: {e}")
        sys.exit(127)
    os.chdir(os.path.dirname(path))  # the whole path may be longer than a socket's address can be
    threading.Thread(target=accept, args=(listener, os.path.basename(path)), daemon=True).start()
    code = child.wait()
    sys.stdout.flush()
    os._exit(code if code >= 0 else 128 - code)


def accept(listener: socket.socket, name: str) -> None:
    """Connect each client to the gateway."""
    while True:
        inside, _ = listener.accept()
        outside = socket.socket(socket.AF_UNIX)
        try:
            outside.connect(name)
        except OSError:
            inside.close()
            continue
        for ends in ((inside, outside), (outside, inside)):
            threading.Thread(target=pump, args=ends, daemon=True).start()


def pump(source: socket.socket, target: socket.socket) -> None:
    """Pass on data until one end closes."""
    with suppress(OSError):
        while True:
            data = source.recv(65536)
            if not data:
                break
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main()
