"""Sandboxes of unattended commands: bubblewrap, or no isolation if the user allows it; and choosing one."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from valve_plugin.config import Settings
from valve_plugin.errors import SandboxError
from valve_plugin.sandbox.cgroup import memory_group
from valve_plugin.sandbox.engine import Image
from valve_plugin.sandbox.seccomp import filter_path
from valve_plugin.sandbox.supervisor import (
    MIB,
    CommandResult,
    ProcessLimits,
    RunOptions,
    argv,
    cannot_run,
    keeper_command,
    refuse,
    supervise,
)
from valve_plugin.sandbox.workspace import TESTBED, TMP, Workspace, open_workspace

if TYPE_CHECKING:
    from typing_extensions import Unpack

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store")
# Enough of /etc for the dynamic linker, Debian's alternatives and time zones; no accounts, hosts or keys.
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "python3")
# What tells of the host in /proc, as containers hide it: the names of its keys, its kernel's memory and timers.
_HIDDEN = ("kcore", "keys", "key-users", "latency_stats", "sched_debug", "timer_list")
# Semaphores and shared memory use memory, so the mount limits their size.
_SHM = ("--perms", "1777", "--size", str(256 * MIB), "--tmpfs", "/dev/shm")  # noqa: S108 (inside)
_END_SECONDS = 60
_INSTALL = "Install it (Debian, Ubuntu: apt-get install bubblewrap)"


class Sandbox(Protocol):
    """Runs commands on a workspace."""

    @property
    def name(self) -> str:
        """Name of the sandbox, used in the keys of its results."""
        ...

    @property
    def isolates(self) -> bool:
        """Whether nothing outside of the workspace can be changed."""
        ...

    @property
    def root(self) -> str | None:
        """Path at which commands see the workspace's tree, or None for its own path."""
        ...

    def run(self, command: str | Sequence[str], workspace: Workspace, **options: Unpack[RunOptions]) -> CommandResult:
        """Run a command (a string by bash) until it ends or exceeds a limit; its processes do not outlive the call.

        Raises:
            SandboxError: the sandbox itself failed to start.
        """
        ...


def choose(settings: Settings, image: Image | None = None) -> Sandbox:
    """Return the sandbox: a container if there is an image, else bubblewrap, else none if `unsafe_local` allows it.

    Raises:
        SandboxError: there is no sandbox; the message says why and what to install.
    """
    if image is not None:
        from valve_plugin.sandbox.container import Container

        return Container(image)
    if settings.sandbox not in ("auto", "bwrap"):
        raise SandboxError(f"sandbox is {settings.sandbox!r}, but this is not a task with an image; use 'auto'")
    reason = bubblewrap_problem()
    if not reason:
        return Bubblewrap()
    if settings.unsafe_local:
        return UnsafeLocal()
    install = "`valve doctor` shows how to fix it" if shutil.which("bwrap") else _INSTALL
    raise SandboxError(
        f"unattended rollouts need a sandbox, and bubblewrap does not work here: {reason}. {install}, or accept the "
        f"risk with --unsafe-local"
    )


class Bubblewrap:
    """A sandbox without network and environment, with private home and temporary files and a read-only system."""

    name, isolates = "bubblewrap", True
    root: str | None = TESTBED

    def run(self, command: str | Sequence[str], workspace: Workspace, **options: Unpack[RunOptions]) -> CommandResult:
        """See `Sandbox.run`."""
        if refused := refuse(command):
            return refused
        for _ in range(2):
            done, began = _run(command, workspace, options)
            if began:
                return done
            problem = done.output[-300:].decode("utf-8", "replace").strip()
            # Is it the machine's fault, or that of earlier commands, which may leave anything in their files?
            with open_workspace(readonly=workspace.readonly, place=workspace.place) as fresh:
                if done.returncode < 0 or not _run(["true"], fresh, {"readonly": options.get("readonly", ())})[1]:
                    raise SandboxError(f"bubblewrap failed: {problem}")
        return cannot_run(f"the command cannot be started: {problem}")


