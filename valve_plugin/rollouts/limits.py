"""What one sandboxed command may use."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from valve_plugin.errors import SandboxError
from valve_plugin.records import Positive, Record

MIB = 1024 * 1024
FIRST_TO_GO = 1000
"""Of /proc/PID/oom_score_adj. By size alone the kernel would end us, where theirs are many and small."""


class Limits(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """CPU time rather than wall time bounds a command, so a loaded machine changes no verdict."""

    cpu_seconds: Positive = 60
    """Of each process (by the kernel) and of all together (watched)."""
    wall_seconds: Positive = 600
    """Backstop for commands that sleep."""
    memory_bytes: Positive = 6144 * MIB
    """Address space of each process (by the kernel); resident memory of all together (watched)."""
    processes: Positive = 256
    """Processes and threads that exist at once."""
    file_bytes: Positive = 512 * MIB
    """Largest file a process may write."""
    disk_bytes: Positive = 2048 * MIB
    """Workspace, home and temporary files together (watched)."""
    output_bytes: Positive = 10 * MIB
    """Output kept; what comes after is read and dropped."""

    def wrap(self, command: Sequence[str]) -> list[str]:
        """Return the command run under these limits, which it and its children cannot raise.

        Where the machine itself is out of memory they are the first to go, and not whoever started them.

        Raises:
            SandboxError: util-linux is missing.
        """
        prlimit = shutil.which("prlimit")
        if prlimit is None:
            raise SandboxError("prlimit is not on PATH; install the package util-linux")
        cpu = f"--cpu={self.cpu_seconds}:{self.cpu_seconds + 1}"  # a signal that can be told apart, then SIGKILL
        return [
            *(["choom", "-n", str(FIRST_TO_GO), "--"] if shutil.which("choom") else []),  # util-linux 2.33
            prlimit,
            cpu,
            f"--as={self.memory_bytes}",
            f"--nproc={self.processes}",
            f"--fsize={self.file_bytes}",
            "--core=0",
            "--",
            *command,
        ]
