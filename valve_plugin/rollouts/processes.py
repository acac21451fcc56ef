"""Starting Python as it is here; ending a process and everything it started."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress

VALVE = "from valve_plugin.cli import main; main()"
"""The `valve` command, as code for `python`."""


def python(code: str, *arguments: str) -> list[str]:
    """Return a command that runs code with the modules this process sees, and `arguments` as `sys.argv[1:]`.

    Never with the working directory's: that is often the repository an agent works on, and `python -m` would import
    what lies there (Pygments, say) in place of what is installed.
    """
    start = "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); "
    return [sys.executable, "-c", start + code, json.dumps([p for p in sys.path if p]), *arguments]


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
