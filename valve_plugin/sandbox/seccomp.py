"""The system calls that commands in a sandbox cannot make: a table, and what bubblewrap and podman make of it.

No build, test or tool needs these calls, and each is a way out, a channel to other rollouts, or memory that no limit
counts. Docker's own profile, which no program can read, closes them too, but for `ptrace` of one's own processes, the
listing of the network by netlink and, before version 25, `io_uring`.

bubblewrap takes a compiled filter. Those in `seccomp_filters/` are made from the table with libseccomp, one for each
architecture, by `python -m tests.sandbox.filters`; so neither libseccomp nor a compiler is needed here.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

NAMESPACE_FLAGS = 0x7E020000
"""Flags of clone that make a namespace. In a user namespace of its own a process has all capabilities."""
SOCKETS = (1, 2, 10)
"""Address families that are open: UNIX, IPv4, IPv6."""
NETLINK = 16
"""Open for protocol 0 only, with which `getifaddrs` lists the interfaces."""

CLOSED: dict[int, tuple[str, ...]] = {
    errno.EPERM: (
        # Namespaces and mounts
        *("unshare", "setns", "mount", "umount2", "pivot_root", "fsopen", "fsmount", "fsconfig", "fspick"),
        *("move_mount", "open_tree", "mount_setattr", "open_by_handle_at", "quotactl", "quotactl_fd", "fanotify_init"),
        # Other processes
        *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp"),
        # The kernel and the machine
        *("bpf", "perf_event_open", "userfaultfd", "kexec_load", "kexec_file_load", "init_module", "finit_module"),
        *("delete_module", "swapon", "swapoff", "reboot", "acct", "syslog", "settimeofday", "clock_settime"),
    ),
    # As in a kernel without them: libraries then use something else. clone3 has its flags in memory, which no filter
    # can read, and falls back to clone.
    errno.ENOSYS: (
        *("clone3", "keyctl", "add_key", "request_key", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    ),
}
UNCOUNTED = ("memfd_create", "memfd_secret", "shmget")
"""Memory that stays in use without being mapped, so limits of processes do not count it. Closed (ENOSYS) by
bubblewrap; a container's control group counts it."""


def filter_path() -> Path:
    """Return the compiled filter for this machine's architecture; there may be none."""
    return Path(__file__).with_name("seccomp_filters") / f"{os.uname().machine}.bpf"


def podman_profile(default: Path) -> str:
    """Return podman's profile (JSON) with the calls of the table closed.

    Args:
        default: podman's own profile, which opens all that a container in a container needs.

    Raises:
        OSError: it cannot be read.
        ValueError: it has another format.
    """
    profile = json.loads(default.read_bytes())
    closed = {name for names in CLOSED.values() for name in names}
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in closed | {"clone", "socket"}]
    rules = [rule for rule in profile["syscalls"] if rule["names"]]
    rules += [_rule("SCMP_ACT_ERRNO", names) | {"errnoRet": code} for code, names in CLOSED.items()]
    rules.append(_rule("SCMP_ACT_ALLOW", ["clone"], _argument(0, NAMESPACE_FLAGS, "SCMP_CMP_MASKED_EQ")))
    rules += [_rule("SCMP_ACT_ALLOW", ["socket"], _argument(0, family)) for family in SOCKETS]
    rules.append(_rule("SCMP_ACT_ALLOW", ["socket"], _argument(0, NETLINK), _argument(2, 0)))
    return json.dumps(profile | {"syscalls": rules})


def _rule(action: str, names: Any, *arguments: dict[str, Any]) -> dict[str, Any]:
    return {"action": action, "names": list(names), "args": list(arguments)}


def _argument(index: int, value: int, comparison: str = "SCMP_CMP_EQ") -> dict[str, Any]:
    return {"index": index, "value": value, "valueTwo": 0, "op": comparison}
