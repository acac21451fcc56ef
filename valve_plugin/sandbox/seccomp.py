"""The system calls that commands in a sandbox cannot make: a table, and what sandboxes make of it.

No build, test or tool needs these calls, and each is a way out, a channel to other rollouts, or memory or disk space
that no limit counts in time. A container gets the table in place of the engine's own profile, which leaves more open:
sockets of virtual machines, `ptrace`, the listing of the network, Landlock, and `io_uring` in older versions.

bubblewrap takes a compiled filter. Those in `seccomp_filters/` are made from the table with libseccomp, one for each
architecture, by `python -m tests.sandbox.filters`; so neither libseccomp nor a compiler is needed here.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import NamedTuple

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
        "io_setup",  # the whole machine has few of these
        # A rule of Landlock keeps a file on the disk that has neither a name nor a descriptor.
        *("landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"),
    ),
}
UNCOUNTED = ("memfd_create", "memfd_secret", "shmget", "semget", "msgget")
"""Memory that stays in use without being mapped, so limits of processes do not count it: gigabytes. Closed (ENOSYS) by
bubblewrap; a container's control group counts it."""
PUNCH_HOLE = 2
"""The flag of fallocate without which it takes disk space: all that is free, within milliseconds, and beyond the limit
of a file's size. As on a file system that cannot do that, programs then write zeros."""
ALLOCATE = (0x40305828, 0x4030582A, 0x40305839)
"""Commands of ioctl that do the same on any file system (FS_IOC_RESVSP, FS_IOC_RESVSP64, FS_IOC_ZERO_RANGE)."""
LEASES = (1024, 1040)
"""Commands of fcntl (F_SETLEASE, F_SETDELEG): they delay whoever opens a file of the same user, by 45 s each time."""
_LOW_HALF = 0xFFFFFFFF
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
    found.append(Rule(errno.EOPNOTSUPP, "socketpair", (Comparison(0, "SCMP_CMP_NE", SOCKETS[0]),)))
    netlink = Comparison(0, _EQUAL, NETLINK), Comparison(2, "SCMP_CMP_NE", 0)
    found.append(Rule(errno.EAFNOSUPPORT, "socket", netlink))
    found.append(Rule(errno.EOPNOTSUPP, "fallocate", (Comparison(1, _MASKED, PUNCH_HOLE, 0),)))
    closed = [(errno.EOPNOTSUPP, "ioctl", command) for command in ALLOCATE]
    closed += [(errno.EINVAL, "fcntl", command) for command in LEASES]
    found += [Rule(error, name, (Comparison(1, _MASKED, _LOW_HALF, command),)) for error, name, command in closed]
    return found


def container_profile() -> str:
    """Return a profile (JSON) for podman and docker with the calls of the table closed."""
    names = ("index", "op", "value", "valueTwo")
    syscalls = [
        {
            "action": "SCMP_ACT_ERRNO",
            "names": [rule.name],
            "errnoRet": rule.error,
            "args": [dict(zip(names, one, strict=True)) for one in rule.comparisons],
        }
        for rule in rules()
    ]
    return json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": syscalls})
