"""The rows of `valve doctor` about isolation. The sandbox is not asked what it holds; it is tried."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from valve_plugin.cli.doctor_rows import Found, Place, row

if TYPE_CHECKING:
    from valve_plugin.rollouts.sandbox import Sandbox

_NAMESPACES = (
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "15000"),
)
"""Settings of the kernel that refuse user namespaces: name, the value that does, one that does not."""
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
    from valve_plugin.rollouts.sandbox import bubblewrap_fails, choose

    settings = place.settings
    if settings.sandbox not in ("auto", "bwrap"):
        return Found("ok", f"{settings.sandbox}, as set: tasks need an image")
    reason = bubblewrap_fails()
    if reason and not settings.unsafe_local:
        text = f"unattended rollouts need one, and bubblewrap does not work here: {reason}; --unsafe-local does without"
        return Found("failed", text, _sandbox_fix())
    return _tried(choose(settings))


def _sandbox_fix() -> str:
    if not all(shutil.which(tool) for tool in ("bwrap", "prlimit", "setpriv")):
        return "apt-get install -y bubblewrap util-linux"
    return refused(Path("/proc/sys")) or "bwrap --unshare-user --unshare-net --ro-bind / / true"


def refused(settings: Path) -> str:
    """Return the command that allows user namespaces, where a setting of this kernel refuses them; else empty.

    Args:
        settings: /proc/sys.
    """
    for name, refusing, allowing in _NAMESPACES:
        with suppress(OSError):
            if (settings / name.replace(".", "/")).read_text().strip() == refusing:
                return f"sudo sysctl -w {name}={allowing}"
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
    fix = "apt-get install -y docker.io" if wanted == ["docker"] else "apt-get install -y podman runc"
    if there:
        rights = os.geteuid() and "would not limit" in reasons[there[0]]
        fix = 'sudo -E "$(command -v valve)" doctor' if rights else f"{there[0]} info"
    return Found("failed" if needed else "missing", text, fix)


def _tried(box: Sandbox) -> Found:
    got = escapes(box)
    if got:
        return Found("failed", f"{box.name} does not keep commands from: {', '.join(got)}", "unset VALVE_UNSAFE_LOCAL")
    return Found("ok", f"{box.name}: no network, no files, no environment, nothing outlives its command")


def escapes(box: Sandbox) -> list[str]:
    """Return what a command in a sandbox reaches that it must not; empty: it holds.

    Raises:
        SandboxError: it does not start.
    """
    word, sleep = secrets.token_hex(16), f"{600 + secrets.randbelow(10**6) / 10**6:.6f}"
    os.environ["VALVE_DOCTOR_CANARY"] = f"environment {word}"
    other = subprocess.Popen(["sleep", "120"])  # its environment, unlike ours, is as it was when it started
    try:
        with _user_data() as data:
            said, changed = _try(box, data / f"doctor-{os.getpid()}", word, sleep)
    finally:
        other.kill()
        other.wait()
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
def _user_data() -> Iterator[Path]:
    """Yield the user data directory; where there is none yet, one beside it that is gone afterwards."""
    from valve_plugin.bank.paths import data_dir

    where = data_dir()
    if where.exists():
        yield where
        return
    before = os.environ.get("VALVE_DATA")
    above = next(folder for folder in where.parents if folder.exists())
    with tempfile.TemporaryDirectory(prefix=".valve-doctor-", dir=above) as place:
        os.environ["VALVE_DATA"] = place
        try:
            yield Path(place)
        finally:
            del os.environ["VALVE_DATA"]
            os.environ.update({"VALVE_DATA": before} if before is not None else {})


def _outlived(sleep: str) -> bool:
    """True when the process is still there a moment later; it is ended then."""
    import psutil

    time.sleep(0.2)
    found = [p for p in psutil.process_iter(["cmdline"]) if sleep in (p.info["cmdline"] or [])]
    for process in found:
        process.kill()
    return bool(found)
