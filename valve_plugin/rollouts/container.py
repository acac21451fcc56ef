"""Rollouts in a task's own image: a container that holds what bubblewrap holds, and never outlives who started it.

The image's own `/testbed`, with its history, is covered by a workspace's. Process 1 waits for a lock that the process
which started the container holds: the kernel frees it however that process ends, process 1 then ends, and with it
everything else inside. So no daemon has to be alive to clean up; what a crash of the machine leaves is removed at the
next start (`engine.fails`).
"""

from __future__ import annotations

import fcntl
import os
import resource
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec.structs import replace as changed

from valve_plugin.errors import SandboxError
from valve_plugin.rollouts.cgroup import Group, Usage
from valve_plugin.rollouts.engine import ALIVE_LABEL, OWNER_LABEL, Engine, owner
from valve_plugin.rollouts.glance import Tap
from valve_plugin.rollouts.limits import FIRST_TO_GO, MIB, Limits
from valve_plugin.rollouts.sandbox import TESTBED, argv, environment
from valve_plugin.rollouts.supervise import Completed, supervise
from valve_plugin.rollouts.workspace import Workspace
from valve_plugin.tasks.image import Image

LIFETIME_SECONDS = 5 * 3600
"""Longer than any rollout may last; only where locks do not reach into containers (not Linux) does it ever count."""
_HOME, _TMP, _OURS = "/home/agent", "/tmp", "/run/valve"  # noqa: S108 (inside; private to the workspace)
_OPEN_FILES = 4096
_PROCESS_IDS = 1 << 15  # as many as there are where nothing else is configured
_MORE_PROCESSES = 8  # process 1, what it waits with, and the scripts below

# Process 1. It reaps orphans while it waits, and starts waiting anew when a command killed what waits.
_INIT = """#!/bin/bash
while [ "$SECONDS" -lt "$2" ]; do
    if [ "$1" = lock ]; then flock -w "$2" /run/valve/alive true & else sleep "$2" & fi
    wait $!
    [ $? -gt 128 ] || exit 0
done
"""
# Around each command. What an earlier one left behind ends first, what this one leaves ends last; kill spares itself
# and process 1. The first line says that the container works: it is written before the command could say anything.
_COMMAND = """#!/bin/bash
kill -9 -1 2>/dev/null
exec 2>&1
printf '%s\\n' "$1"
ulimit -St "$2"; ulimit -Ht "$(($2 + 1))"; ulimit -v "$3"; ulimit -f "$4"; ulimit -c 0
shift 4
"$@"
code=$?
kill -9 -1 2>/dev/null
exit $code
"""


@dataclass(frozen=True)
class Container:
    """The sandbox of tasks that have an image."""

    image: Image

    root: str | None = TESTBED

    @property
    def name(self) -> str:
        """What grades are kept by: outcomes may depend on the image."""
        return f"{self.image.engine}:{self.image.id}"

    def start(
        self, workspace: Workspace, readonly: Sequence[Path] = (), memory_bytes: int = Limits().memory_bytes
    ) -> Started:
        """Start a container on a workspace; whoever calls stops it.

        Raises:
            SandboxError: the engine failed.
        """
        return Started(Engine(self.image.engine), self.image, workspace, readonly, memory_bytes)

    @contextmanager
    def opened(self, workspace: Workspace, readonly: Sequence[Path] = ()) -> Iterator[Started]:
        """Yield a container on a workspace; it is gone at the end."""
        started = self.start(workspace, readonly)
        try:
            yield started
        finally:
            started.stop()

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
        """See `Sandbox.run`: one command in a container of its own."""
        with self.opened(workspace, readonly) as started:
            return started.run(command, limits=limits, cwd=cwd, env=env, stdin=stdin, tap=tap)


