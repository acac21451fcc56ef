"""Where unattended commands run: bubblewrap, or plainly when the user said so."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from valve_plugin.config import Settings
from valve_plugin.errors import SandboxError
from valve_plugin.rollouts.glance import Tap
from valve_plugin.rollouts.lifeline import kept
from valve_plugin.rollouts.limits import MIB, Limits
from valve_plugin.rollouts.supervise import Completed, supervise
from valve_plugin.rollouts.workspace import Workspace

if TYPE_CHECKING:
    from valve_plugin.tasks.image import Image

TESTBED = "/testbed"
_HOME = "/home/agent"
_TMP = "/tmp"  # noqa: S108 (inside; private to the workspace)
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store")
# Enough of /etc for the dynamic linker, Debian's alternatives and time zones; no accounts, hosts or keys.
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types", "python3")
# Semaphores and shared memory live in memory, so their size is bounded where they are mounted.
_SHM = ("--perms", "1777", "--size", str(256 * MIB), "--tmpfs", "/dev/shm")  # noqa: S108 (inside)


class Sandbox(Protocol):
    """Runs commands on a workspace."""

    @property
    def name(self) -> str:
        """What tells its results from those of another sandbox."""
        ...

    @property
    def root(self) -> str | None:
        """Where the workspace's tree appears; None: at its own path."""
        ...

    def run(
        self,
        command: str | Sequence[str],
        workspace: Workspace,
        *,
        limits: Limits = ...,
        cwd: str = ...,
        env: Mapping[str, str] | None = ...,
        stdin: bytes = ...,
        readonly: Sequence[Path] = ...,
        tap: Tap | None = ...,
    ) -> Completed:
        """Run a command (text: by bash) until it ends or hits a limit; nothing it started outlives the call.

        Args:
            cwd: relative to the tree.
            env: added to the little that is set.
            readonly: files the command may read, at their own paths, beside those of the workspace.
            tap: follows the command.

        Raises:
            SandboxError: the sandbox itself failed to start.
        """
        ...


_INSTALL = "Install it (Debian, Ubuntu: apt-get install bubblewrap)"


def choose(settings: Settings, image: Image | None = None) -> Sandbox:
    """Return a container for what has an image, else bubblewrap, else the plain runner if `unsafe_local` allows it.

    Args:
        image: as `tasks.image.placed` found it, which heeds `settings.sandbox`.

    Raises:
        SandboxError: none; says why and what to install.
    """
    if image is not None:
        from valve_plugin.rollouts.container import Container

        return Container(image)
    if settings.sandbox not in ("auto", "bwrap"):
        raise SandboxError(f"sandbox is {settings.sandbox!r}, and this is not a task with an image; use 'auto'")
    reason = bubblewrap_fails()
    if not reason:
        return Bubblewrap()
    if settings.unsafe_local:
        return UnsafeLocal()
    install = "`valve doctor` names the fix" if shutil.which("bwrap") else _INSTALL
    raise SandboxError(
        f"unattended rollouts need a sandbox, and bubblewrap does not work here: {reason}. {install}, or accept the "
        f"risk with --unsafe-local"
    )


class Bubblewrap:
    """No network, no environment, private home and temporary files, system read-only, a uid of its own."""

    name = "bubblewrap"
    root: str | None = TESTBED

    def run(
        self,
        command: str | Sequence[str],
        workspace: Workspace,
        *,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        readonly: Sequence[Path] = (),
        tap: Tap | None = None,
    ) -> Completed:
        """See `Sandbox.run`."""
        inner = limits.wrap([*_drop_uid(workspace.uid), *argv(command)])
        visible = environment(workspace, workspace.place, _HOME, _TMP) | dict(env or {})
        settings = [word for name, value in visible.items() for word in ("--setenv", name, value)]
        outer = [
            "bwrap",
            *_isolate(workspace.uid),
            *_mounts(workspace, readonly),
            *settings,
            "--chdir",
            os.path.normpath(os.path.join(workspace.place, cwd)),
            "--",
            *inner,
        ]
        # An empty environment for bwrap itself too: inside, it is process 1, whose environment can be read.
        bare = {"PATH": os.environ.get("PATH", os.defpath)}
        with tempfile.TemporaryFile(dir=workspace.root) as status:
            outer[1:1] = ["--json-status-fd", str(status.fileno())]
            fds = [status.fileno()]
            done = supervise(outer, workspace.root, limits, env=bare, stdin=stdin, pass_fds=fds, tap=tap)
            status.seek(0)
            # Written once the command really runs; what it prints or returns says nothing about the sandbox.
            if not done.limit and b"exit-code" not in status.read():
                raise SandboxError(f"bubblewrap failed: {done.output[-300:].decode('utf-8', 'replace')}")
        return done


