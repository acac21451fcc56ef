"""System calls that are closed in a sandbox, tried as real calls; and what programs need, which still works."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform

import pytest

from tests.sandbox import filters
from tests.tools import missing
from valve_plugin.sandbox import bubblewrap, seccomp
from valve_plugin.sandbox.bubblewrap import Sandbox
from valve_plugin.sandbox.workspace import Workspace

CALLS = """
import ctypes, json, sys
libc = ctypes.CDLL(None, use_errno=True)
found = {}
for name, number, *arguments in json.load(sys.stdin):
    ctypes.set_errno(0)
    result = libc.syscall(*[ctypes.c_long(value) for value in (number, *arguments)])
    found[name] = 0 if result >= 0 else ctypes.get_errno()
print(json.dumps(found))
"""


def _number(name: str) -> int:
    try:
        return int(ctypes.CDLL("libseccomp.so.2").seccomp_syscall_resolve_name(name.encode()))
    except OSError:
        missing("libseccomp, which knows the numbers of system calls, is not installed")


def call(sandbox: Sandbox, place: Workspace, calls: list[tuple[str | int, ...]]) -> dict[str, int]:
    """Make system calls inside; return the error number of each, 0 if it succeeds."""
    done = sandbox.run(["python3", "-c", CALLS], place, stdin=json.dumps(calls).encode())
    found: dict[str, int] = json.loads(done.output)
    return found


def test_every_call_of_the_table_fails(sandbox: Sandbox, place: Workspace) -> None:
    wanted = {name: error for error, names in seccomp.CLOSED.items() for name in names}
    wanted |= dict.fromkeys(seccomp.UNCOUNTED, errno.ENOSYS)
    assert call(sandbox, place, [(name, _number(name), 0, 0, 0, 0, 0) for name in wanted]) == wanted


def test_only_sockets_of_programs_are_open(sandbox: Sandbox, place: Workspace) -> None:
    number, opened = _number("socket"), {1, 2, 10, 16}
    calls = [(str(family), number, family, 1 if family != 16 else 3, 0) for family in range(50)]
    calls += [(f"high {family}", number, (1 << 32) | family, 1, 0) for family in (3, 16, 17, 40)]
    calls += [(f"netlink {protocol}", number, 16, 3, protocol) for protocol in (2, 9, 12, 15)]
    found = call(sandbox, place, calls)
    assert {int(name) for name, error in found.items() if not error} == opened
    assert set(found.values()) == {0, errno.EAFNOSUPPORT}
    pair = _number("socketpair")
    pairs = [(str(family), pair, family, 1, 0, 0) for family in (*range(50), 1 << 32 | 40)]
    given = call(sandbox, place, pairs)
    assert given.pop("1") == errno.EFAULT, "UNIX: the kernel looks for where to write them"
    assert set(given.values()) == {errno.EOPNOTSUPP}


def test_no_namespace_can_be_made(sandbox: Sandbox, place: Workspace) -> None:
    clone = _number("clone")
    flags = [1 << bit for bit in range(32) if seccomp.NAMESPACE_FLAGS & 1 << bit]
    assert len(flags) == 7
    calls = [(hex(flag), clone, flag | 17, 0, 0, 0, 0) for flag in (*flags, seccomp.NAMESPACE_FLAGS)]
    assert set(call(sandbox, place, calls).values()) == {errno.EPERM}
    assert sandbox.run("unshare -U true || unshare -r true || unshare -m true", place).returncode != 0


ALLOCATE = """
import ctypes, errno, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = libc.ioctl.argtypes = [ctypes.c_int] + [ctypes.c_long] * 3
file = os.open("big", os.O_RDWR | os.O_CREAT)
space = ctypes.create_string_buffer(struct.pack("hhqqiI4i", 0, 0, 0, 8 << 20, *[0] * 6))
space = ctypes.addressof(space), 0
tries = [(libc.fallocate, mode, 0, 8 << 20) for mode in (0, 1, 0x10, 0x11, 0x41)]
tries += [(libc.syscall, 285 if os.uname().machine == "x86_64" else 47, file, (1 << 32) | 1, 0, 8 << 20)]
tries += [(libc.ioctl, high | command, *space) for command in map(int, sys.argv[1:]) for high in (0, 1 << 32)]
for call, *words in tries:
    failed = call(*([file] if call is not libc.syscall else []), *map(ctypes.c_long, words))
    assert failed and ctypes.get_errno() == errno.EOPNOTSUPP, (call, words)