class Started:
    """A running container."""

    def __init__(
        self, engine: Engine, image: Image, workspace: Workspace, readonly: Sequence[Path], memory_bytes: int
    ) -> None:
        self.engine, self.image, self.workspace, self.readonly = engine, image, workspace, readonly
        self.memory_bytes = memory_bytes
        self.id, self._alive = "", -1
        self._start()

    def run(
        self,
        command: str | Sequence[str],
        *,
        limits: Limits,
        cwd: str = "",
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        tap: Tap | None = None,
    ) -> Completed:
        """Run one command; see `Sandbox.run`. When it had to be stopped, a fresh container takes this one's place.

        Raises:
            SandboxError: the engine failed, or the container is gone; a command can cause neither.
        """
        before = self._group.usage()
        mark = secrets.token_hex(16)
        words = [f"{_OURS}/command", mark, str(limits.cpu_seconds)]
        words += [str(limits.memory_bytes // 1024), str(limits.file_bytes // 1024), *argv(command)]
        done = supervise(
            [*self._exec(cwd, env or {}, bool(stdin)), *words],
            self.workspace.root,
            changed(limits, output_bytes=limits.output_bytes + len(mark) + 1),
            env=os.environ,  # the engine's client needs it; a command gets what `_exec` names and nothing else
            stdin=stdin,
            totals=lambda: (self._group.usage().cpu_seconds - before.cpu_seconds, 0),  # the engine limits memory itself
            tap=tap,
        )
        return self._judged(done, f"{mark}\n".encode(), before)

    def stop(self) -> None:
        """Remove the container, and with it all that runs in it."""
        try:
            if self.id:
                self.engine.remove(self.id)
        finally:
            self.id = ""
            if self._alive >= 0:
                os.close(self._alive)
                self._alive = -1

    def _start(self) -> None:
        ours = self.workspace.root / f"engine-{secrets.token_hex(4)}"
        ours.mkdir(mode=0o755)
        for name, text in {"init": _INIT, "command": _COMMAND, "alive": ""}.items():
            (ours / name).write_text(text)
            (ours / name).chmod(0o755)
        self._alive = os.open(ours / "alive", os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._alive, fcntl.LOCK_EX)
        try:
            waits = "lock" if os.uname().sysname == "Linux" else "time"
            options = guarantees(self.engine, self.workspace, ours, self.readonly, self.memory_bytes)
            self.id = self.engine.call("run", "-d", *options, self.image.id, waits, str(LIFETIME_SECONDS))
            self._group = Group(int(self.engine.call("inspect", "--format", "{{.State.Pid}}", self.id)))
        except BaseException as e:
            self.stop()
            if isinstance(e, SandboxError) and (lacks := _lacking(self.engine, self.image)):
                raise SandboxError(lacks) from e
            raise

    def _exec(self, cwd: str, env: Mapping[str, str], stdin: bool) -> list[str]:
        visible = variables(self.workspace, self.image) | dict(env)
        settings = [word for name, value in visible.items() for word in ("-e", f"{name}={value}")]
        where = os.path.normpath(os.path.join(TESTBED, cwd))
        uid = self.workspace.uid
        words = [*(["-i"] if stdin else []), "--user", f"{uid}:{uid}", "-w", where]
        return [self.engine.name, "exec", *words, *settings, self.id]

    def _judged(self, done: Completed, mark: bytes, before: Usage) -> Completed:
        gone = (done.limit or done.returncode) and not self._running()
        if gone or not (done.limit or done.output.startswith(mark)):
            said = done.output.removeprefix(mark)[-300:].decode("utf-8", "replace").strip()
            why = f"{self.engine.name} exec ended with {done.returncode}: {said}"
            raise SandboxError(_lacking(self.engine, self.image) or why)  # a busy engine notices late what is missing
        if done.limit:
            self.stop()  # ending the engine's client ends nothing inside
            self._start()
            return replace(done, output=done.output.removeprefix(mark))
        killed = self._group.usage().killed > before.killed
        return replace(done, output=done.output.removeprefix(mark), limit="memory" if killed else "")

    def _running(self) -> bool:
        with suppress(SandboxError):
            return self.engine.call("inspect", "--format", "{{.State.Running}}", self.id) == "true"
        return False


def guarantees(
    engine: Engine,
    workspace: Workspace,
    ours: Path,
    readonly: Sequence[Path],
    memory_bytes: int = Limits().memory_bytes,
) -> list[str]:
    """Return the options of `run` that make a container as closed as the bubblewrap sandbox is."""
    words = ["--rm", "--pull", "never", "--network", "none", "--read-only", "--hostname", "sandbox"]
    words += ["--cap-drop", "all", "--security-opt", "no-new-privileges", "--log-driver", "none"]
    words += ["--memory", str(memory_bytes), "--memory-swap", str(memory_bytes), "--oom-score-adj", str(FIRST_TO_GO)]
    words += ["--pids-limit", str(Limits().processes + _MORE_PROCESSES), "--shm-size", str(256 * MIB)]
    words += _ulimits()
    words += ["--label", f"{OWNER_LABEL}={owner()}", "--label", f"{ALIVE_LABEL}={ours / 'alive'}"]
    if engine.name == "podman":
        # Not the host's proxy variables, which may hold passwords; no unlimited file systems in memory.
        words += ["--http-proxy=false", "--read-only-tmpfs=false"]
        if os.geteuid():
            words += ["--userns=keep-id"]
    places = {workspace.path: TESTBED, workspace.home: _HOME, workspace.tmp: _TMP}
    for source, place in places.items():
        words += ["-v", f"{source}:{place}"]
    shown = {ours: _OURS, **{workspace.root / "etc" / name: f"/etc/{name}" for name in ("passwd", "group", "hosts")}}
    for source, place in (shown | {path: str(path) for path in readonly}).items():
        words += ["-v", f"{source}:{place}:ro"]
    return [*words, "--user", "0:0", "-w", "/", "--entrypoint", f"{_OURS}/init"]


def _lacking(engine: Engine, image: Image) -> str:
    """Return a sentence on what an image lacks of what every container needs; empty: nothing, or no telling."""
    look = "for tool in flock sleep; do command -v $tool >/dev/null || echo $tool; done"
    closed = ["--rm", "--pull", "never", "--network", "none", "--read-only", "--cap-drop", "all", *_ulimits()]
    try:
        lacks = engine.call("run", *closed, "--entrypoint", "/bin/bash", image.id, "-c", look).split()
    except SandboxError as e:
        lacks = ["/bin/bash"] if "/bin/bash" in str(e) else []  # the engine says what it could not run
    return f"{image.name} has no {' and no '.join(lacks)}; a container here needs bash, flock, sleep" if lacks else ""


def variables(workspace: Workspace, image: Image) -> dict[str, str]:
    """Return the environment of a command: the sandbox's own, with the image's conda environment first on PATH."""
    env = Path(image.environment)
    own = environment(workspace, TESTBED, _HOME, _TMP)
    path = [str(env / "bin"), *([str(env.parents[1] / "bin")] if env.parent.name == "envs" else [])]
    return own | {
        "PATH": ":".join([*path, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]),
        "CONDA_PREFIX": str(env),
        "CONDA_DEFAULT_ENV": env.name,
    }


def _ulimits() -> list[str]:
    """Return limits that can be had: engines ask for more than a process without CAP_SYS_RESOURCE may give."""
    files, processes = (resource.RLIMIT_NOFILE, _OPEN_FILES), (resource.RLIMIT_NPROC, _PROCESS_IDS)
    return ["--ulimit", f"nofile={_at_most(*files)}", "--ulimit", f"nproc={_at_most(*processes)}"]


def _at_most(which: int, wanted: int) -> str:
    hard = resource.getrlimit(which)[1]
    value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    return f"{value}:{value}"
