"""The rows of `valve doctor` about isolation. The sandbox is not asked what it holds; it is tried."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from valve_plugin.cli.doctor_rows import Found, Place, row
from valve_plugin.cli.installs import as_root, repaired, system_install

if TYPE_CHECKING:
    from valve_plugin.rollouts.engine import Name
    from valve_plugin.rollouts.sandbox import Sandbox

_NAMESPACES = (
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "15000"),
)
"""Settings of the kernel that refuse user namespaces: name, the value that does, one that does not."""
_CONTAINER = ("/.dockerenv", "/run/.containerenv")
"""What docker and podman leave in their containers."""
_BESIDE = ".valve-doctor-"
_TRY = """
echo began
(exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo "got: network"
cat '{path}' 2>/dev/null
(echo changed > '{path}') 2>/dev/null
env; cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'
nohup setsid sleep {sleep} >/dev/null 2>&1 &
sleep 0.5
"""


@row("sandbox")
def _sandbox(place: Place) -> Found:
    from valve_plugin.bank.paths import data_dir
    from valve_plugin.cli.doctor_bank import unusable
    from valve_plugin.rollouts.sandbox import bubblewrap_fails, choose

    settings = place.settings
    if settings.sandbox not in ("auto", "bwrap"):
        return Found("ok", f"{settings.sandbox}, as set: tasks need an image")
    reason = bubblewrap_fails()
    if reason and not settings.unsafe_local:
        why, fix = _sandbox_fix()
        text = f"unattended rollouts need one, and bubblewrap does not work here: {reason}{why}"
        return Found("failed", f"{text}; --unsafe-local does without", fix)
    if unusable(data_dir()):
        return Found("missing", "not known while user data cannot be written, see there")
    return _tried(choose(settings))


def _sandbox_fix() -> tuple[str, str]:
    """Return (what there is to add to bubblewrap's own words, the command that changes it)."""
    if not all(shutil.which(tool) for tool in ("bwrap", "prlimit", "setpriv")):
        return "", system_install("bubblewrap", "util-linux")
    said = subprocess.run(["bwrap", "--version"], capture_output=True, text=True, timeout=30, check=False)
    if said.returncode or not said.stdout.startswith("bubblewrap "):
        return "", repaired("bwrap", "bubblewrap")
    if command := refused(Path("/proc/sys")):
        return "", command
    if any(Path(mark).exists() for mark in _CONTAINER):
        return "; this is a container, which has to be started with the right to make more (--privileged)", ""
    return "; the system's administrator can allow user namespaces", ""


def refused(settings: Path) -> str:
    """Return the command that allows user namespaces, where a setting of this kernel refuses them; else empty.

    Args:
        settings: /proc/sys.
    """
    for name, refusing, allowing in _NAMESPACES:
        with suppress(OSError):
            if (settings / name.replace(".", "/")).read_text().strip() == refusing:
                return as_root(f"sysctl -w {name}={allowing}")
    return ""


@row("container engine")
def _engine(place: Place) -> Found:
    from valve_plugin.rollouts.engine import NAMES, Engine, fails

    wanted = [name for name in NAMES if place.settings.sandbox in ("auto", "bwrap", name)]
    reasons = {name: fails(name) for name in wanted}
    for name, reason in reasons.items():
        if not reason:
            return Found("ok", f"{name} {Engine(name).call('version', '--format', '{{.Client.Version}}')}")
    needed = place.settings.sandbox in NAMES
    there = [name for name in wanted if shutil.which(name)]
    text = "; ".join(reasons[name] for name in there or wanted)
    text += "" if needed else "; tasks run in bubblewrap, not in their own images"
    return Found("failed" if needed else "missing", text, _engine_fix(wanted, there, reasons))


def _engine_fix(wanted: Sequence[Name], there: Sequence[Name], reasons: Mapping[Name, str]) -> str:
    """Return the command that gives one of the wanted engines; `there` are those on PATH, none of which works."""
    if os.geteuid() and any("would not limit" in reasons[name] for name in there):
        return as_root('-E "$(command -v valve)" doctor')
    if "podman" in there:
        return repaired("podman", "podman")
    if "podman" in wanted:
        return system_install("podman", "runc")
    if not there:
        return system_install("docker.io")
    return as_root("service docker start") if "Cannot connect" in reasons["docker"] else repaired("docker", "docker.io")


def _tried(box: Sandbox) -> Found:
    got = escapes(box)
    if got:
        text = f"{box.name} does not keep commands from: {', '.join(got)}"
        return Found("failed", text, repaired("bwrap", "bubblewrap"))
    return Found("ok", f"{box.name}: no network, no files, no environment, nothing outlives its command")


def escapes(box: Sandbox) -> list[str]:
    """Return what a command in a sandbox reaches that it must not; empty: it holds.

    Raises:
        SandboxError: it does not start.
    """
    from valve_plugin.rollouts.slots import slot

    word, sleep = secrets.token_hex(16), f"{600 + secrets.randbelow(10**6) / 10**6:.6f}"
    os.environ["VALVE_DOCTOR_CANARY"] = f"environment {word}"
    # Its environment, unlike ours, is as it was when it started; it ends with its input, so with us however we end.
    other = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        with _user_data(), slot() as (_, scratch):  # what a kill leaves there, the next one removes
            said, changed = _try(box, scratch / "canary", word, sleep)
    finally:
        other.kill()
        other.communicate()
        del os.environ["VALVE_DOCTOR_CANARY"]
    reached = {
        "network": "got: network" in said,
        "files of this machine": f"file {word}" in said or changed,
        "environment variables": f"environment {word}" in said,
        "outliving their end": _outlived(sleep),
    }
    return [what for what, got in reached.items() if got]


def _try(box: Sandbox, canary: Path, word: str, sleep: str) -> tuple[str, bool]:
    """Return what a command that tries to get out said, and whether it changed a file of this machine."""
    from valve_plugin.rollouts import workspace as workspaces
    from valve_plugin.rollouts.limits import Limits

    canary.write_text(f"file {word}\n")
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, workspaces.empty() as place:
            command = _TRY.format(port=server.getsockname()[1], path=canary, sleep=sleep)
            said = box.run(command, place, limits=Limits(wall_seconds=60)).output.decode("utf-8", "replace")
        return said, canary.read_text() != f"file {word}\n"
    finally:
        canary.unlink(missing_ok=True)


@contextmanager
def _user_data() -> Iterator[None]:
    """Have a user data directory: where there is none yet, one beside it that is gone afterwards."""
    from valve_plugin.bank.paths import data_dir

    where = data_dir()
    if where.exists():
        yield
        return
    before = os.environ.get("VALVE_DATA")
    above = next(folder for folder in where.parents if folder.exists())
    _sweep(above)
    with tempfile.TemporaryDirectory(prefix=_BESIDE, dir=above) as place, _held(Path(place)):
        os.environ["VALVE_DATA"] = place
        try:
            yield
        finally:
            del os.environ["VALVE_DATA"]
            os.environ.update({"VALVE_DATA": before} if before is not None else {})


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Hold a folder's lock, which dies with its process.

    Raises:
        OSError: somebody else has it, or it is no folder.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def _sweep(above: Path) -> None:
    """Remove what killed ones left."""
    for left in above.glob(f"{_BESIDE}*"):
        with suppress(OSError), _held(left):
            if left.stat().st_uid == os.geteuid():
                shutil.rmtree(left, ignore_errors=True)


def _outlived(sleep: str) -> bool:
    """True when the process is still there a moment later; it is ended then."""
    import psutil

    time.sleep(0.2)
    found = [p for p in psutil.process_iter(["cmdline"]) if sleep in (p.info["cmdline"] or [])]
    for process in found:
        process.kill()
    return bool(found)
