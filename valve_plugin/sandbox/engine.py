"""The container engine on this machine: podman or docker, called by its command line."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

from valve_plugin.codec import digest_bytes
from valve_plugin.errors import SandboxError
from valve_plugin.paths import data_dir
from valve_plugin.records import Record
from valve_plugin.sandbox.supervisor import run_child
from valve_plugin.sandbox.trees import walk

EngineName = Literal["podman", "docker"]
ENGINES: tuple[EngineName, ...] = ("podman", "docker")

SMITH_ENVIRONMENT = "/opt/miniconda3/envs/testbed"
"""Path of the conda environment in SWE-smith's images."""
OWNER_LABEL, ALIVE_LABEL = "valve.data", "valve.alive"
COPY_SECONDS = 1800
"""Time limit for copying a folder out of an image."""
_SECONDS = 300  # time limit of other engine commands
_GOING_SECONDS = 30
_NO_LIMITS = (
    "{name} cannot limit memory and processes: control groups of version 1 need root, those of version 2 need the "
    "controllers memory and pids for this user (systemd: Delegate=yes)"
)


class Image(Record, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A local image, and the files that were copied out of it."""

    engine: EngineName
    name: str
    id: str
    """64 hex digits. The name may refer to another image later, the id does not."""
    environment: str = SMITH_ENVIRONMENT
    """Path inside the image: the environment whose bin/python runs the tests."""

    @property
    def folder(self) -> Path:
        """The folder with the copied files."""
        return data_dir() / "images" / self.id[:16]

    @property
    def git(self) -> Path:
        """The git directory of /testbed, with all the history the image has."""
        return self.folder / "git"

    @property
    def built(self) -> Path:
        """The files of /testbed that are not part of its source."""
        return self.folder / "built"

    @cached_property
    def built_files(self) -> frozenset[str]:
        """Paths of the files and links in `built`, relative to the tree."""
        return frozenset(folder.path(name) for folder in walk(self.built) for name in folder.others)


@dataclass(frozen=True)
class Engine:
    """Podman or docker."""

    name: EngineName

    def call(self, *arguments: str, seconds: float = _SECONDS, tied: bool = False, cwd: Path | None = None) -> str:
        """Run one of the engine's commands and return its stripped standard output.

        Args:
            tied: whether the command ends with this process. Not for commands that start a process which outlives them,
                such as a container's monitor.
            cwd: working directory. podman's monitor writes a file `oom` there when a container runs out of memory.

        Raises:
            SandboxError: the engine is missing, does not answer, or reports an error.
        """
        command = [self.name, *arguments]
        try:
            if tied:
                done = run_child(command, seconds=seconds)
            else:
                done = subprocess.run(
                    command, capture_output=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL, cwd=cwd
                )
        except (OSError, subprocess.TimeoutExpired) as e:
            raise SandboxError(f"{self.name} {arguments[0]}: {e}") from e
        if done.returncode:
            errors = done.stderr.decode("utf-8", "replace").strip()[-300:]
            raise SandboxError(f"{self.name} {arguments[0]} ended with {done.returncode}: {errors}")
        return done.stdout.decode("utf-8", "replace").strip()

    def remove(self, container: str) -> None:
        """Kill and remove a container; do nothing if it is gone."""
        wait = ["-t", "0"] if self.name == "podman" else []  # docker's `rm -f` never waits
        try:
            self.call("rm", "-f", *wait, container)
        except SandboxError:  # docker says so also of a container that ended, and that it is about to remove itself
            end = time.monotonic() + _GOING_SECONDS
            while self.call("ps", "-aq", "--no-trunc", "--filter", f"id={container}"):
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    def ran_out_of_memory(self, container: str) -> bool:
        """Return whether docker says so of a container, also after it is gone; podman's monitor writes a file."""
        if self.name != "docker":
            return False
        which = ["--filter", f"container={container}", "--filter", "event=oom"]
        return bool(self.call("events", "--since", "0", "--until", f"{time.time():.3f}", *which))

    def sweep(self) -> int:
        """Remove containers whose owner process is dead; return their number."""
        found = self.call("ps", "-aq", "--no-trunc", "--filter", f"label={OWNER_LABEL}={owner()}").split()
        dead = [container for container in found if not self._alive(container)]
        for container in dead:
            self.remove(container)
        return len(dead)

    def _alive(self, container: str) -> bool:
        """Whether the process that started a container still holds its lock, a file in the workspace."""
        try:
            form = f'{{{{index .Config.Labels "{ALIVE_LABEL}"}}}}'
            lock = self.call("inspect", "--format", form, container)
        except SandboxError:  # the container is gone
            return True
        try:
            fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            return False
        finally:
            os.close(fd)


def owner() -> str:
    """Return the label value of containers that belong to this user data directory."""
    return digest_bytes(os.fsencode(data_dir()))[:16]


def labels(lock: Path) -> list[str]:
    """Return the options that label a container as ours; `sweep` removes it when no process holds the lock."""
    return ["--label", f"{OWNER_LABEL}={owner()}", "--label", f"{ALIVE_LABEL}={lock}"]


@lru_cache(maxsize=2)
def engine_problem(name: EngineName) -> str:
    """Return why an engine cannot be used here, or "" if it works. It is tried once per process.

    Containers of crashed runs are removed at the same time.
    """
    if shutil.which(name) is None:
        return f"{name} is not on PATH"
    try:
        Engine(name).call("version", seconds=30)  # unlike --version, docker's fails without its daemon
        if os.geteuid() and not limits_are_enforced(json.loads(Engine(name).call("info", "--format", "{{json .}}"))):
            return _NO_LIMITS.format(name=name)
        Engine(name).sweep()
    except (SandboxError, ValueError) as e:
        return str(e)
    return ""


def limits_are_enforced(info: Mapping[str, Any]) -> bool:
    """Return whether limits on memory and processes work; podman without root may only warn about them. Pure.

    Args:
        info: output of `info --format '{{json .}}'`, by podman or docker.
    """
    if "host" in info:
        return {"memory", "pids"}.issubset(info["host"].get("cgroupControllers") or ())
    return bool(info.get("MemoryLimit") and info.get("PidsLimit"))


def find_image(image: str, wanted: Sequence[EngineName] = ENGINES) -> tuple[Engine, str] | None:
    """Return (engine, image id) for the first working engine that has the image, or None."""
    for name in wanted:
        if not engine_problem(name) and (found := image_id(name, image)):
            return Engine(name), found
    return None


@lru_cache(maxsize=1024)
def image_id(name: EngineName, image: str) -> str:
    """Return the id (64 hex digits) of a local image, or "" if there is none. Nothing is pulled."""
    try:
        return Engine(name).call("image", "inspect", "--format", "{{.Id}}", image).removeprefix("sha256:")
    except SandboxError:
        return ""