class UnsafeLocal:
    """No isolation: the command runs as the user, with only limits and a cleared environment."""

    name, isolates = "unsafe-local", False
    root: str | None = None

    def run(self, command: str | Sequence[str], workspace: Workspace, **options: Unpack[RunOptions]) -> CommandResult:
        """See `Sandbox.run`."""
        limits = options.get("limits", ProcessLimits())
        if refused := refuse(command):
            return refused
        words = argv(command, os.path.normpath(workspace.path / options.get("cwd", "")))
        wrapped = limits.wrap(words) if shutil.which("prlimit") else words
        variables = workspace.variables(str(workspace.path), str(workspace.home), str(workspace.tmp))
        with keeper_command(wrapped) as (words, fd):
            return supervise(
                words,
                workspace.root,
                limits,
                env=variables | dict(options.get("env") or {}),
                stdin=options.get("stdin", b""),
                cwd=workspace.root,
                pass_fds=[fd],
                watcher=options.get("watcher"),
            )


def _run(command: str | Sequence[str], workspace: Workspace, options: RunOptions) -> tuple[CommandResult, bool]:
    """Return (how a command ended, whether it began), once all processes of its namespace have ended."""
    limits = options.get("limits", ProcessLimits())
    variables = workspace.variables(workspace.place) | dict(options.get("env") or {})
    folder = os.path.normpath(os.path.join(workspace.place, options.get("cwd", "")))
    inner = limits.wrap([*_drop_uid(workspace.uid), *argv(command, folder)])
    outer = [
        *_isolate(workspace.uid, workspace.user),
        *_mounts(workspace, options.get("readonly", ()), options.get("readonly_tree", ())),
        *[word for name, value in variables.items() for word in ("--setenv", name, value)],
        *("--chdir", "/", "--", *inner),
    ]
    with memory_group(limits.memory_bytes) as group, _status_pipe() as (reader, writer), _filter() as (seccomp, fds):
        words = ["bwrap", "--json-status-fd", str(writer), *seccomp, *outer]
        done = supervise(
            group.enter(words) if group else words,
            workspace.root,
            limits,
            # Also for bwrap itself: it is process 1 inside, whose environment can be read.
            env={"PATH": os.environ.get("PATH", os.defpath)},
            stdin=options.get("stdin", b""),
            pass_fds=[writer, *fds],
            cpu_seconds=group.cpu_seconds if group else float,
            watcher=options.get("watcher"),
        )
        # bwrap writes this when the command has run, one JSON object per line. Its output and exit code say nothing
        # about the sandbox.
        status: dict[str, int] = {}
        with suppress(BlockingIOError):
            for line in os.read(reader, select.PIPE_BUF).splitlines():
                status |= json.loads(line)
        if not _await_end(status) and not done.limit:
            done = replace(done, limit="wall")
        if group and done.limit in (None, "", "wall") and group.killed():  # what was left then waited for what is gone
            done = replace(done, limit="memory")
    return done, bool(done.limit) or "exit-code" in status


@contextmanager
def _filter() -> Iterator[tuple[list[str], list[int]]]:
    """Open the system call filter; yield (bwrap's options for it, the descriptors to pass on)."""
    if filter_problem():
        yield [], []
        return
    with filter_path().open("rb") as file:
        yield ["--seccomp", str(file.fileno())], [file.fileno()]


@contextmanager
def _status_pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    try:
        yield reader, writer
    finally:
        os.close(reader)
        os.close(writer)


def _await_end(status: Mapping[str, int]) -> bool:
    """Wait until process 1 of the namespace has ended. The kernel ends it after all others.

    Returns:
        False if that takes too long, as when they leave the kernel millions of locks to look through. They were killed,
        so no code of theirs runs any more.
    """
    pid = status.get("child-pid", 0)
    if not pid or not hasattr(os, "pidfd_open"):
        return True
    with suppress(OSError):  # it has ended; or a kernel before 5.3
        fd = os.pidfd_open(pid)
        try:
            if os.stat(f"/proc/{pid}/ns/pid").st_ino != status.get("pid-namespace"):
                return True  # another process has its number by now
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            return bool(poll.poll(_END_SECONDS * 1000))
        finally:
            os.close(fd)
    return True


