"""Starting Python as it is here; ending a process and everything it started."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress

_LOOK_SECONDS = 0.5
VALVE = "from valve_plugin.cli import main; main()"
"""The `valve` command, as code for `python`."""


def python(code: str, *arguments: str) -> list[str]:
    """Return a command that runs code with the modules this process sees, and `arguments` as `sys.argv[1:]`.

    Never with the working directory's: that is often the repository an agent works on, and `python -m` would import
    what lies there (Pygments, say) in place of what is installed.
    """
    start = "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); "
    return [sys.executable, "-c", start + code, json.dumps([p for p in sys.path if p]), *arguments]


def end_with(parent: int) -> None:
    """End this process within half a second of its parent's end; what a fork of ours calls first."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants, whatever sessions and groups they are in; fine when it is gone.

    The process is stopped first, so that it starts nothing while its descendants are listed. May be called on
    oneself: that is the last thing it does then.
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
    """Kill all that a process started, and what they started: stopped first, so that none starts another meanwhile."""
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
