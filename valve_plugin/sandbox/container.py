"""Containers for rollouts in a task's own image, as isolated as bubblewrap. They end with the process that starts them.

The workspace is mounted over the image's `/testbed` and its history. Process 1 of the container waits for a file lock
that the starting process holds. The kernel releases the lock however that process ends; then process 1 ends, and with
it the container. So cleaning up needs no daemon. Containers that a crash of the machine leaves behind are removed at
the next start (`engine_problem`).
"""

from __future__ import annotations

import fcntl
import os
import resource
import secrets
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from valve_plugin.errors import SandboxError
from valve_plugin.sandbox.cgroup import ControlGroup, Usage
from valve_plugin.sandbox.engine import Engine, Image, labels
from valve_plugin.sandbox.seccomp import container_profile
from valve_plugin.sandbox.supervisor import (
    MIB,
    OOM_SCORE,
    CommandResult,
    ProcessLimits,
    RunOptions,
    Totals,
    argv,
    refuse,
    supervise,
)
from valve_plugin.sandbox.workspace import HOME, TESTBED, TMP, Workspace

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

LIFETIME_SECONDS = 5 * 3600
"""Lifetime of a container where it cannot see the lock (not on Linux); longer than any rollout."""
_OURS = "/run/valve"
_CLOSED = ("--pull", "never", "--network", "none", "--read-only", "--cap-drop", "all")
_OPEN_FILES = 4096
_PROCESS_IDS = 1 << 15  # the kernel's default
_OWN_PROCESSES = 8  # process 1, its waiting child, and the scripts below

# Process 1. It reaps orphans while it waits, and waits again if a command kills the waiting process.
_INIT = """#!/bin/bash
while [ "$SECONDS" -lt "$2" ]; do
    if [ "$1" = lock ]; then flock -w "$2" /run/valve/alive true & else sleep "$2" & fi
    wait $!
    [ $? -gt 128 ] || exit 0
done
"""
# Wrapper of each command. It first kills leftover processes of earlier commands, and at the end those of this one; kill
# spares itself and process 1. The first line of output, written before the command starts, shows that the container
# works. If memory runs out, the kernel kills the command first, and neither the wrapper nor process 1.
_COMMAND = """#!/bin/bash
kill -9 -1 2>/dev/null
exec 2>&1
printf '%s\\n' "$1"
(
    echo "$5" >/proc/self/oom_score_adj
    ulimit -St "$2"; ulimit -Ht "$(($2 + 1))"; ulimit -v "$3"; ulimit -f "$4"; ulimit -c 0
    shift 5
    exec "$@"
)
code=$?
kill -9 -1 2>/dev/null
exit $code
"""


@dataclass(frozen=True)
class Container:
    """The sandbox of tasks that have an image."""

    image: Image

    root: str | None = TESTBED
    isolates = True

    @property
    def name(self) -> str:
        """Name in the keys of results; it includes the image, because outcomes may depend on it."""
        return f"{self.image.engine}:{self.image.id}"

    def start(
        self,
        workspace: Workspace,
        readonly: Sequence[Path] = (),
        memory_bytes: int = ProcessLimits().memory_bytes,
        fixed: Sequence[str] = (),
    ) -> RunningContainer:
        """Start a container on a workspace. The caller stops it, or uses it in a `with` statement.

        Raises:
            SandboxError: the engine failed.
        """
        shown = {path: str(path) for path in readonly} | {workspace.path / p: f"{TESTBED}/{p}" for p in fixed}
        return RunningContainer(Engine(self.image.engine), self.image, workspace, shown, memory_bytes)

    def run(self, command: str | Sequence[str], workspace: Workspace, **options: Unpack[RunOptions]) -> CommandResult:
        """Run one command in a new container; see `Sandbox.run`."""
        with self.start(workspace, options.get("readonly", ()), fixed=options.get("readonly_tree", ())) as started:
            return started.run(command, **options)