assert not os.fstat(file).st_blocks
os.posix_fallocate(file, 0, 1 << 20)
full = os.fstat(file).st_blocks
assert full >= 2048, "as a library does it without the call"
libc.fallocate(file, 3, 0, 1 << 19)
assert os.fstat(file).st_blocks < full, "holes are made"
print("fine")
"""


def test_disk_space_is_taken_by_writing_only(sandbox: Sandbox, place: Workspace) -> None:
    words = ["python3", "-c", ALLOCATE, *map(str, seccomp.ALLOCATE)]
    assert sandbox.run(words, place).output == b"fine\n"


LEASE = """
import fcntl, sys
with open("leased", "w+") as file:
    for command in map(int, sys.argv[1:]):
        try:
            fcntl.fcntl(file, command, fcntl.F_UNLCK)
        except OSError as e:
            print(e.errno)
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX)
    assert fcntl.fcntl(file, fcntl.F_GETLEASE) == fcntl.F_UNLCK
"""


def test_nobody_waits_for_a_lease(sandbox: Sandbox, place: Workspace) -> None:
    """Two rollouts of one user share the files of the test environment."""
    done = sandbox.run(["python3", "-c", LEASE, *map(str, seccomp.LEASES)], place)
    assert done.output.split() == [b"%d" % errno.EINVAL] * 2


ORDINARY = """
import concurrent.futures, ctypes, multiprocessing, os, socket, subprocess, tempfile, threading, urllib.request
with concurrent.futures.ThreadPoolExecutor(8) as pool: assert sum(pool.map(int, range(9))) == 36
with concurrent.futures.ProcessPoolExecutor(2) as pool: assert list(pool.map(abs, [-1, -2])) == [1, 2]
lock = multiprocessing.Lock()
shared = __import__("multiprocessing.shared_memory").shared_memory.SharedMemory(create=True, size=4096)
shared.close(); shared.unlink()
assert subprocess.run(["sh", "-c", "echo a | cat"], capture_output=True).stdout == b"a\\n"
server = socket.create_server(("::1", 0), family=socket.AF_INET6)
socket.create_connection(server.getsockname()[:2]).close()
assert socket.if_nameindex()
left, right = socket.socketpair(); left.send(b"x"); assert right.recv(1) == b"x"
import asyncio
async def run(): assert await (await asyncio.create_subprocess_exec("true")).wait() == 0
asyncio.run(run())
import select; select.epoll(); import mmap; mmap.mmap(-1, 4096)
os.posix_spawnp("true", ["true"], os.environ)
print("fine")
"""


def test_ordinary_programs_notice_nothing(sandbox: Sandbox, place: Workspace) -> None:
    assert sandbox.run(["python3", "-c", ORDINARY], place).output == b"fine\n"


def test_the_compiled_filters_are_those_of_the_table() -> None:
    for name, number in filters.ARCHITECTURES.items():
        try:
            made = filters.compile_filter(number)
        except OSError:
            missing("libseccomp, which compiles the filters, is not installed")
        kept = (seccomp.filter_path().parent / f"{name}.bpf").read_bytes()
        assert made == kept, "run `python -m tests.sandbox.filters`"


def test_without_a_filter_commands_run_and_it_is_said(
    sandbox: Sandbox, place: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "uname", lambda: platform.uname()._replace(machine="vax"))
    bubblewrap.filter_problem.cache_clear()
    try:
        assert "vax" in bubblewrap.filter_problem()
        assert sandbox.run("echo fine", place).output == b"fine\n"
    finally:
        bubblewrap.filter_problem.cache_clear()
