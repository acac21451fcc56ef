"""The rows of `valve doctor` about isolation. The sandbox is not asked what it holds; it is tried."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from contextlib import suppress
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
    from valve_plugin.errors import SandboxError
    from valve_plugin.rollouts.sandbox import choose

    settings = place.settings
    if settings.sandbox not in ("auto", "bwrap"):
        return Found("ok", f"{settings.sandbox}, as set: tasks need an image")
    try:
        box = choose(settings)
    except SandboxError as e:
        return Found("failed", str(e), _sandbox_fix())
    return _tried(box)


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
    from valve_plugin.bank.paths import data_dir
    from valve_plugin.rollouts import workspace as workspaces
    from valve_plugin.rollouts.limits import Limits

    word, sleep = secrets.token_hex(16), f"{600 + secrets.randbelow(10**6) / 10**6:.6f}"
    data_dir().mkdir(parents=True, exist_ok=True)
    canary = data_dir() / f"doctor-{os.getpid()}"
    canary.write_text(f"file {word}\n")
    os.environ["VALVE_DOCTOR_CANARY"] = f"environment {word}"
    other = subprocess.Popen(["sleep", "120"])  # its environment, unlike ours, is as it was when it started
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, workspaces.empty() as place:
            command = _TRY.format(port=server.getsockname()[1], path=canary, sleep=sleep)
            said = box.run(command, place, limits=Limits(wall_seconds=60)).output.decode("utf-8", "replace")
        got = [what for what in ("network",) if f"got: {what}" in said]
        if f"file {word}" in said or canary.read_text() != f"file {word}\n":
            got.append("files of this machine")
        if f"environment {word}" in said:
            got.append("environment variables")
    finally:
        other.kill()
        other.wait()
        del os.environ["VALVE_DOCTOR_CANARY"]
        canary.unlink(missing_ok=True)
    return got + (["outliving their end"] if _outlived(sleep) else [])


def _outlived(sleep: str) -> bool:
    """True when the process is still there a moment later; it is ended then."""
    import psutil

    time.sleep(0.2)
    found = [p for p in psutil.process_iter(["cmdline"]) if sleep in (p.info["cmdline"] or [])]
    for process in found:
        process.kill()
    return bool(found)
