"""The rows of `valve doctor` about isolation. The sandbox is not asked what it holds; it is tried."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from valve_plugin.cli.doctor_rows import Found, Place, row

if TYPE_CHECKING:
    from valve_plugin.rollouts.sandbox import Sandbox

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
        return Found("failed", str(e), "apt-get install -y bubblewrap util-linux")
    return _tried(box)


@row("container engine")
def _engine(place: Place) -> Found:
    from valve_plugin.rollouts.engine import NAMES, Engine, fails

    wanted = [name for name in NAMES if place.settings.sandbox in ("auto", "bwrap", name)]
    reasons = {name: fails(name) for name in wanted}
    for name, reason in reasons.items():
        if not reason:
            return Found("ok", f"{name} {Engine(name).call('version', '--format', '{{.Client.Version}}')}")
    needed = place.settings.sandbox in NAMES
    text = "; ".join(reasons.values()) + ("" if needed else "; tasks run in bubblewrap, not in their own images")
    there = any(shutil.which(name) for name in wanted)  # then the engine is there, and it is the rights or its daemon
    fix = 'sudo -E "$(command -v valve)" doctor' if there and os.geteuid() else "apt-get install -y podman runc"
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
