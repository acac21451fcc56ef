"""The container engine on this machine: podman or docker, called by its command line."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from valve_plugin.bank.paths import data_dir
from valve_plugin.codec import digest_bytes
from valve_plugin.errors import SandboxError
from valve_plugin.rollouts import lifeline

Name = Literal["podman", "docker"]
NAMES: tuple[Name, ...] = ("podman", "docker")

OWNER_LABEL, ALIVE_LABEL = "valve.data", "valve.alive"
_COPY_SECONDS = 1800
_SECONDS = 300  # an engine that does not answer by then is down
_NO_LIMITS = (
    "{name} would not limit memory and processes: control groups of version 1 need root, those of version 2 the "
    "controllers memory and pids for this user (systemd: Delegate=yes)"
)


@dataclass(frozen=True)
class Engine:
    """Podman or docker."""

    name: Name

    def call(self, *arguments: str, seconds: int = _SECONDS) -> str:
        """Run one of the engine's commands and return its standard output.

        None is tied to this process: what one starts, such as the monitor of a container, is to outlive it, and they
        end by themselves. `copy` writes to our disk for minutes.

        Raises:
            SandboxError: the engine is missing, does not answer, or says no.
        """
        try:
            done = subprocess.run(
                [self.name, *arguments],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=seconds,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except (OSError, subprocess.TimeoutExpired) as e:
            raise SandboxError(f"{self.name} {arguments[0]}: {e}") from e
        return self._said(arguments[0], done.returncode, done.stdout, done.stderr)

    def copy(self, container: str, path: str, to: Path) -> None:
        """Copy a folder out of a container; ends with this process.

        Raises:
            SandboxError: the engine is missing, says no, or takes more than half an hour.
        """
        try:
            done = lifeline.run([self.name, "cp", f"{container}:{path}", str(to)], seconds=_COPY_SECONDS)
        except subprocess.TimeoutExpired as e:
            raise SandboxError(f"{self.name} cp: {e}") from e
        self._said("cp", done.returncode, "", done.stderr.decode("utf-8", "replace"))

    def _said(self, what: str, code: int, output: str, errors: str) -> str:
        if code:
            raise SandboxError(f"{self.name} {what} ended with {code}: {errors.strip()[-300:]}")
        return output.strip()

    def image_id(self, name: str) -> str:
        """Return the id (64 hex digits) of a local image; empty: there is none of that name. Nothing is pulled."""
        try:
            return self.call("image", "inspect", "--format", "{{.Id}}", name).removeprefix("sha256:")
        except SandboxError:
            return ""

    def remove(self, container: str) -> None:
        """Kill and remove a container; fine when it is gone."""
        wait = ["-t", "0"] if self.name == "podman" else []  # docker's `rm -f` never waits
        try:
            self.call("rm", "-f", *wait, container)
        except SandboxError:
            if self.call("ps", "-aq", "--no-trunc", "--filter", f"id={container}"):
                raise

    def sweep(self) -> int:
        """Remove containers whose owner is dead, in whatever state a crash left them; return how many there were."""
        found = self.call("ps", "-aq", "--no-trunc", "--filter", f"label={OWNER_LABEL}={owner()}").split()
        dead = [container for container in found if not self._alive(container)]
        for container in dead:
            self.remove(container)
        return len(dead)

    def _alive(self, container: str) -> bool:
        form = f'{{{{index .Config.Labels "{ALIVE_LABEL}"}}}}'
        try:
            return _locked(Path(self.call("inspect", "--format", form, container)))
        except SandboxError:  # it has gone by itself
            return True


def owner() -> str:
    """Return what tells this user data directory's containers from all others."""
    return digest_bytes(os.fsencode(data_dir()))[:16]


@lru_cache(maxsize=2)
def fails(name: Name) -> str:
    """Return why an engine cannot be used here, empty when it answers; asked once per process.

    What crashed runs left behind is removed on the way.
    """
    if shutil.which(name) is None:
        return f"{name} is not on PATH"
    try:
        Engine(name).call("version", seconds=30)  # unlike --version, docker's fails without its daemon
        if os.geteuid() and not limits_hold(json.loads(Engine(name).call("info", "--format", "{{json .}}"))):
            return _NO_LIMITS.format(name=name)
        Engine(name).sweep()
    except (SandboxError, ValueError) as e:
        return str(e)
    return ""


def limits_hold(info: Mapping[str, Any]) -> bool:
    """Return whether memory and processes of a container would be limited; podman without root may only warn. Pure.

    Args:
        info: what `info --format '{{json .}}'` says, podman's or docker's.
    """
    if "host" in info:
        return {"memory", "pids"}.issubset(info["host"].get("cgroupControllers") or ())
    return bool(info.get("MemoryLimit") and info.get("PidsLimit"))


def with_image(image: str, wanted: Sequence[Name] = NAMES) -> tuple[Engine, str] | None:
    """Return (engine, image id) of the first engine that works and has an image; None: none does."""
    for name in wanted:
        if not fails(name) and (found := _image_id(name, image)):
            return Engine(name), found
    return None


@lru_cache(maxsize=1024)
def _image_id(name: Name, image: str) -> str:
    return Engine(name).image_id(image)


def _locked(path: Path) -> bool:
    """True while the process that started a container holds its lock; the file is removed with its workspace."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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
