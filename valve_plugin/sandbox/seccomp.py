"""The system calls that commands in a sandbox cannot make: a table, and what bubblewrap, podman and docker make of it.

No build, test or tool needs these calls, and each is a way out, a channel to other rollouts, or memory that no limit
counts. podman's own profile, from a file, stays as well. Docker's cannot be read, so the table replaces it: unlike that
profile, it closes sockets of virtual machines, `ptrace`, the listing of the network and, before version 25, `io_uring`.

bubblewrap takes a compiled filter. Those in `seccomp_filters/` are made from the table with libseccomp, one for each
architecture, by `python -m tests.sandbox.filters`; so neither libseccomp nor a compiler is needed here.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
_EQUAL, _MASKED = "SCMP_CMP_EQ", "SCMP_CMP_MASKED_EQ"


def filter_path() -> Path:
    """Return the compiled filter for this machine's architecture; there may be none."""
    return Path(__file__).with_name("seccomp_filters") / f"{os.uname().machine}.bpf"


class Comparison(NamedTuple):
    """A comparison of a call's argument, by libseccomp's name for it."""

    argument: int
    operator: str
    value: int
    second: int = 0


class Rule(NamedTuple):
    """A call that fails with `error`, if all comparisons hold."""

    error: int
    name: str
    comparisons: tuple[Comparison, ...] = ()


def rules() -> list[Rule]:
    """Return the table as rules; what they do not name is open."""
    found = [Rule(error, name) for error, names in CLOSED.items() for name in names]
    flags = (1 << bit for bit in range(32) if NAMESPACE_FLAGS & 1 << bit)
    found += [Rule(errno.EPERM, "clone", (Comparison(0, _MASKED, flag, flag),)) for flag in flags]
    # The kernel looks at the low half of the argument only, the last comparison at all of it.
    other = [Comparison(0, _EQUAL, family) for family in range(NETLINK) if family not in SOCKETS]
    other.append(Comparison(0, "SCMP_CMP_GE", NETLINK + 1))
    found += [Rule(errno.EAFNOSUPPORT, "socket", (one,)) for one in other]
    netlink = Comparison(0, _EQUAL, NETLINK), Comparison(2, "SCMP_CMP_NE", 0)
    found.append(Rule(errno.EAFNOSUPPORT, "socket", netlink))
    return found


def docker_profile() -> str:
    """Return a profile (JSON) for docker with the calls of the table closed; its own cannot be read."""
    syscalls = [_rule("SCMP_ACT_ERRNO", [rule.name], *rule.comparisons) | {"errnoRet": rule.error} for rule in rules()]
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": syscalls})


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
    allowed = [rule for rule in profile["syscalls"] if rule["names"]]
    allowed += [_rule("SCMP_ACT_ERRNO", names) | {"errnoRet": code} for code, names in CLOSED.items()]
    allowed.append(_rule("SCMP_ACT_ALLOW", ["clone"], Comparison(0, _MASKED, NAMESPACE_FLAGS)))
    allowed += [_rule("SCMP_ACT_ALLOW", ["socket"], Comparison(0, _EQUAL, family)) for family in SOCKETS]
    netlink = Comparison(0, _EQUAL, NETLINK), Comparison(2, _EQUAL, 0)
    allowed.append(_rule("SCMP_ACT_ALLOW", ["socket"], *netlink))
    return json.dumps(profile | {"syscalls": allowed})


def _rule(action: str, names: Sequence[str], *comparisons: Comparison) -> dict[str, Any]:
    args = [{"index": c.argument, "op": c.operator, "value": c.value, "valueTwo": c.second} for c in comparisons]
    return {"action": action, "names": list(names), "args": args}