class RunningContainer:
    """A running container."""

    def __init__(
        self, engine: Engine, image: Image, workspace: Workspace, readonly: Mapping[Path, str], memory_bytes: int
    ) -> None:
        self.engine, self.image, self.workspace, self.readonly = engine, image, workspace, readonly
        self.memory_bytes, self._oom = memory_bytes, workspace.root / "oom"
        self.id, self._lock = "", -1
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self, command: str | Sequence[str], **options: Unpack[RunOptions]) -> CommandResult:
        """Run one command; see `Sandbox.run`. If a limit ends it, a fresh container replaces this one.

        Raises:
            SandboxError: the engine failed, or the container is gone; a command cannot cause this.
        """
        if refused := refuse(command):
            return refused
        limits, stdin = options.get("limits", ProcessLimits()), options.get("stdin", b"")
        folder = os.path.normpath(os.path.join(TESTBED, options.get("cwd", "")))
        before = self._group.usage()
        self._oom.unlink(missing_ok=True)
        mark = secrets.token_hex(16)
        words = [f"{_OURS}/command", mark, str(limits.cpu_seconds)]
        words += [str(limits.memory_bytes // 1024), str(limits.file_bytes // 1024), str(OOM_SCORE)]
        done = supervise(
            [*self._exec(options.get("env") or {}, bool(stdin)), *words, *argv(command, folder)],
            self.workspace.root,
            replace(limits, output_bytes=limits.output_bytes + len(mark) + 1),
            env=os.environ,  # for the engine's client; a command gets only the variables from `_exec`
            stdin=stdin,
            totals=lambda: self._totals(before),
            watcher=options.get("watcher"),
        )
        return self._check(done, f"{mark}\n".encode(), before)

    def _totals(self, before: Usage) -> Totals:
        """Return what has been used since then; the engine limits memory itself."""
        cpu = self._group.usage().cpu_seconds - before.cpu_seconds
        return Totals(cpu, pids=self._group.processes())

    def stop(self) -> None:
        """Remove the container and all its processes."""
        try:
            if self.id:
                self.engine.remove(self.id)
        finally:
            self.id = ""
            if self._lock >= 0:
                os.close(self._lock)
                self._lock = -1

    def _start(self) -> None:
        ours = self.workspace.root / f"engine-{secrets.token_hex(4)}"
        ours.mkdir(mode=0o755)
        for name, text in {
            "init": _INIT,
            "command": _COMMAND,
            "alive": "",
            "seccomp.json": container_profile(),
        }.items():
            (ours / name).write_text(text)
            (ours / name).chmod(0o755)
        self._lock = os.open(ours / "alive", os.O_RDWR | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            waits = "lock" if os.uname().sysname == "Linux" else "time"
            options = container_options(self.engine, self.workspace, ours, self.readonly, self.memory_bytes)
            words = ["run", "-d", *options, self.image.id, waits, str(LIFETIME_SECONDS)]
            self.id = self.engine.call(*words, cwd=self.workspace.root)
            self._group = ControlGroup(int(self.engine.call("inspect", "--format", "{{.State.Pid}}", self.id)))
        except BaseException as e:
            self.stop()
            if isinstance(e, SandboxError) and (problem := _image_problem(self.engine, self.image)):
                raise SandboxError(problem) from e
            raise

    def _exec(self, env: Mapping[str, str], stdin: bool) -> list[str]:
        variables = _variables(self.workspace, self.image) | dict(env)
        settings = [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]
        user = f"{self.workspace.uid}:{self.workspace.uid}"
        return [self.engine.name, "exec", *["-i"] * stdin, "--user", user, "-w", "/", *settings, self.id]

    def _check(self, done: CommandResult, mark: bytes, before: Usage) -> CommandResult:
        """Return how a command ended, without the mark; see `run`."""
        clean = replace(done, output=done.output.removeprefix(mark))
        # A command can hold memory that no process is charged for, so that the kernel kills process 1: no host's error.
        # Its control group is soon gone then; the file is by podman's monitor, and docker remembers it.
        killed = self._group.usage().killed > before.killed or self._oom.exists()
        gone = (done.limit or done.returncode) and not killed and not self._running()
        if gone and self.engine.ran_out_of_memory(self.id):
            killed, gone = True, False
        if gone or not (done.limit or killed or done.output.startswith(mark)):
            output = clean.output[-300:].decode("utf-8", "replace").strip()
            why = f"{self.engine.name} exec ended with {done.returncode}: {output}"
            raise SandboxError(_image_problem(self.engine, self.image) or why)  # a busy engine reports this late
        if killed and not done.limit:
            clean = replace(clean, limit="memory")
        # Killing the engine's client does not end processes inside; and a killed wrapper did not end them either.
        if done.limit or killed or done.returncode == 128 + signal.SIGKILL:
            self.stop()
            self._start()
        return clean

    def _running(self) -> bool:
        with suppress(SandboxError):
            return self.engine.call("inspect", "--format", "{{.State.Running}}", self.id) == "true"
        return False


def container_options(
    engine: Engine,
    workspace: Workspace,
    ours: Path,
    readonly: Mapping[Path, str],
    memory_bytes: int = ProcessLimits().memory_bytes,
) -> list[str]:
    """Return the engine's `run` options for a container that is as isolated as the bubblewrap sandbox."""
    words = ["--rm", *_CLOSED, "--hostname", "sandbox", "--security-opt", "no-new-privileges", "--log-driver", "none"]
    words += ["--memory", str(memory_bytes), "--memory-swap", str(memory_bytes)]
    words += ["--pids-limit", str(ProcessLimits().processes + _OWN_PROCESSES), "--shm-size", str(256 * MIB)]
    words += [*_ulimits(), *labels(ours / "alive"), "--security-opt", f"seccomp={ours / 'seccomp.json'}"]
    if engine.name == "podman":
        # No proxy variables of the host, which may contain passwords; no unlimited file systems in memory.
        words += ["--http-proxy=false", "--read-only-tmpfs=false"]
        if os.geteuid():
            words += ["--userns=keep-id"]
    for source, place in {workspace.path: TESTBED, workspace.home: HOME, workspace.tmp: TMP}.items():
        words += ["-v", f"{source}:{place}"]
    shown = {ours: _OURS, **{workspace.root / "etc" / name: f"/etc/{name}" for name in ("passwd", "group", "hosts")}}
    for source, place in (shown | dict(readonly)).items():
        words += ["-v", f"{source}:{place}:ro"]
    return [*words, "--user", "0:0", "-w", "/", "--entrypoint", f"{_OURS}/init"]


def _image_problem(engine: Engine, image: Image) -> str:
    """Return a sentence about required tools that are missing in an image, or "" if none is missing (or known)."""
    look = "for tool in flock sleep; do command -v $tool >/dev/null || echo $tool; done"
    try:
        options = ["--rm", *_CLOSED, *_ulimits(), "--entrypoint", "/bin/bash"]
        lacks = engine.call("run", *options, image.id, "-c", look).split()
    except SandboxError as e:
        lacks = ["/bin/bash"] if "/bin/bash" in str(e) else []  # the engine says what it could not run
    return f"{image.name} has no {' and no '.join(lacks)}; a container here needs bash, flock, sleep" if lacks else ""


def _variables(workspace: Workspace, image: Image) -> dict[str, str]:
    """Return the environment of a command: the sandbox's own, with the image's conda environment first on PATH."""
    env = Path(image.environment)
    path = [str(env / "bin"), *([str(env.parents[1] / "bin")] if env.parent.name == "envs" else [])]
    return workspace.variables(TESTBED) | {
        "PATH": ":".join([*path, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]),
        "CONDA_PREFIX": str(env),
        "CONDA_DEFAULT_ENV": env.name,
    }


def _ulimits() -> list[str]:
    """Return limits within this process's hard limits; by default engines ask for more, and fail."""
    words = []
    for name, which, wanted in (
        ("nofile", resource.RLIMIT_NOFILE, _OPEN_FILES),
        ("nproc", resource.RLIMIT_NPROC, _PROCESS_IDS),
    ):
        hard = resource.getrlimit(which)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        words += ["--ulimit", f"{name}={value}:{value}"]
    return words
