"""Ending a process and everything it started."""

from __future__ import annotations

import os
import signal
from contextlib import suppress


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
        for process in root.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
        root.kill()