class UnsafeLocal:
    """No isolation: the command runs as the user, with limits and a cleared environment only."""

    name = "unsafe-local"
    root: str | None = None

    def run(
        self,
        command: str | Sequence[str],
        workspace: Workspace,
        *,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        readonly: Sequence[Path] = (),
        tap: Tap | None = None,
    ) -> Completed:
        """See `Sandbox.run`."""
        wrapped = limits.wrap(argv(command)) if shutil.which("prlimit") else argv(command)
        visible = environment(workspace, str(workspace.path), str(workspace.home), str(workspace.tmp))
        visible |= env or {}
        with kept(wrapped) as (words, fd):
            place, fds = workspace.path / cwd, [fd]
            return supervise(words, workspace.root, limits, env=visible, stdin=stdin, cwd=place, pass_fds=fds, tap=tap)


def environment(workspace: Workspace, root: str, home: str, tmp: str) -> dict[str, str]:
    """Return all that a sandboxed command sees in its environment."""
    path = [*([str(workspace.bin)] if workspace.bin else []), "/usr/local/bin", "/usr/bin", "/bin"]
    return {
        "PATH": ":".join(path),
        "PYTHONPATH": ":".join(os.path.normpath(f"{root}/{r}") for r in workspace.source_roots),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "HOME": home,
        "TMPDIR": tmp,
        "USER": "agent",
        "LOGNAME": "agent",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_AUTHOR_NAME": "agent",
        "GIT_AUTHOR_EMAIL": "agent@localhost",
        "GIT_COMMITTER_NAME": "agent",
        "GIT_COMMITTER_EMAIL": "agent@localhost",
        # The tree's owner is a uid of its own, which git would take for somebody else's where commands run plainly.
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
    }


def argv(command: str | Sequence[str]) -> list[str]:
    """Return a command as words; text is for bash."""
    return ["bash", "-c", command] if isinstance(command, str) else list(command)


def _isolate(uid: int) -> list[str]:
    words = ["--die-with-parent", "--new-session", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    words += ["--unshare-cgroup-try", "--clearenv", "--hostname", "sandbox", "--cap-drop", "ALL"]
    if os.geteuid() != 0:
        return [*words, "--unshare-user", "--uid", str(uid), "--gid", str(uid)]
    # As root the limit on processes binds only once the uid is dropped for good, which bwrap cannot do: setpriv does.
    return [*words, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]


def _drop_uid(uid: int) -> list[str]:
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise SandboxError("setpriv is not on PATH; install the package util-linux")
    return [setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all", "--"]


def _mounts(workspace: Workspace, readonly: Sequence[Path]) -> list[str]:
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
    words += ["--proc", "/proc", "--dev", "/dev", *_SHM, "--bind", str(workspace.tmp), _TMP]
    words += [*_parents(_HOME), "--bind", str(workspace.home), _HOME]
    words += [*_parents(workspace.place), "--bind", str(workspace.path), workspace.place]
    for path in (*workspace.readonly, *readonly):
        words += _bind("--ro-bind", str(path)) if not str(path).startswith("/usr/") else []
    # What is left is bwrap's own file system in memory: nobody's to fill.
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/"]


def _bind(how: str, path: str) -> list[str]:
    return [*_parents(path), how, path, path]


def _parents(path: str) -> list[str]:
    """Make the directories above a mount point readable for the dropped uid; bwrap's own are for their owner only."""
    above = [str(p) for p in reversed(Path(path).parents)][1:]
    return [word for parent in above for word in ("--perms", "0755", "--dir", parent)]


@lru_cache(maxsize=1)
def bubblewrap_fails() -> str:
    """Return why bubblewrap cannot be used on this machine, empty when it works; tried once per process."""
    bwrap = shutil.which("bwrap")
    missing = [tool for tool in ("bwrap", "prlimit", "setpriv") if shutil.which(tool) is None]
    if bwrap is None or missing:
        return f"{' and '.join(missing)} not on PATH (prlimit and setpriv come with util-linux)"
    probe = [bwrap, *_isolate(os.getuid()), *(w for p in _SYSTEM if os.path.exists(p) for w in ("--ro-bind", p, p))]
    probe += ["--proc", "/proc", "--dev", "/dev", "--", "/usr/bin/true"]
    try:
        done = subprocess.run(probe, capture_output=True, text=True, timeout=30, check=False, env={})
    except (OSError, subprocess.TimeoutExpired) as e:
        return str(e)
    if done.returncode == 0:
        return ""
    hint = "; unprivileged user namespaces may be switched off on this machine" if os.geteuid() else ""
    return (done.stderr.strip() or f"it ended with {done.returncode}") + hint