def _isolate(uid: int, host: str = "agent") -> list[str]:
    words = ["--die-with-parent", "--new-session", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--clearenv", "--hostname", host, "--cap-drop", "ALL"]
    if os.geteuid() != 0:
        return [*words, "--unshare-user", *_no_more_namespaces(), "--uid", str(uid), "--gid", str(uid)]
    # For root, the limit on processes works only after the uid is dropped for good. bwrap cannot do that, setpriv can.
    return [*words, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]


@lru_cache(maxsize=1)
def _no_more_namespaces() -> tuple[str, ...]:
    """Return the option that closes user namespaces also without a filter; bwrap has it from 0.8, not for root."""
    known = subprocess.run(["bwrap", "--help"], capture_output=True, text=True, check=False).stdout
    return ("--disable-userns",) if "--disable-userns" in known else ()


def _drop_uid(uid: int) -> list[str]:
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise SandboxError("setpriv is not on PATH; install the package util-linux")
    return [setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all", "--"]


def _mounts(workspace: Workspace, readonly: Sequence[Path], fixed: Sequence[str]) -> list[str]:
    words: list[str] = []
    for place in _SYSTEM:
        if os.path.islink(place):
            words += ["--symlink", os.readlink(place), place]
        elif os.path.isdir(place):
            words += ["--ro-bind", place, place]
    for name in _ETC:
        words += _bind("--ro-bind", f"/etc/{name}") if os.path.exists(f"/etc/{name}") else []
    words += _parents("/etc/hosts")
    for name in ("passwd", "group", "hosts"):
        words += ["--ro-bind", str(workspace.root / "etc" / name), f"/etc/{name}"]
    words += ["--proc", "/proc"]
    words += [w for n in _HIDDEN if os.path.exists(f"/proc/{n}") for w in ("--ro-bind", "/dev/null", f"/proc/{n}")]
    words += ["--dev", "/dev", *_SHM, "--bind", str(workspace.tmp), TMP]
    words += [*_parents(workspace.own), "--bind", str(workspace.home), workspace.own]
    words += [*_parents(workspace.place), "--bind", str(workspace.path), workspace.place]
    for name in fixed:
        words += ["--ro-bind", str(workspace.path / name), f"{workspace.place}/{name}"]
    for path in (*workspace.readonly, *readonly):
        words += _bind("--ro-bind", str(path)) if not str(path).startswith("/usr/") else []
    # The rest is bwrap's own file system in memory; nobody may fill it.
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/"]


def _bind(how: str, path: str) -> list[str]:
    return [*_parents(path), how, path, path]


def _parents(path: str) -> list[str]:
    """Return options that create the directories above a mount point, readable for the dropped uid."""
    above = [str(p) for p in reversed(Path(path).parents)][1:]
    return [word for parent in above for word in ("--perms", "0755", "--dir", parent)]


@lru_cache(maxsize=1)
def bubblewrap_problem() -> str:
    """Return why bubblewrap does not work on this machine, or "" if it works. It is tried once per process."""
    missing = [tool for tool in ("bwrap", "prlimit", "setpriv") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not on PATH (prlimit and setpriv come with util-linux)"
    done = _probe()
    if not done:
        return ""
    hint = "; unprivileged user namespaces may be switched off on this machine" if os.geteuid() else ""
    return done + hint


@lru_cache(maxsize=1)
def filter_problem() -> str:
    """Return why commands run without a system call filter on this machine, or "" if they run with it."""
    path = filter_path()
    if not path.exists():
        return f"there is no system call filter for {path.stem}, so commands can make every system call"
    with path.open("rb") as file:
        problem = _probe(["--seccomp", str(file.fileno())], [file.fileno()])
    return problem and f"the system call filter does not work here, so commands can make every call: {problem}"


def _probe(words: Sequence[str] = (), fds: Sequence[int] = ()) -> str:
    """Run `true` with bubblewrap; return why it failed, or ""."""
    system = [word for place in _SYSTEM if os.path.exists(place) for word in ("--ro-bind", place, place)]
    rest = ("--proc", "/proc", "--dev", "/dev", "--", "/usr/bin/true")
    probe = ["bwrap", *words, *_isolate(os.getuid()), *system, *rest]
    env = {"PATH": os.environ.get("PATH", os.defpath)}
    try:
        done = subprocess.run(probe, capture_output=True, text=True, timeout=30, check=False, env=env, pass_fds=fds)
    except (OSError, subprocess.TimeoutExpired) as e:
        return str(e)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"
